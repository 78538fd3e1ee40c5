"""The same runs through another scheduler and through the simulator: every token's time; `policy=vllm_v1`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from framework.engine.durations.speculation import Speculation
from framework.engine.setup.config import EngineConfig, Implementation
from framework.metrics.invariants import check_result
from framework.policy import Cancel
from framework.policy.view import Cluster
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from policies.vllm_v1 import VllmV1
from tests.helpers.bounds import server
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL
from tests.oracle.drawing import ACCEPTANCE, CANCEL_TICK_S, Run

R = TypeVar("R", bound=Run)

TOLERANCE_S = 1e-8
VARIABLE = "VLLM_PYTHON"  # names the interpreter of an environment that has vLLM
PROGRAM = Path(__file__).with_name("vllm_scheduler.py")


def interpreter(variable: str = VARIABLE) -> str | None:
    """The Python that has the other scheduler, None where there is none."""
    return os.environ.get(variable)


class Oracle:
    """Another scheduler in a process of its own, which answers one run after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._questions: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout

    def play(self, run: Run) -> dict[str, Any]:
        """What became of a run. Raises RuntimeError where the process has ended."""
        self._questions.write(json.dumps(run.as_json()) + "\n")
        self._questions.flush()
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError("the other scheduler gave no answer; its messages are above")
        return dict(json.loads(answer))


@contextmanager
def oracle(python: str, program: Path = PROGRAM) -> Iterator[Oracle]:
    """The scheduler that a program drives under that interpreter, for as long as the context lasts."""
    with subprocess.Popen([python, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Oracle(process)
        assert process.stdin is not None
        process.stdin.close()


def simulated(run: Run, implementation: Implementation = "compiled") -> Result:
    """The run by one of the engines."""
    engine = EngineConfig(
        token_budget=run.token_budget,
        max_batch=run.max_batch,
        block_tokens=run.block_tokens,
        kv_tokens=run.blocks * run.block_tokens,
        kv_fraction=1.0,
        prefix_cache=run.prefix_cache,
        prefix_unit="engine",
        victim="least_urgent" if run.priorities else "latest",
        step_order="admission",
        longest_chunk=run.long_prefill_tokens or None,
        chunked_prefill=run.chunked,
        admission_room="prompt" if run.reserve_whole_prompt else "chunk",
        watermark=_watermark(run),
        idle_watermark=False,
        asynchronous=run.asynchronous,
        speculation=Speculation(run.drafts, ACCEPTANCE, draft_cost=0.0) if run.drafts else Speculation(),
        implementation=implementation,
    )
    model = replace(MODEL, max_context=200_000)
    cluster = ClusterSpec((PoolSpec("all", "mixed", 1, server("gpu", 1000)),), LinkSpec(1.0))
    policy = _GivenUp(run) if run.gives_up else VllmV1(order=_order(run))
    result = simulate(run.workload(), cluster, model, run.times, engine, policy)
    check_result(result)
    return result


def _order(run: Run) -> str:
    return "highest_priority" if run.priorities else "fcfs"


class _GivenUp(VllmV1):
    """The same, with clients that give up: a request is cancelled at its time."""

    tick_s = CANCEL_TICK_S

    def __init__(self, run: Run) -> None:
        super().__init__(order=_order(run))
        self._times = [np.inf if r.cancel_s is None else r.cancel_s for r in run.requests]

    def on_tick(self, cluster: Cluster) -> list[Cancel]:
        return [Cancel(k, "client") for k, time_s in enumerate(self._times) if time_s == cluster.now_s]


def _watermark(run: Run) -> float:
    """The share of our blocks that keeps as many free as theirs, of which there is one more, the null block."""
    kept = int(run.watermark * (run.blocks + 1))
    return (kept + 0.5) / run.blocks if kept else 0.0


@dataclass(frozen=True)
class Verdict:
    """How far the token times of a run lie apart at most, and preemptions on both sides."""

    worst_s: float
    where: str  # the first token that lies further apart than TOLERANCE_S
    preemptions: tuple[int, int]

    @property
    def equal(self) -> bool:
        return not self.where


def compared(run: Run, theirs: dict[str, Any]) -> Verdict:
    """Our times of a run against theirs."""
    return verdict_of(simulated(run), theirs)


def verdict_of(result: Result, theirs: dict[str, Any]) -> Verdict:
    """The times of a result against theirs."""
    preemptions = int(result.requests["preemptions"].sum()), sum(theirs["preemptions"])
    apart = list(_apart(token_times(result), theirs["tokens"]))
    far = [entry for entry in apart if not entry[0] <= TOLERANCE_S]
    where = ""
    if far:
        _, r, k, ours_s, theirs_s = min(far, key=lambda entry: min(entry[3], entry[4]))
        where = f"token {k} of request {r}: {ours_s:.9g} s here, {theirs_s:.9g} s there"
    return Verdict(max((entry[0] for entry in apart), default=0.0), where, preemptions)


def differing(
    theirs: Oracle, drawn: Callable[[int], R], compared: Callable[[R, Any], Verdict], seeds: range
) -> list[str]:
    """Of the runs of these seeds those whose tokens or preemptions are not theirs, with what differs first."""
    lines = []
    for seed in seeds:
        run = drawn(seed)
        verdict = compared(run, theirs.play(run))
        here, there = verdict.preemptions
        if not verdict.equal or here != there:
            lines.append(f"{seed} ({', '.join(run.regimes)}): {verdict.where}; preemptions {here} here, {there} there")
    return lines


def _apart(ours: list[list[float]], theirs: list[list[float]]) -> Iterable[tuple[float, int, int, float, float]]:
    """Seconds between the two times of each token; request, token, and both times."""
    for r, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for k in range(max(len(mine), len(other))):
            a = mine[k] if k < len(mine) else float("inf")
            b = other[k] if k < len(other) else float("inf")
            yield (0.0 if a == b else abs(a - b)), r, k, a, b
