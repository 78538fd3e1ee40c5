"""What a policy decides about requests that already run: it preempts, resumes and cancels them.

The loop comes back for a decision, and Python calls `decide`. So a run without decisions neither compiles nor pays for
any of this.
"""

from __future__ import annotations

import numba
import numpy as np

from framework.codes import (
    CANCEL,
    CANCELLED,
    DECODING,
    FAILED,
    FETCHING,
    FINISHED,
    FUTURE,
    JOINING,
    PARKED,
    PAUSED,
    PREEMPT,
    PREFILL,
    PREFILLING,
    REASON_KV,
    RESUME,
    SUSPENDED,
    SWAPPED,
    TICK,
    WAITING,
    YIELDED,
)
from framework.compiler.decorators import entry, inner, unlikely
from framework.compiler.fields import fields_on_stack
from framework.engine.copies.link_sharing import share_links, withdraw_copy
from framework.engine.copies.transfers import start_transfers
from framework.engine.durations.leap import catch_up
from framework.engine.events.ask import ask, ask_route, is_asked, keep_seen
from framework.engine.events.order import wake
from framework.engine.memory.attach import FLOATS, VIEW, attach
from framework.engine.memory.kv_blocks import fits
from framework.engine.memory.state import Memory, State, sample_memory
from framework.engine.requests.arrivals import take_place
from framework.engine.requests.lifecycle import end_request, join_queue, recomputes_here
from framework.engine.requests.parking import leave_parked, park
from framework.engine.requests.preemption import evict
from framework.engine.roles.actions import carry_out_for_instance
from framework.engine.roles.leaving import leave_before_joining, leave_on_the_way, leave_queue, leave_swapped
from framework.policy.hooks import DECIDE, ON_TICK, RAISED, ROUTE_PREFILL
from framework.policy.inspection import View


@entry(numba.types.int64(numba.typeof(sample_memory()), VIEW, FLOATS, FLOATS))
def decide(memory: Memory, view: View, params: np.ndarray, numbers: np.ndarray) -> int:
    """Carry out what is left of a tick's actions, or let the policy decide before an instance schedules.

    YIELDED, or an error of a hook; the arguments are those of `engine.loop.run`.
    """
    return _decide(fields_on_stack(attach(memory, keep_seen((view, params, numbers)))))


@inner
def _decide(s: State) -> int:
    if s.sim.kind == TICK:
        first, count = s.sim.first_action, s.sim.actions
        s.sim.actions = 0
        _carry_out(s, ON_TICK, first, count, 0, 0)
    else:
        _decide_before(s, s.sim.id)
    if s.sim.changed_links > 0:
        share_links(s)
    return int(s.error.status) if s.error.status != 0 else YIELDED


@inner
def _decide_before(s: State, i: int) -> None:
    """i, and those that step with it, are about to schedule: what was postponed comes first, then their questions."""
    inst = s.instances[i]
    first, count = i, 1
    if unlikely(inst.group > 0):
        first, count = inst.group_first, inst.group
    s.sim.scheduled = max(s.sim.scheduled, i - 1)  # so have those before it, where they leap
    catch_up(s)
    _carry_out_postponed(s, first, count)
    for k in range(first, first + count):
        if s.instances[k].changed and not s.instances[k].asked and s.error.status == 0:
            s.instances[k].asked = True
            if is_asked(s, DECIDE):
                actions = ask(s, DECIDE, k)
                if actions != RAISED:
                    _carry_out(s, DECIDE, 0, actions, first, count)


@inner
def _carry_out(s: State, hook: int, j: int, actions: int, first: int, count: int) -> None:
    """Carry out the actions of a hook's answer from number j on; `count` instances from `first` on are to schedule."""
    while j < actions and s.error.status == 0:
        action = s.actions[j]
        if action.kind >= PREEMPT:
            _decide_about(s, action.request, action.kind, action.value, first, count)
        else:
            carry_out_for_instance(s, hook, j)
        j += 1


@inner
def _decide_about(s: State, r: int, kind: int, reason: int, first: int, count: int) -> None:
    """Preempt, resume or cancel r, now or, if it decodes or prefills, when it is the turn of its instance."""
    q = s.requests[r]
    if q.state == FUTURE or q.state >= FINISHED:
        return
    if unlikely(q.state == PARKED):
        if kind == CANCEL:
            leave_parked(s, r)
            end_request(s, r, CANCELLED, reason)
        return
    known = postponed_place(s, r)
    if known >= 0:
        _revise(s, known, kind, reason)
    elif _runs(s, r) and not first <= q.instance < first + count:
        if kind != RESUME:
            _postpone(s, r, kind, reason)
    elif kind == PREEMPT:
        _preempt(s, r)
    elif kind == RESUME:
        _resume(s, r)
    else:
        _cancel(s, r, reason)


# --- decisions that wait for the turn of an instance ------------------------------------------------------------------


@inner
def _runs(s: State, r: int) -> bool:
    """Whether r decodes or prefills, so that it may be part of a step."""
    q = s.requests[r]
    return q.state == DECODING or q.state == PAUSED or q.state == PREFILLING


@inner
def postponed_place(s: State, r: int) -> int:
    """The place of r among the decisions that are postponed, -1: it has none."""
    for j in range(s.sim.postponed):
        if s.postponed[j].request == r:
            return j
    return -1


@inner
def _postpone(s: State, r: int, kind: int, reason: int) -> None:
    sim, entry_ = s.sim, s.postponed[s.sim.postponed]
    entry_.request = r
    entry_.kind = kind
    entry_.value = reason
    entry_.instance = s.requests[r].instance
    sim.postponed += 1
    sim.decides += 1
    s.instances[entry_.instance].asked = False
    wake(s, s.requests[r].instance)


@inner
def _revise(s: State, j: int, kind: int, reason: int) -> None:
    """A further decision before that turn: the later one holds, but nothing undoes an end."""
    if s.postponed[j].kind == CANCEL:
        return
    if kind == RESUME:
        forget_postponed(s, j)
    else:
        s.postponed[j].kind = kind
        s.postponed[j].value = reason


@inner
def forget_postponed(s: State, j: int) -> None:
    """Take number j out of the decisions that are postponed."""
    sim = s.sim
    sim.postponed -= 1
    sim.decides -= 1
    for k in range(j, sim.postponed):
        following, entry_ = s.postponed[k + 1], s.postponed[k]
        entry_.request = following.request
        entry_.kind = following.kind
        entry_.value = following.value
        entry_.instance = following.instance


@inner
def _carry_out_postponed(s: State, first: int, count: int) -> None:
    """Carry out, in order, what awaited the turn of one of these instances."""
    j = 0
    while j < s.sim.postponed:
        entry_ = s.postponed[j]
        if first <= entry_.instance < first + count:
            r, kind, reason = int(entry_.request), int(entry_.kind), int(entry_.value)
            forget_postponed(s, j)
            _decide_about(s, r, kind, reason, first, count)
        else:
            j += 1


# --- the decisions ----------------------------------------------------------------------------------------------------


@inner
def _preempt(s: State, r: int) -> None:
    """Take r off its instance until it is resumed, unless it is on its way or suspended already."""
    q = s.requests[r]
    i = q.instance
    if q.state == DECODING or q.state == PREFILLING:
        q.preemptions += 1
        s.sim.preemptions += 1
        evict(s, i, r)
    elif q.state == SWAPPED:
        leave_swapped(s, i, r)
    elif q.state == WAITING:
        leave_queue(s, i, r)
    else:
        return
    q.state = SUSPENDED
    s.instances[i].suspended += recomputes_here(s, r)
    start_transfers(s, i)
    wake(s, i)


@inner
def _resume(s: State, r: int) -> None:
    """Queue r by the policy's key, where it was or, if i takes no prompts any more, where the policy says."""
    q = s.requests[r]
    if q.state != SUSPENDED:
        return
    i, target, again = q.instance, q.instance, recomputes_here(s, r)
    s.instances[i].suspended -= again
    q.state = WAITING
    if s.instances[i].role & PREFILL == 0 and not again:
        if unlikely(s.sim.unserved > 0):
            park(s, r)
            return
        target = ask_route(s, ROUTE_PREFILL, r)
        if target < 0:
            return
        if not fits(s, target, r):
            end_request(s, r, FAILED, REASON_KV)
            return
    q.instance = target
    take_place(s, r)
    join_queue(s, target, r)


@inner
def _cancel(s: State, r: int, reason: int) -> None:
    """End r, wherever it is, and free its KV there."""
    q = s.requests[r]
    i, target = q.instance, -1
    if q.state == FETCHING:
        withdraw_copy(s, r)
    elif q.state == DECODING or q.state == PREFILLING:
        evict(s, i, r)
    elif q.state == WAITING:
        leave_queue(s, i, r)
    elif q.state == SWAPPED:
        leave_swapped(s, i, r)
    elif q.state == JOINING:
        leave_before_joining(s, i, r)
    elif q.state == SUSPENDED:
        s.instances[i].suspended -= recomputes_here(s, r)
    else:
        target = q.destination
        leave_on_the_way(s, r)
    end_request(s, r, CANCELLED, reason)
    start_transfers(s, i)
    wake(s, i)
    if target >= 0:
        start_transfers(s, target)
        wake(s, target)
