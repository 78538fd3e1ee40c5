"""The reference engine as `framework.replay.contract.Engine`: its simulation, its loop, its result as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from framework.engine.memory.records import STEP_LOG, TOKEN_LOG, record
from framework.engine.setup.config import Setting
from framework.errors import InputError
from framework.policy.base import Policy
from framework.policy.inspection import Inspection
from framework.policy.reports import Reported
from framework.policy.view import Cluster
from framework.reference.hooks.base import Hooks
from framework.reference.hooks.of_policy import PolicyHooks
from framework.reference.inspection import ReferenceInspection
from framework.reference.loop import run
from framework.reference.setup import options, shown_tables, specs, step_time
from framework.reference.simulation import Simulation
from framework.replay.contract import Progress, Replayed
from framework.replay.lookups import InterpretedEngine
from framework.result import CRASHED, DROPPED, MARK, OUTCOME

MOST_REQUESTS = 20_000

_TIER = record(("capacity", "i8"), ("count", "i8"), ("hit_tokens", "i8"), ("loaded_bytes", "f8"))
_IN_OBJECTS = ("reason", "arrival_s", "predicted_tokens")  # columns that are no field of a request


class ReferenceEngine:
    """One run in ordinary objects. Raises InputError if parts of the setting cannot be combined, or if the run is too
    long.
    """

    def __init__(self, setting: Setting) -> None:
        if len(setting.workload) > MOST_REQUESTS:
            raise InputError(
                f"engine.implementation=reference is slow, and takes {MOST_REQUESTS} requests at most, not "
                f"{len(setting.workload)}; set trace.limit, or engine.implementation=compiled"
            )
        what_holds = options(setting)
        self._simulation = Simulation(setting.workload, specs(setting), what_holds, step_time(setting), Hooks())
        bytes_per_token = what_holds.copy_bytes_per_token
        assert bytes_per_token is not None
        self._present = ReferenceInspection(self._simulation, shown_tables(setting), bytes_per_token)
        slowdowns = setting.engine.sharing.slowdowns()
        self._present.view = self._present.view._replace(engine=InterpretedEngine(self._present, slowdowns))
        self.inspection: Inspection = self._present
        self._shown: Reported | None = None
        if setting.engine.views:
            self.inspection = self._shown = shown = Reported(self._present)
            shown.view = shown.view._replace(engine=InterpretedEngine(shown, slowdowns))

    def replay(self, policy: Policy, cluster: Cluster, progress: Progress, marks_s: Sequence[float]) -> Replayed:
        """Run event by event to the end."""
        s = self._simulation
        hooks = PolicyHooks(policy, cluster, self._present, self._shown, s.options)
        s.hooks = hooks
        s.marks_s = marks_s
        run(s, progress)
        self._present.refresh()
        self._present.instances["off_s"] = [i.off_s_at(s.now_s) for i in s.instances]
        steps = [
            (start, first, 0.0, step0, context, i, 1, *rest) for start, first, step0, context, i, *rest in s.step_log
        ]
        return Replayed(
            requests=_outcomes(s, hooks.reasons),
            instances=self._present.instances,
            tiers=_tiers(s),
            step_log=np.array(steps, STEP_LOG),
            token_log=np.array(s.token_log, TOKEN_LOG),
            gaps=None,
            crashes=np.array(s.crash_log, CRASHED),
            drops=np.array(s.drops, DROPPED),
            marks=tuple(_mark(rows) for rows in s.marks),
            attempts=np.array([r.attempts for r in s.requests if s.options.patience_s < math.inf], np.int64),
            hung=np.array([i.hung for i in s.instances], np.bool_),
            gated_s=np.array([r.gated_s for r in s.requests if s.gate is not None], np.float64),
            reasons=hooks.reasons,
            events=len(s.order),
            steps=len(s.step_log),
        )


def _mark(rows: list[dict[str, float]]) -> NDArray[np.void]:
    return np.array([tuple(row[name] for name in MARK.names or ()) for row in rows], MARK)


def _outcomes(s: Simulation, reasons: tuple[str, ...]) -> NDArray[np.void]:
    outcomes = np.zeros(len(s.requests), OUTCOME)
    for name in OUTCOME.names or ():
        if name not in _IN_OBJECTS:
            outcomes[name] = [getattr(r, name) for r in s.requests]
    outcomes["reason"] = [reasons.index(r.reason) for r in s.requests]
    outcomes["arrival_s"] = [r.arrival_s for r in s.requests]
    outcomes["arrival_s"] -= s.options.request_s  # the client's clock
    return outcomes


def _tiers(s: Simulation) -> NDArray[np.void]:
    rows = [
        (store.capacity, len(store.ids), hit_tokens, loaded_bytes)
        for i in s.instances
        for store, hit_tokens, loaded_bytes in zip(i.stores, i.hit_tokens, i.loaded_bytes, strict=True)
    ]
    return np.array(rows, _TIER)
