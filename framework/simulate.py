"""One run: a workload through a policy on a cluster, to columns of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.binding import Binding
from framework.cluster import ClusterSpec
from framework.engine.config import EngineConfig
from framework.engine.loop import run
from framework.engine.memory import allocate
from framework.engine.state import DONE, FAILED, FINISHED, LEAP, LOG_FULL, MEMBERSHIP, PAUSED, REJECTED, State
from framework.errors import InvariantError
from framework.hardware import Model
from framework.policy import Policy
from framework.predictor import Predictions, Predictor
from framework.timing.step import Timing
from framework.views import Cluster
from framework.workload import Workload

_EVENTS_BETWEEN_REPORTS = 200_000

OUTCOME = np.dtype(
    [
        ("state", "i1"),  # 0 pending, 1 finished, 2 rejected, 3 failed
        ("reason", "i2"),
        ("prefill_instance", "i4"),
        ("decode_instance", "i4"),
        ("arrival_s", "f8"),
        ("start_s", "f8"),
        ("prefill_end_s", "f8"),
        ("first_token_s", "f8"),
        ("transfer_end_s", "f8"),
        ("end_s", "f8"),
        ("emitted", "i8"),
        ("cached_tokens", "i8"),
        ("preemptions", "i4"),
        ("migrations", "i4"),
        ("predicted_tokens", "f8"),
    ]
)
_ENDS = {FINISHED: 1, REJECTED: 2, FAILED: 3}


@dataclass(frozen=True)
class Result:
    """What a run leaves behind, as arrays; `framework.metrics` turns it into numbers.

    `requests` (N,): OUTCOME, times in seconds, NaN where something never happened, -1 for no instance. `instances` (M,):
    totals. `leaps`: runs of equal steps, in the order of their ends. `memberships`: which decode steps of which
    instance gave a request its tokens; a row with instance -1 is a single gap of `previous_token_s` seconds.
    """

    workload: Workload
    cluster: ClusterSpec
    model: Model
    engine: EngineConfig
    policy: str
    predictor: str
    timing_source: str
    seed: int
    reasons: tuple[str, ...]
    events: int
    steps: int
    requests: NDArray[Any]
    instances: NDArray[Any]
    leaps: NDArray[Any]
    memberships: NDArray[Any]

    def check(self) -> None:
        """Raise InvariantError unless every invariant of a finished run holds."""
        from framework.invariants import check_result

        check_result(self)


def simulate(
    workload: Workload,
    cluster: ClusterSpec,
    model: Model,
    timing: Timing,
    engine: EngineConfig,
    policy: Policy,
    predictor: Predictor | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Replay the workload until every request has ended.

    `progress(ended, total)` is called now and then. Raises InputError where the parts do not fit together, PolicyError for what a
    policy returned, and whatever a policy raised.
    """
    spec = policy.layout(cluster)
    state, lists = allocate(workload, spec, model, timing, engine)
    if predictor is not None:
        predictor.prepare(workload, seed)
    predictions = Predictions(predictor, workload, lists.finished, state.sim)
    binding = Binding(policy, Cluster(state, lists, spec, predictions), state)
    leaps, memberships = _replay(state, binding, progress or _silent)
    result = Result(
        workload=workload,
        cluster=spec,
        model=model,
        engine=engine,
        policy=type(policy).__name__,
        predictor="none" if predictor is None else type(predictor).__name__,
        timing_source=timing.source,
        seed=seed,
        reasons=tuple(binding.reasons),
        events=int(state.sim["events"][0]),
        steps=int(state.sim["steps"][0]),
        requests=_outcomes(state, predictions),
        instances=state.instances,
        leaps=leaps,
        memberships=memberships,
    )
    return result


def _silent(ended: int, total: int) -> None:
    pass


def _replay(
    state: State, binding: Binding, progress: Callable[[int, int], None]
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Run the loop to the end; the logs it made, whole."""
    leaps: list[NDArray[np.void]] = []
    memberships: list[NDArray[np.void]] = []
    sim = state.sim
    total = int(sim["requests"][0])
    while True:
        status = run(
            state, *binding.functions, binding.view, binding.params, binding.state, _EVENTS_BETWEEN_REPORTS
        )
        if status in (LOG_FULL, DONE):
            leaps.append(state.leaps[: sim["leaps"][0]].copy())
            memberships.append(state.memberships[: sim["memberships"][0]].copy())
            sim["leaps"] = sim["memberships"] = 0
        progress(total - int(sim["remaining"][0]), total)
        if status == DONE:
            return np.concatenate(leaps or [np.zeros(0, LEAP)]), np.concatenate(memberships or [np.zeros(0, MEMBERSHIP)])
        if status not in (LOG_FULL, PAUSED):
            raise binding.error()


def _outcomes(state: State, predictions: Predictions) -> NDArray[np.void]:
    requests = state.requests
    outcomes = np.zeros(len(requests), OUTCOME)
    for name in OUTCOME.names or ():
        if name in (requests.dtype.names or ()):
            outcomes[name] = requests[name]
    outcomes["state"] = 0
    for internal, end in _ENDS.items():
        outcomes["state"][requests["state"] == internal] = end
    if np.any(outcomes["state"] == 0):
        raise InvariantError("a run ended with requests that have not")
    outcomes["predicted_tokens"] = predictions.first_total
    return outcomes
