"""Measures one row of the benchmark, in a process that does nothing else.

    python -m experiments.validation.bench.measure row NAME REPEATS PEER_PYTHON
    python -m experiments.validation.bench.measure first NAME

It prints JSON lines on stdout: `{"doing": ...}` for progress, at last `{"done": ...}`. Times are CPU seconds (user and
system together).
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.validation.bench import peer as bench_peer
from experiments.validation.bench.rows import ROWS, TIMING, Row, model
from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.metrics.summary import Evaluation, evaluate
from framework.result import FINISHED, Result
from framework.run.output import write
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec
from framework.system.model import Model, kv_capacity_tokens
from framework.system.parallelism import Parallelism
from framework.workload import Workload

T = TypeVar("T")

_FIRST_REQUESTS = 100
_AGREE_S = 1e-6


@dataclass(frozen=True)
class Setting:
    """What all runs of a row share, read once: no measured time includes reading it."""

    row: Row
    cluster: ClusterSpec
    model: Model
    engine: EngineConfig


@dataclass
class Measured:
    """One row's figures; `*_s` lists hold a value for each repetition, in the order of measurement."""

    requests: int
    finished: int
    steps: int
    events: int
    trace_source: str
    timing_source: str
    parse_s: float
    metrics_s: float
    output_s: float
    peak_bytes: int
    simulate_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)
    bare_steps: int = 0
    peer_s: list[float] = field(default_factory=list)
    peer_peak_bytes: int = 0
    notes: list[str] = field(default_factory=list)


def measure(row: Row, repeats: int, peer_python: Path) -> Measured:
    """Replay the row from its trace to its files once, for memory; then `repeats` times with its rivals."""
    _say("reading the trace")
    workload, parse_s = _timed(row.workload)
    setting = _setting(row)
    measured, end_s = _once(setting, workload, parse_s)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        bare = _bare(setting, workload, measured, end_s)
        peer = _peer(setting, workload, measured, peer_python, Path(folder), stack)
        repeats = min(repeats, row.most_repeats)
        for repetition in range(repeats):
            _say(f"repetition {repetition + 1} of {repeats}")
            measured.simulate_s.append(_timed(lambda: _simulated(setting, workload))[1])
            if bare is not None:
                measured.bare_s.append(_timed(bare)[1])
            if peer is not None:
                run = peer.replay()
                measured.peer_s.append(run.cpu_s)
                measured.peer_peak_bytes = max(measured.peer_peak_bytes, run.peak_bytes)
    return measured


def _setting(row: Row) -> Setting:
    return Setting(row, row.cluster(), model(), row.engine_config())


def _once(setting: Setting, workload: Workload, parse_s: float) -> tuple[Measured, NDArray[np.float64]]:
    """Simulate, evaluate and write; return the times, and when each request ended."""
    _say("first run")
    result = _simulated(setting, workload)
    _say("metrics and output")
    evaluation, metrics_s = _timed(lambda: _evaluated(result))
    output_s = _timed(lambda: _written(result, evaluation))[1]
    measured = Measured(
        requests=len(workload),
        finished=int(np.count_nonzero(result.requests["state"] == FINISHED)),
        steps=result.steps,
        events=result.events,
        trace_source=workload.source,
        timing_source=result.timing_source,
        parse_s=parse_s,
        metrics_s=metrics_s,
        output_s=output_s,
        peak_bytes=_peak_bytes(),
    )
    return measured, result.requests["end_s"].copy()


def first(row: Row) -> float:
    """CPU seconds of this process up to the end of a short first run and its metrics, imports included."""
    _evaluated(_simulated(_setting(row), row.workload(_FIRST_REQUESTS)))
    return time.process_time()


def _simulated(setting: Setting, workload: Workload) -> Result:
    row = setting.row
    return simulate(
        workload,
        setting.cluster,
        setting.model,
        row.timing,
        engine=setting.engine,
        policy=row.policy(),
        predictor=None if row.predictor is None else row.predictor(),
    )


def _evaluated(result: Result) -> Evaluation:
    check_result(result)
    return evaluate(result, Slo())


def _written(result: Result, evaluation: Evaluation) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), result, evaluation)


def _bare(
    setting: Setting, workload: Workload, measured: Measured, end_s: NDArray[np.float64]
) -> Callable[[], object] | None:
    """Measure the bare loop on this row, after checking that it ends every request when the engine does."""
    if setting.row.no_bare:
        return None
    from experiments.validation.bench import bare

    def step() -> bare.BareResult:
        parts = setting.cluster, setting.model, TIMING, setting.engine, setting.row.routing
        return bare.step_every_iteration(workload, *parts)

    _say("bare loop")
    try:
        stepped = step()
    except bare.CannotStepError as error:
        measured.notes.append(f"bare loop: {error}")
        return None
    apart_s = float(np.abs(stepped.end_s - end_s).max())
    if stepped.steps != measured.steps or apart_s > _AGREE_S:
        measured.notes.append(
            f"bare loop: {stepped.steps} steps for the engine's {measured.steps}, ends up to {apart_s:.2g} s apart"
        )
    measured.bare_steps = stepped.steps
    return step


def _peer(
    setting: Setting, workload: Workload, measured: Measured, python: Path, folder: Path, stack: ExitStack
) -> bench_peer.Peer | None:
    """The mocker with this row's requests loaded, after checking that it completes them."""
    if setting.row.no_peer:
        return None
    _say("Dynamo")
    cluster, engine = setting.cluster, setting.engine
    capacity = kv_capacity_tokens(setting.model, cluster.pools[0].gpu, Parallelism(), engine.kv_fraction)
    try:
        job = bench_peer.job(workload, cluster, setting.model, engine, capacity // engine.block_tokens, folder)
        peer = stack.enter_context(bench_peer.peer(python, job))
        completed = peer.replay().completed
    except bench_peer.PeerError as error:
        measured.notes.append(f"Dynamo: {error}")
        return None
    if completed != len(workload):
        measured.notes.append(f"Dynamo: completed {completed} of {len(workload)} requests")
    return peer


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    gc.collect()
    begin_s = time.process_time()
    value = work()
    return value, time.process_time() - begin_s


def _peak_bytes() -> int:
    """Peak resident memory of this program; getrusage would include what the process was before."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _say(doing: str) -> None:
    print(json.dumps({"doing": doing}), flush=True)


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line describes and print it."""
    task, name, *rest = arguments
    if task == "first":
        done: Any = first(ROWS[name])
    else:
        done = asdict(measure(ROWS[name], int(rest[0]), Path(rest[1])))
    print(json.dumps({"done": done}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
