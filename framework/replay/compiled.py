"""The compiled engine as `framework.replay.contract.Engine`: its memory, its loop, its log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.codes import (
    CANCELLED,
    DECIDES,
    DONE,
    FAILED,
    FAULT_DUE,
    FINISHED,
    GATEWAY,
    LOG_FULL,
    MARKED,
    OFF,
    PREFILL_STEP_END,
    REJECTED,
    REPORT,
    SPAN_DUE,
    UNSENT,
    YIELDED,
)
from framework.compiler.dispatchers import numba_config
from framework.engine.loop import run, run_plain
from framework.engine.memory.records import REQUEST, STEP_LOG, TOKEN_LOG
from framework.engine.memory.state import Memory
from framework.engine.roles.decisions import decide
from framework.engine.roles.faults import pass_fault
from framework.engine.roles.gateway import pass_look
from framework.engine.roles.reports import pass_report
from framework.engine.roles.spans import pass_span
from framework.engine.setup.allocate import allocate
from framework.engine.setup.binding import Binding, Front
from framework.engine.setup.config import Setting
from framework.engine.setup.inspect import MemoryInspection
from framework.engine.setup.reports import Reports
from framework.metrics.token_gaps import GapReducer
from framework.policy.base import Policy
from framework.policy.inspection import Inspection
from framework.policy.view import Cluster
from framework.replay.contract import Progress, Replayed
from framework.replay.lookups import InterpretedEngine
from framework.replay.pages import give_back
from framework.result import CRASHED, DROPPED, OUTCOME, Gaps, mark_of
from framework.system.faults import FaultEvent

_EVENTS_BETWEEN_REPORTS = 200_000

_ENDS = np.zeros(128, np.int8)  # states of results by the engine's states
_ENDS[[FINISHED, REJECTED, FAILED, CANCELLED, UNSENT]] = 1, 2, 3, 4, 5
_TOLD = [name for name in OUTCOME.names or () if name in (REQUEST.names or ())]
_ROWS_AT_ONCE = 4096  # requests that fit into the processor's cache
_WINDOWS, _GROWTH = 32, 4  # first room for the log, in windows, and the factor by which it grows
_Steps = Callable[[], NDArray[np.int64]]  # (M,)
_LARGE_BYTES = 1 << 27  # bytes of all requests from which on their memory is freed while outcomes are taken


class CompiledEngine:
    """One run in the memory of the compiled engine. Raises InputError if parts of the setting cannot be combined.

    `memory`: that of the run before its first event, if it is not `allocate(setting)`.
    """

    def __init__(self, setting: Setting, memory: Memory | None = None) -> None:
        self._memory = allocate(setting) if memory is None else memory
        self._faults = setting.engine.faults.schedule(setting.cluster).events
        self._present = MemoryInspection(self._memory)
        self.inspection: Inspection = self._present
        self._reports: Reports | None = None
        sharing = setting.engine.sharing
        if numba_config.DISABLE_JIT:  # compiled rules are then interpreted Python, and call it as such
            self._present.view = self._present.view._replace(
                engine=InterpretedEngine(self._present, sharing.slowdowns())
            )
        if setting.engine.views:
            self._reports = Reports(self._present, setting.engine.views)
            self.inspection = shown = self._reports.shown
            shown.view = shown.view._replace(engine=InterpretedEngine(shown, sharing.slowdowns()))
        reduced = setting.engine.log == "reduced"
        self._new_log: Callable[[Memory], _FullLog | _ReducedLog]
        self._new_log = partial(_ReducedLog, setting.workload.output_tokens) if reduced else _FullLog

    def replay(self, policy: Policy, cluster: Cluster, progress: Progress, marks_s: Sequence[float]) -> Replayed:
        """Run the loop to the end, emptying the engine's log whenever it is full. The inspection is invalid then."""
        memory = self._memory
        binding = self._bound(policy, cluster)
        begin_s = perf_counter()
        try:
            log, marks, faults = self._replayed(binding, progress, marks_s)
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
            marks=marks,
            crashes=np.array(faults.crashes, CRASHED),
            drops=np.concatenate([np.zeros(0, DROPPED), *faults.drops]),
            attempts=_attempts(memory),
            hung=memory.instances["hung"],
            gated_s=_gated_s(memory),
            reasons=binding.reasons,
            events=int(memory.sim["events"][0]),
            steps=int(memory.sim["steps"][0]),
            replay_s=replay_s,
            hooks_s=binding.hooks_s,
        )

    def _bound(self, policy: Policy, cluster: Cluster) -> Binding:
        """The policy, bound to the memory; the schedulers of instances see them as they are."""
        if self._reports is None:
            return Binding(policy, cluster, self._memory)
        fronts = dict.fromkeys(self._reports.hooks, Front(cluster, self._reports))
        return Binding(policy, cluster.seen_by(self._present), self._memory, fronts)

    def _replayed(
        self, binding: Binding, progress: Progress, marks_s: Sequence[float]
    ) -> tuple[_Log, tuple[NDArray[np.void], ...], FaultLog]:
        memory, log, faults = binding.memory, self._new_log(binding.memory), FaultLog(self._faults)
        sim, total = memory.sim, len(memory.requests)
        marks: list[NDArray[np.void]] = []
        while True:
            sim["mark_s"] = marks_s[len(marks)] if len(marks) < len(marks_s) else np.inf
            status = run_on(memory, binding, faults, self._reports)
            rows = int(sim["step_rows"][0]), int(sim["token_rows"][0])
            progress(total - int(sim["remaining"][0]), total)
            if status == DONE:
                return log.finish(*rows), tuple(marks), faults
            if status == LOG_FULL:
                log.add(*rows, self._present.oldest_open_step)
                memory = log.next(memory)
                sim["step_rows"] = sim["token_rows"] = 0
            elif status == MARKED:
                passed = [time_s for time_s in marks_s[len(marks) :] if time_s < sim["now_s"][0]]  # the next event's
                marks += [_mark(memory, time_s) for time_s in passed]
            elif status != YIELDED:
                raise binding.error()


def run_on(memory: Memory, binding: Binding, faults: FaultLog, reports: Reports | None) -> int:
    """Run until the engine stops for a reason other than a decision, a span, a report, a fault or the gateway."""
    words = binding.handed(memory)
    go_on = run_plain if binding.is_plain else run
    status = go_on(words, _EVENTS_BETWEEN_REPORTS)
    while status in (DECIDES, FAULT_DUE, SPAN_DUE):
        if status == DECIDES:
            status = decide(words)
        elif status == SPAN_DUE:
            status = pass_span(words)
        elif memory.sim["kind"][0] == GATEWAY:
            seen = reports if memory.options["goes_by_reports"][0] else None
            status = pass_look(words, binding.view if seen is None else seen.latest())
        elif reports is not None and memory.sim["kind"][0] == REPORT:
            status = pass_report(words)
            reports.take(int(memory.sim["id"][0]))
        else:
            status = pass_fault(words)
            faults.add(memory)
        if status == YIELDED:
            status = go_on(words, _EVENTS_BETWEEN_REPORTS)
    return status


def _attempts(memory: Memory) -> NDArray[np.int64]:
    """How often each request was sent, (N,); (0,) where clients do not give up."""
    at, count = memory.options["attempts_at"][0], len(memory.requests) * (memory.options["patience_s"][0] < np.inf)
    return memory.lists[at:][:count].copy()


def _gated_s(memory: Memory) -> NDArray[np.float64]:
    """Seconds that each request waited at the gateway, (N,); (0,) without one."""
    at, count = memory.options["gated_s_at"][0], len(memory.requests) * (memory.options["flows"][0] > 0)
    return memory.times[at:][:count].copy()


class FaultLog:
    """Crashes that have happened, and what they dropped."""

    def __init__(self, known: Sequence[FaultEvent]) -> None:
        self._known = known
        self.crashes: list[tuple[float, float, int, int, float]] = []
        self.drops: list[NDArray[np.void]] = []

    def add(self, memory: Memory) -> None:
        """Record the fault that has just been processed, if instances went down."""
        sim, options = memory.sim[0], memory.options[0]
        if sim["fell"] == 0:
            return
        fault = self._known[sim["next_fault"] - 1]
        dropped = np.zeros(sim["dropped"], DROPPED)
        listed = memory.lists[options["dropped_at"] :]
        dropped["crash"] = len(self.crashes)
        dropped["request"] = listed[: len(dropped)]
        dropped["lost_tokens"] = listed[options["requests"] :][: len(dropped)]
        dropped["recovery"] = listed[2 * options["requests"] :][: len(dropped)]
        self.crashes.append((fault.since_s, float(sim["back_s"]), fault.instance, int(sim["fell"]), fault.at_s))
        self.drops.append(dropped)


class _Log(NamedTuple):
    """What happens to the log's rows."""

    step_log: NDArray[np.void]
    token_log: NDArray[np.void]
    gaps: Gaps | None = None


class _FullLog:
    """Keeps the whole log."""

    def __init__(self, memory: Memory) -> None:
        self._steps, self._tokens = _Growing(memory.step_log), _Growing(memory.token_log)

    def add(self, step_rows: int, token_rows: int, oldest_open_step: _Steps) -> None:
        self._steps.keep(step_rows)
        self._tokens.keep(token_rows)

    def next(self, memory: Memory) -> Memory:
        """The memory with room for more rows."""
        return memory._replace(step_log=self._steps.window, token_log=self._tokens.window)

    def finish(self, step_rows: int, token_rows: int) -> _Log:
        """The whole log, with these last rows, which the engine no longer owns."""
        self._steps.keep(step_rows)
        self._tokens.keep(token_rows)
        return _Log(self._steps.rows, self._tokens.rows)


class _Growing:
    """The rows of a log. The engine fills a window at a time, which lies behind the other rows, so rows stay where they
    are written. Unwritten room takes no memory.
    """

    def __init__(self, window: NDArray[np.void]) -> None:
        self._room, self._kept, self._size = window, 0, len(window)

    @property
    def window(self) -> NDArray[np.void]:
        """The place of the next rows."""
        if self._kept + self._size > len(self._room):
            room = np.empty(max(_WINDOWS * self._size, _GROWTH * self._kept), self._room.dtype)
            room[: self._kept].view(np.uint8)[:] = self.rows.view(np.uint8)  # bytes: numpy copies records by fields
            self._room = room
        return self._room[self._kept :][: self._size]

    def keep(self, rows: int) -> None:
        """Keep `rows` rows of the window, which are written."""
        self._kept += rows

    @property
    def rows(self) -> NDArray[np.void]:
        """All rows that are written."""
        return self._room[: self._kept]


class _ReducedLog:
    """Reduces the step log to token gaps during the run, for runs too long to keep it."""

    def __init__(self, output_tokens: NDArray[np.int64], memory: Memory) -> None:
        self._memory = memory
        self._reducer = GapReducer(output_tokens, len(memory.instances))

    def add(self, step_rows: int, token_rows: int, oldest_open_step: _Steps) -> None:
        leaps, memberships = self._memory.step_log[:step_rows], self._memory.token_log[:token_rows]
        self._reducer.add(leaps, memberships, oldest_open_step())

    def next(self, memory: Memory) -> Memory:
        """The log in the same memory: reduced rows are overwritten."""
        return memory

    def finish(self, step_rows: int, token_rows: int) -> _Log:
        """An empty log, and the gaps."""
        self.add(step_rows, token_rows, lambda: np.full(len(self._memory.instances), np.iinfo(np.int64).max))
        return _Log(np.zeros(0, STEP_LOG), np.zeros(0, TOKEN_LOG), self._reducer.finish())


def _mark(memory: Memory, time_s: float) -> NDArray[np.void]:
    """The totals as of a time after which nothing has happened yet."""
    now, leaves = memory.instances, int(memory.options["tree_leaves"][0])
    streams = np.isfinite(memory.times[PREFILL_STEP_END * leaves :][: len(now)])
    stepping_s = np.where(now["busy"], memory.step["start_s"], time_s)
    mark = mark_of(now, np.minimum(stepping_s, np.where(streams, memory.prefill_step["start_s"], time_s)))
    mark["busy_s"] += np.where(now["busy"] | streams, time_s - now["counted_s"], 0.0)
    mark["kv_block_s"] += (now["total_blocks"] - now["free_blocks"] - now["evictable_blocks"]) * time_s
    return mark


def _end_off_time(memory: Memory) -> None:
    """Count the time up to the end of the run for instances that are off then."""
    instances = memory.instances
    off = (instances["draining_role"] == OFF) & (instances["next_role"] == OFF) & ~instances["down"]
    instances["off_s"][off] += memory.sim["now_s"] - instances["off_since_s"][off]


def _outcomes(memory: Memory) -> NDArray[np.void]:
    requests = memory.requests
    outcomes = np.empty(len(requests), OUTCOME)  # The system would make zeros of small pages, which takes longer.
    for first in range(0, len(requests), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        _fill(outcomes[part], requests[part])
        if requests.nbytes > _LARGE_BYTES:
            give_back(requests[part])
    outcomes["arrival_s"] -= memory.options["request_s"]  # the client's clock
    return outcomes


def _fill(outcomes: NDArray[np.void], requests: NDArray[np.void]) -> None:
    """Write all of these outcomes except predictions."""
    outcomes.view(np.uint8)[:] = 0  # bytes between fields too
    for name in _TOLD:
        outcomes[name] = requests[name]
    outcomes["state"] = _ENDS[requests["state"]]
