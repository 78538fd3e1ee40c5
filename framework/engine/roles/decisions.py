"""Decisions of a policy about requests that already run: it preempts, resumes and cancels them. It may also scale.

The loop returns to Python for a decision, and Python calls `decide`. So a run without decisions neither compiles this
module nor spends time in it.
"""

from __future__ import annotations

from typing import Any

import numba

from framework.codes import (
    CANCEL,
    DECODING,
    FETCHING,
    FINISHED,
    FUTURE,
    GIVE_UP,
    JOINING,
    PARKED,
    PAUSED,
    PIN_END,
    PREEMPT,
    PREFILL,
    PREFILLING,
    REASON_GAVE_UP,
    REQUEUE,
    RESUME,
    SCALE,
    SPANLESS,
    SUSPENDED,
    SUSPENDED_HERE,
    SUSPENDED_OUT,
    SWAPPED,
    TICK,
    WAITING,
    YIELDED,
)
from framework.compiler.decorators import entry, inner, unlikely
from framework.engine.copies.link_sharing import share_links, withdraw_copy
from framework.engine.copies.transfers import start_transfers
from framework.engine.durations.leap import catch_up
from framework.engine.durations.lockstep import group_of
from framework.engine.events.ask import ask, is_asked
from framework.engine.events.order import tells, wake
from framework.engine.kv.kv_cache import free_kv
from framework.engine.memory.attach import HANDED, attach_at
from framework.engine.memory.kv_blocks import fits
from framework.engine.memory.state import State
from framework.engine.requests.gate import leave_gateway
from framework.engine.requests.giving_up import end_cancelled, has_its_prompt, waits_no_more
from framework.engine.requests.parking import leave_parked
from framework.engine.requests.preemption import evict
from framework.engine.requests.queueing import enter_queue, recomputes_here
from framework.engine.requests.spanning import leave_spanless
from framework.engine.roles.actions import carry_out_for_instance
from framework.engine.roles.call_ends import deal_with_notices, end_all_pins, end_ttl
from framework.engine.roles.changes import note_next_change
from framework.engine.roles.leaving import leave_before_joining, leave_on_the_way, leave_queue, leave_swapped
from framework.engine.roles.postponing import forget, place_of, postpone, revise
from framework.engine.roles.scaling import scale
from framework.engine.roles.suspension import comes_back, leave_suspended, preempt_by_policy, resume_by_policy
from framework.policy.hooks import DECIDE, ON_FINISH, ON_TICK, RAISED


@entry(numba.types.int64(HANDED))
def decide(words: Any) -> int:
    """Tell of finished requests, let a client give up, carry out the rest of a tick's actions, or ask before an
    instance schedules.

    Returns YIELDED, or an error of a hook; the arguments are those of `engine.loop.run`.
    """
    return _decide(attach_at(words))


@inner
def _decide(s: State) -> int:
    if tells(s):
        _tell(s)
    elif s.sim.remaining == 0 and s.sim.actions == 0:
        end_all_pins(s)
    elif s.sim.notices > s.sim.noticed and s.sim.actions == 0:
        deal_with_notices(s)
    elif s.sim.kind == PIN_END:
        s.sim.actions = 0
        end_ttl(s)
    elif s.sim.kind == GIVE_UP:
        s.sim.actions = 0
        waits_no_more(s)
        note_next_change(s)
        catch_up(s)
        _decide_about(s, s.sim.id, CANCEL, REASON_GAVE_UP, 0, 0)
    elif s.sim.kind == TICK:
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
    """Carry out postponed decisions, then ask the policy, before i and its group schedule."""
    first, count = group_of(s, i)
    s.sim.scheduled = max(s.sim.scheduled, i - 1)  # the instances before it have too, if they leap
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
def _tell(s: State) -> None:
    """Tell the policy of finished requests, in the order of their ends; the actions of each answer follow at once."""
    while tells(s) and s.error.status == 0:
        r = s.lists[s.options.finished_at + s.sim.finished_seen]
        s.sim.finished_seen += 1
        actions = ask(s, ON_FINISH, r)
        if actions != RAISED:
            _carry_out(s, ON_FINISH, 0, actions, 0, 0)


@inner
def _carry_out(s: State, hook: int, j: int, actions: int, first: int, count: int) -> None:
    """Carry out the actions of a hook's answer from number j on, before `count` instances from `first` on schedule."""
    while j < actions and s.error.status == 0:
        action = s.actions[j]
        if action.kind == SCALE:
            scale(s, action.instance, action.value)
        elif action.kind >= PREEMPT:
            _decide_about(s, action.request, action.kind, action.value, first, count)
        else:
            carry_out_for_instance(s, hook, j)
        j += 1


@inner
def _decide_about(s: State, r: int, kind: int, value: int, first: int, count: int) -> None:
    """Preempt, resume, cancel or requeue r now, or at its instance's turn if r leaves or joins the instance's step.

    `value`: the KV that a preempted request keeps, the reason of a cancellation, or the instance of the other queue.
    """
    q = s.requests[r]
    if q.state == FUTURE or q.state >= FINISHED:
        return
    if value == REASON_GAVE_UP and kind == CANCEL and has_its_prompt(s, r):
        return
    if unlikely(PARKED <= q.state < FINISHED):
        if kind == CANCEL:
            _leave_front_end(s, r)
            end_cancelled(s, r, value)
        return
    if kind == REQUEUE:
        _requeue(s, r, value)
        return
    known = place_of(s, r)
    if known >= 0 and not revise(s, known, kind, value):
        return
    if _awaits_turn(s, r, kind) and not first <= q.instance < first + count:
        postpone(s, r, kind, value)
    elif kind == PREEMPT:
        preempt_by_policy(s, r, value)
    elif kind == RESUME:
        resume_by_policy(s, r)
    else:
        _cancel(s, r, value)


@inner
def _leave_front_end(s: State, r: int) -> None:
    """Take r, which waits on no instance, out of its list."""
    state = s.requests[r].state
    if state == PARKED:
        leave_parked(s, r)
    elif state == SPANLESS:
        leave_spanless(s, r)
    else:
        leave_gateway(s, r)


# --- decisions that wait for the turn of an instance ------------------------------------------------------------------


@inner
def _awaits_turn(s: State, r: int, kind: int) -> bool:
    """Whether such a decision changes the next step: r leaves it, or joins it with its KV."""
    q = s.requests[r]
    if kind == RESUME:
        return q.state == SUSPENDED_HERE
    return q.state == DECODING or q.state == PAUSED or q.state == PREFILLING


@inner
def _carry_out_postponed(s: State, first: int, count: int) -> None:
    """Carry out, in order, the decisions that await the turn of one of these instances."""
    j = 0
    while j < s.sim.postponed:
        entry = s.postponed[j]
        if first <= entry.instance < first + count:
            r, kind, value = int(entry.request), int(entry.kind), int(entry.value)
            forget(s, j)
            _decide_about(s, r, kind, value, first, count)
        else:
            j += 1


# --- the decisions ----------------------------------------------------------------------------------------------------


@inner
def _requeue(s: State, r: int, target: int) -> None:
    """Move r, if it waits, to the queue of the target, if that can serve it; r keeps its key and queue number."""
    q = s.requests[r]
    i = q.instance
    if q.state != WAITING or i == target or s.instances[target].role & PREFILL == 0:
        return
    if recomputes_here(s, r) or not fits(s, target, r):
        return
    leave_queue(s, i, r)
    q.instance = target
    enter_queue(s, target, r)
    wake(s, i)


@inner
def _cancel(s: State, r: int, reason: int) -> None:
    """End r in any state, and free its KV."""
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
    elif q.state == SUSPENDED or q.state == SUSPENDED_HERE or q.state == SUSPENDED_OUT:
        s.instances[i].suspended -= comes_back(s, r)
        leave_suspended(s, r)
        if q.state == SUSPENDED_HERE:
            free_kv(s, i, r)
    else:
        target = q.destination
        leave_on_the_way(s, r)
    end_cancelled(s, r, reason)
    start_transfers(s, i)
    wake(s, i)
    if target >= 0:
        start_transfers(s, target)
        wake(s, target)
