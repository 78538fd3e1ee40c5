"""One run: a workload through a policy on a cluster, to columns of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.codes import DONE, FAILED, FINISHED, LOG_FULL, OFF, PAUSED, REJECTED
from framework.engine.allocate import allocate
from framework.engine.binding import Binding
from framework.engine.config import EngineConfig
from framework.engine.inspect import MemoryInspection
from framework.engine.loop import run
from framework.engine.state import STEP_LOG, TOKEN_LOG, Memory
from framework.errors import InputError, InvariantError
from framework.metrics.token_gaps import GapReducer
from framework.policy.base import Policy, lay_out
from framework.policy.predictor import Predictions, Predictor
from framework.policy.view import Cluster
from framework.result import OUTCOME, Result
from framework.system.cluster import ClusterSpec
from framework.system.model import Model
from framework.timing.table import Timing
from framework.workload import Load, Open, Workload

_EVENTS_BETWEEN_REPORTS = 200_000

_ENDS = {FINISHED: 1, REJECTED: 2, FAILED: 3}


def simulate(
    workload: Workload,
    cluster: ClusterSpec,
    model: Model,
    timing: Timing,
    engine: EngineConfig | None = None,
    policy: Policy | None = None,
    predictor: Predictor | None = None,
    load: Load | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Replay the workload until every request has ended.

    Without `engine`, `policy` and `load` their defaults hold; a policy and a predictor serve one run each.
    `progress(ended, total)` is called now and then. Raises InputError where the parts do not fit together, PolicyError
    for what a policy returned, and whatever a policy raised.
    """
    engine = EngineConfig() if engine is None else engine
    load = Open() if load is None else load
    policy = Policy() if policy is None else policy
    for part in (policy, predictor):
        _claim(part)
    spec = lay_out(policy, cluster)
    memory = allocate(workload, spec, model, timing, engine, load, seed)
    inspection = MemoryInspection(memory)
    if predictor is not None:
        predictor.prepare(workload, seed)
    predictions = Predictions(predictor, workload, lambda: inspection.finished)
    binding = Binding(policy, Cluster(inspection, spec, predictions), memory)
    log = _FullLog() if engine.log == "full" else _ReducedLog(workload, len(memory.instances))
    logged = _replay(inspection, binding, log, progress or _silent)
    _end_off_time(memory)
    return Result(
        workload=workload,
        cluster=spec,
        model=model,
        engine=engine,
        policy=policy.name,
        predictor="none" if predictor is None else predictor.name,
        timing_source=timing.source,
        load=load.name,
        seed=seed,
        reasons=binding.reasons,
        events=int(memory.sim["events"][0]),
        steps=int(memory.sim["steps"][0]),
        requests=_outcomes(memory, predictions),
        instances=memory.instances,
        tiers=memory.tiers,
        **logged,
    )


def _silent(ended: int, total: int) -> None:
    pass


def _claim(part: Policy | Predictor | None) -> None:
    """A policy or predictor keeps counters of its run: another run needs another object."""
    if part is not None:
        if "_claimed" in vars(part):
            raise InputError(f"{type(part).__name__} has served a run already; make a new one for the next")
        vars(part)["_claimed"] = True


class _FullLog:
    """Keeps the whole step log."""

    def __init__(self) -> None:
        self._steps: list[NDArray[np.uint8]] = []
        self._tokens: list[NDArray[np.uint8]] = []

    def add(self, step_log: NDArray[np.void], token_log: NDArray[np.void], keep_from_step: NDArray[np.int64]) -> None:
        self._steps.append(step_log.view(np.uint8).copy())  # bytes: numpy copies records field by field
        self._tokens.append(token_log.view(np.uint8).copy())

    def finish(self, step_log: NDArray[np.void], token_log: NDArray[np.void]) -> dict[str, Any]:
        """The parts of a Result that come from the log; these last rows are the caller's no more."""
        return {
            "step_log": _joined([*self._steps, step_log.view(np.uint8)]).view(STEP_LOG),
            "token_log": _joined([*self._tokens, token_log.view(np.uint8)]).view(TOKEN_LOG),
        }


def _joined(parts: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class _ReducedLog:
    """Reduces the step log to token gaps as it is made, for runs too long to keep it."""

    def __init__(self, workload: Workload, instances: int) -> None:
        self._reducer = GapReducer(workload.output_tokens, instances)
        self._instances = instances

    def add(self, step_log: NDArray[np.void], token_log: NDArray[np.void], keep_from_step: NDArray[np.int64]) -> None:
        self._reducer.add(step_log, token_log, keep_from_step)

    def finish(self, step_log: NDArray[np.void], token_log: NDArray[np.void]) -> dict[str, Any]:
        """The parts of a Result that come from the log."""
        self._reducer.add(step_log, token_log, np.full(self._instances, np.iinfo(np.int64).max))
        empty = {"step_log": np.zeros(0, STEP_LOG), "token_log": np.zeros(0, TOKEN_LOG)}
        return empty | {"gaps": self._reducer.finish()}


def _replay(
    inspection: MemoryInspection, binding: Binding, log: _FullLog | _ReducedLog, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Run the loop to the end, emptying the engine's log whenever it is full; what the log became."""
    memory = binding.memory
    sim, total = memory.sim, len(memory.requests)
    while True:
        status = run(memory, binding.view, binding.params, binding.numbers, _EVENTS_BETWEEN_REPORTS)
        rows = memory.step_log[: sim["step_rows"][0]], memory.token_log[: sim["token_rows"][0]]
        progress(total - int(sim["remaining"][0]), total)
        if status == DONE:
            return log.finish(*rows)
        if status == LOG_FULL:
            log.add(*rows, inspection.oldest_open_step())
            sim["step_rows"] = sim["token_rows"] = 0
        elif status != PAUSED:
            raise binding.error()


def _end_off_time(memory: Memory) -> None:
    """Count the time up to the end of the run for instances that are off then."""
    off = (memory.instances["draining_role"] == OFF) & (memory.instances["next_role"] == OFF)
    memory.instances["off_s"][off] += memory.sim["now_s"] - memory.instances["off_since_s"][off]


def _outcomes(memory: Memory, predictions: Predictions) -> NDArray[np.void]:
    requests = memory.requests
    outcomes = np.zeros(len(requests), OUTCOME)
    for name in OUTCOME.names or ():
        if name in (requests.dtype.names or ()):
            outcomes[name] = requests[name]
    outcomes["arrival_s"] -= memory.options["request_s"]  # the client's clock
    outcomes["state"] = 0
    for internal, end in _ENDS.items():
        outcomes["state"][requests["state"] == internal] = end
    if np.any(outcomes["state"] == 0):
        raise InvariantError("a run ended with requests that have not")
    outcomes["predicted_tokens"] = predictions.first_total
    return outcomes
