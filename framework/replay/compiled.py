"""The compiled engine as `framework.replay.contract.Engine`: its memory, its loop, and what becomes of its log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.codes import DONE, FAILED, FINISHED, LOG_FULL, OFF, REJECTED, YIELDED
from framework.compiler.dispatchers import numba_config
from framework.engine.allocate import allocate
from framework.engine.binding import Binding
from framework.engine.config import Setting
from framework.engine.inspect import MemoryInspection
from framework.engine.loop import run
from framework.engine.records import REQUEST, STEP_LOG, TOKEN_LOG
from framework.engine.state import Memory
from framework.metrics.token_gaps import GapReducer
from framework.policy.base import Policy
from framework.policy.view import Cluster
from framework.replay.contract import Progress, Replayed
from framework.replay.lookups import PlainEngine
from framework.replay.pages import give_back
from framework.result import OUTCOME, Gaps
from framework.workload import Workload

_EVENTS_BETWEEN_REPORTS = 200_000

_ENDS = np.zeros(128, np.int8)  # by the engine's states, those of results
_ENDS[[FINISHED, REJECTED, FAILED]] = 1, 2, 3
_TOLD = [name for name in OUTCOME.names or () if name in (REQUEST.names or ())]
_ROWS_AT_ONCE = 4096  # requests, which the processor's cache holds
_LARGE_BYTES = 1 << 28  # of all requests, from which on their memory is given back as their outcomes are taken


class CompiledEngine:
    """One run in the memory of the compiled engine. Raises InputError where the parts of the setting do not fit."""

    def __init__(self, setting: Setting) -> None:
        workload = setting.workload
        self._memory = allocate(
            workload, setting.cluster, setting.model, setting.timing, setting.engine, setting.load, setting.seed
        )
        self.inspection = MemoryInspection(self._memory)
        if numba_config.DISABLE_JIT:  # compiled rules are plain Python then, and ask as such
            plain = PlainEngine(self.inspection, setting.engine.sharing.slowdowns())
            self.inspection.view = self.inspection.view._replace(engine=plain)
        instances = len(self._memory.instances)
        reduced = setting.engine.log == "reduced"
        self._new_log: Callable[[], _FullLog | _ReducedLog]
        self._new_log = partial(_ReducedLog, workload, instances) if reduced else _FullLog

    def replay(self, policy: Policy, cluster: Cluster, progress: Progress) -> Replayed:
        """Run the loop to the end, emptying the engine's log whenever it is full. The inspection tells nothing then."""
        memory = self._memory
        binding = Binding(policy, cluster, memory)
        begin_s = perf_counter()
        try:
            log = self._replayed(binding, progress)
        finally:
            binding.let_go()
        replay_s = perf_counter() - begin_s
        _end_off_time(memory)
        return Replayed(
            requests=_outcomes(memory),
            instances=memory.instances,
            tiers=memory.tiers,
            step_log=log.step_log,
            token_log=log.token_log,
            gaps=log.gaps,
            reasons=binding.reasons,
            events=int(memory.sim["events"][0]),
            steps=int(memory.sim["steps"][0]),
            replay_s=replay_s,
            hooks_s=binding.hooks_s,
        )

    def _replayed(self, binding: Binding, progress: Progress) -> _Log:
        memory, log = binding.memory, self._new_log()
        sim, total = memory.sim, len(memory.requests)
        while True:
            status = run(memory, binding.view, binding.params, binding.numbers, _EVENTS_BETWEEN_REPORTS)
            rows = memory.step_log[: sim["step_rows"][0]], memory.token_log[: sim["token_rows"][0]]
            progress(total - int(sim["remaining"][0]), total)
            if status == DONE:
                return log.finish(*rows)
            if status == LOG_FULL:
                log.add(*rows, self.inspection.oldest_open_step())
                sim["step_rows"] = sim["token_rows"] = 0
            elif status != YIELDED:
                raise binding.error()


class _Log(NamedTuple):
    """What became of the log."""

    step_log: NDArray[np.void]
    token_log: NDArray[np.void]
    gaps: Gaps | None = None


class _FullLog:
    """Keeps the whole step log."""

    def __init__(self) -> None:
        self._steps: list[NDArray[np.uint8]] = []
        self._tokens: list[NDArray[np.uint8]] = []

    def add(self, step_log: NDArray[np.void], token_log: NDArray[np.void], keep_from_step: NDArray[np.int64]) -> None:
        self._steps.append(step_log.view(np.uint8).copy())  # bytes: numpy copies records field by field
        self._tokens.append(token_log.view(np.uint8).copy())

    def finish(self, step_log: NDArray[np.void], token_log: NDArray[np.void]) -> _Log:
        """The whole log; these last rows are the caller's no more."""
        steps = _joined([*self._steps, step_log.view(np.uint8)]).view(STEP_LOG)
        return _Log(steps, _joined([*self._tokens, token_log.view(np.uint8)]).view(TOKEN_LOG))


def _joined(parts: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class _ReducedLog:
    """Reduces the step log to token gaps as it is made, for runs too long to keep it."""

    def __init__(self, workload: Workload, instances: int) -> None:
        self._reducer = GapReducer(workload.output_tokens, instances)
        self._instances = instances

    def add(self, step_log: NDArray[np.void], token_log: NDArray[np.void], keep_from_step: NDArray[np.int64]) -> None:
        self._reducer.add(step_log, token_log, keep_from_step)

    def finish(self, step_log: NDArray[np.void], token_log: NDArray[np.void]) -> _Log:
        """An empty log, and the gaps."""
        self._reducer.add(step_log, token_log, np.full(self._instances, np.iinfo(np.int64).max))
        return _Log(np.zeros(0, STEP_LOG), np.zeros(0, TOKEN_LOG), self._reducer.finish())


def _end_off_time(memory: Memory) -> None:
    """Count the time up to the end of the run for instances that are off then."""
    off = (memory.instances["draining_role"] == OFF) & (memory.instances["next_role"] == OFF)
    memory.instances["off_s"][off] += memory.sim["now_s"] - memory.instances["off_since_s"][off]


def _outcomes(memory: Memory) -> NDArray[np.void]:
    requests = memory.requests
    outcomes = np.empty(len(requests), OUTCOME)  # of zeros the system would make small pages, which take longer
    for first in range(0, len(requests), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        _fill(outcomes[part], requests[part])
        if requests.nbytes > _LARGE_BYTES:
            give_back(requests[part])
    outcomes["arrival_s"] -= memory.options["request_s"]  # the client's clock
    return outcomes


def _fill(outcomes: NDArray[np.void], requests: NDArray[np.void]) -> None:
    """Write all of these outcomes but what was predicted."""
    outcomes.view(np.uint8)[:] = 0  # between fields too
    for name in _TOLD:
        outcomes[name] = requests[name]
    outcomes["state"] = _ENDS[requests["state"]]
