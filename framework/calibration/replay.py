"""The requests of a measured benchmark, sent again to the simulated server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.calibration.benchmark_files import Benchmark
from framework.checks import require_choice
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.load import Closed, Load, Open
from framework.policy.base import Policy
from framework.policy.predictor import Predictor
from framework.result import FINISHED, Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec
from framework.system.model import Model
from framework.timing.calibration_terms import Calibration
from framework.timing.server import Server
from framework.timing.table import Timing
from framework.workload import Workload, consecutive

Floats = NDArray[np.float64]
LOADS = ("recorded", "closed", "drawn")


@dataclass(frozen=True)
class Deployment:
    """The simulated server. `timing` makes its step times under a calibration, `policy` a policy for each replay.

    `server` is the software that is assumed to run it, and `predictor` makes a predictor for each replay.
    """

    model: Model
    cluster: ClusterSpec
    engine: EngineConfig
    timing: Callable[[Calibration], Timing]
    policy: Callable[[], Policy]
    server: Server = field(default_factory=Server)
    predictor: Callable[[], Predictor | None] = lambda: None


@dataclass(frozen=True)
class Sent:
    """The requests of a benchmark, to be sent again by `load`; `by` is its name in LOADS."""

    workload: Workload
    load: Load
    by: str


@dataclass(frozen=True)
class Served:
    """The times of N requests in seconds, each of shape (N,), in the order of their sending.

    `ttft_s` runs from sending to the first token; `tpot_s` is the mean gap after it, NaN for a single token; `e2e_s`
    runs from sending to the last token. `duration_s` runs from the first sending to the last token, None if it is
    unknown. `extrapolated` is the share of the busy time in steps beyond the measured ones.
    """

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    duration_s: float | None
    extrapolated: float = 0.0


class UnservedError(InputError):
    """The simulated server refuses `unserved` requests, all of which the real one served."""

    def __init__(self, reason: str, unserved: int) -> None:
        super().__init__(reason)
        self.unserved = unserved


def measured(benchmark: Benchmark) -> Served:
    """The times that the benchmark measured."""
    duration_s = benchmark.duration_s
    if duration_s is None and benchmark.start_s is not None:
        duration_s = float((benchmark.start_s + benchmark.e2e_s).max())
    return Served(benchmark.ttft_s, benchmark.tpot_s, benchmark.e2e_s, duration_s)


def load_of(benchmark: Benchmark) -> str:
    """The kind of load that replays the requests, one of LOADS, from the benchmark's own statements.

    This is "recorded" if it states when each was sent, "closed" if a client kept a fixed number in flight, else
    "drawn", from the client's distribution of gaps. Recorded times come first for a closed loop too: they tie the
    replay to the measurement, so a fit scatters less. They make a server that is simulated too slow look worse than it
    is, since it falls behind a client that would have waited. Raises InputError if nothing is known.
    """
    if benchmark.start_s is not None:
        return "recorded"
    if benchmark.concurrency is not None:
        return "closed"
    if benchmark.rate is not None:
        return "drawn"
    raise InputError(
        f"{benchmark.name}: it does not say when requests were sent; give start_s in the file, or concurrency=N or"
        " rate=REQUESTS_PER_S"
    )


def sent_again(benchmark: Benchmark, by: str, seed: int = 0) -> Sent:
    """The requests, to be sent by `by` (one of LOADS); `seed` is that of drawn sending times.

    Raises InputError if the benchmark lacks what that needs.
    """
    require_choice("load", by, LOADS)
    load: Load = Open()
    arrival_s, notes = np.zeros(len(benchmark)), benchmark.notes
    if by == "closed":
        if benchmark.concurrency is None:
            raise InputError(f"{benchmark.name}: no number of requests in flight; give concurrency=N")
        load = Closed(benchmark.concurrency)
    elif by == "recorded":
        if benchmark.start_s is None:
            raise InputError(f"{benchmark.name}: it does not say when requests were sent; load=recorded needs that")
        arrival_s = benchmark.start_s
    else:
        arrival_s, note = _drawn_s(benchmark, seed)
        notes += (note,)
    workload = Workload(
        arrival_s=arrival_s,
        input_tokens=benchmark.input_tokens,
        output_tokens=benchmark.output_tokens,
        **_prefixes(benchmark),
        name=benchmark.name,
        source="real",
        sha256=benchmark.sha256,
        notes=notes,
    )
    return Sent(workload, load, by)


def _prefixes(benchmark: Benchmark) -> dict[str, Any]:
    """The blocks of the benchmark's prompts, as columns of a workload."""
    if benchmark.hash_ids is None:
        return {}
    lengths = [len(ids) for ids in benchmark.hash_ids]
    return {
        "hash_ids": np.asarray([name for ids in benchmark.hash_ids for name in ids], np.int64),
        "hash_spans": consecutive(lengths),
        "hash_block_tokens": benchmark.hash_block_tokens,
    }


def _drawn_s(benchmark: Benchmark, seed: int) -> tuple[Floats, str]:
    """Sending times, (N,), from gamma-distributed gaps scaled to the rate, as the benchmark's client draws them."""
    count, rate, shape = len(benchmark), benchmark.rate, benchmark.burstiness
    if rate is None:
        raise InputError(f"{benchmark.name}: no rate at which requests were sent; give rate=REQUESTS_PER_S")
    if np.isinf(rate):
        return np.zeros(count), "all requests sent at once, as the benchmark's client did"
    if np.isinf(shape):
        return np.arange(count) / rate, "requests sent at equal distances, as the benchmark's client did"
    gaps = np.random.default_rng(seed).gamma(shape, size=count)
    arrival_s = np.cumsum(gaps) * (count / rate / gaps.sum())
    return arrival_s, f"sending times are not recorded: drawn anew at {rate:g} requests/s, seed {seed}"


def replay(sent: Sent, deployment: Deployment, calibration: Calibration) -> Served:
    """The times of the requests on the simulated server. Raises UnservedError if it does not serve them all."""
    result = simulate(
        sent.workload,
        deployment.cluster,
        deployment.model,
        deployment.timing(calibration),
        engine=deployment.engine,
        policy=deployment.policy(),
        predictor=deployment.predictor(),
        load=sent.load,
    )
    _refuse_unserved(result)
    requests, later_tokens = result.requests, sent.workload.output_tokens - 1
    tpot_s = np.full(len(requests), np.nan)
    np.divide(requests["end_s"] - requests["first_token_s"], later_tokens, out=tpot_s, where=later_tokens > 0)
    return Served(
        ttft_s=requests["first_token_s"] - requests["arrival_s"],
        tpot_s=tpot_s,
        e2e_s=requests["end_s"] - requests["arrival_s"],
        duration_s=float(requests["end_s"].max() - requests["arrival_s"].min()),
        extrapolated=result.extrapolated,
    )


def _refuse_unserved(result: Result) -> None:
    unserved = np.flatnonzero(result.requests["state"] != FINISHED)
    if len(unserved):
        first = unserved[0]
        workload = result.workload
        raise UnservedError(
            f"{workload.name}: the simulated server refuses {len(unserved)} of {len(workload)} requests that the real"
            f" one served (the first: {workload.input_tokens[first]} + {workload.output_tokens[first]} tokens, reason"
            f" {result.reasons[result.requests['reason'][first]]}); check model, gpu, tp and engine options",
            len(unserved),
        )
