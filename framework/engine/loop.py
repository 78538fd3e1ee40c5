"""The event loop of the compiled engine, and the function through which Python enters it."""

from __future__ import annotations

from typing import Any

import numba

from framework.codes import (
    ARRIVAL,
    COPY_END,
    DECIDES,
    DONE,
    FAULT,
    FAULT_DUE,
    GATEWAY,
    GIVE_UP,
    LOG_FULL,
    MARKED,
    PIN_END,
    PREFILL_STEP_END,
    REPORT,
    ROLE_CHANGE,
    SCHEDULE,
    SPAN_DUE,
    STEP_END,
    TICK,
    YIELDED,
)
from framework.compiler.decorators import entry, inner, unlikely
from framework.engine.copies.link_sharing import share_links
from framework.engine.durations.lockstep import end_together, rank_in_step
from framework.engine.durations.totals import count_fixed_depth
from framework.engine.events.order import decision_is_due, drop_turn, next_event, take_turn, tells
from framework.engine.memory.attach import HANDED, attach_at, attach_plain_at
from framework.engine.memory.state import State
from framework.engine.parallel.sm_sharing import may_prefill
from framework.engine.requests.arrivals import arrive, finish_copy
from framework.engine.requests.asynchronous import free_deferred, has_just_prefilled, look_around
from framework.engine.roles.actions import tick
from framework.engine.roles.changes import take_role
from framework.engine.roles.circles import break_circle, fail_rest
from framework.engine.steps.scheduler import schedule, schedule_prefills, send_prompts_ahead
from framework.engine.steps.single_steps import finish_steps
from framework.engine.steps.step import stamp_first_tokens
from framework.engine.steps.step_end import finish_prefill_step


@inner
def _run(s: State, most_events: int) -> int:
    stop = s.sim.events + most_events
    while s.sim.remaining > 0:
        if _log_is_full(s):
            return LOG_FULL
        if s.sim.events >= stop:
            return YIELDED
        outside = _due_outside(s)
        if unlikely(outside > 0):
            return outside
        if unlikely(s.sim.at_mark) or not unlikely(s.sim.crossing > 1) or not break_circle(s):
            event = _due(s)
            if unlikely(s.sim.at_mark):
                return MARKED
            if unlikely(s.sim.decides > 0) and event >= 0 and s.sim.kind == SCHEDULE and decision_is_due(s, event):
                return DECIDES
            if unlikely(s.sim.spanning > 0) and event >= 0 and s.sim.kind == SCHEDULE and not s.instances[event].looked:
                return SPAN_DUE
            s.sim.events += s.sim.kind != SCHEDULE
            if unlikely(_is_fault(s, event)):
                return FAULT_DUE
            _process(s, event, stop)
            if unlikely(s.sim.actions > 0) or unlikely(tells(s)):
                return DECIDES
        if unlikely(s.sim.changed_links > 0):
            share_links(s)
        if s.error.status != 0:
            return int(s.error.status)
    return _end(s)


@inner
def _due_outside(s: State) -> int:
    """What the loop returns to Python for before the next event, 0: nothing."""
    if unlikely(s.sim.parked > 0) and s.sim.unserved == 0:
        return FAULT_DUE
    if unlikely(s.sim.spans_over > 0):
        return SPAN_DUE
    return DECIDES if unlikely(s.sim.notices > s.sim.noticed) else 0


@inner
def _end(s: State) -> int:
    """Free what is left when all requests have ended; DECIDES if pins are, SPAN_DUE if parts of spans are."""
    pinned = False
    for i in range(s.options.instances):
        free_deferred(s, i)
        pinned |= s.instances[i].pinned_head >= 0
    if unlikely(s.sim.spans_over > 0):
        return SPAN_DUE
    return DECIDES if unlikely(pinned) else DONE


@inner
def _is_fault(s: State, event: int) -> bool:
    """Whether an event is a fault, a report, a look of the gateway, or the return of an instance; see roles/."""
    kind = s.sim.kind
    return event >= 0 and bool(
        FAULT <= kind <= REPORT or kind == GATEWAY or (kind == ROLE_CHANGE and s.instances[event].down)
    )


@inner
def _process(s: State, event: int, stop: int) -> None:
    """Process an event and the step ends that follow it, up to event number `stop`."""
    if event < 0:
        fail_rest(s)
    elif s.sim.kind == SCHEDULE:
        _schedule(s, event)
    elif s.sim.kind == STEP_END:
        finish_steps(s, event, stop)
    elif s.sim.kind == ARRIVAL:
        arrive(s, event)
    elif s.sim.kind == COPY_END:
        finish_copy(s, event)
    elif s.sim.kind == TICK:
        tick(s, event)
    elif s.sim.kind == ROLE_CHANGE:
        take_role(s, event)
    elif s.sim.kind == PREFILL_STEP_END:
        finish_prefill_step(s, event)
    elif s.sim.kind == GIVE_UP or s.sim.kind == PIN_END:
        s.sim.actions = 1  # for roles/decisions.py


@inner
def _due(s: State) -> int:
    """The next event.

    If it comes after a mark, instances count all work up to the mark, and the event waits until the totals are
    recorded.
    """
    if unlikely(s.sim.at_mark):
        s.sim.at_mark = False
        return int(s.sim.id)
    event = next_event(s)
    if unlikely(s.sim.now_s > s.sim.mark_s) and event >= 0:
        s.sim.at_mark = True
        for i in range(s.options.instances):
            if s.step[i].fixed_depth:
                count_fixed_depth(s, i)
    return int(event)


@inner
def _schedule(s: State, i: int) -> None:
    """Schedule i's next step, or only that of its prefill stream: all events of this time have been processed.

    The other instances of its group schedule too, unless they are in a step.
    """
    take_turn(s, i)
    inst = s.instances[i]
    inst.looked = False
    first, count = i, 0 if inst.busy else 1
    if unlikely(inst.group > 0):
        first, count = inst.group_first, 0 if rank_in_step(s, i) >= 0 else inst.group
        s.sim.scheduled = max(s.sim.scheduled, first + count - 1)
    elif inst.busy and (unlikely(may_prefill(s, i)) or unlikely(has_just_prefilled(s, i))):
        look_around(s, i)
        schedule_prefills(s, i)
    for k in range(first, first + count):
        if unlikely(count > 1):
            drop_turn(s, k)
        look_around(s, k)
        s.instances[k].between = False
        s.instances[k].asked = False
        schedule(s, k)
        if s.error.status != 0:
            return
    if unlikely(count > 1):
        _begin_together(s, first, count)


@inner
def _begin_together(s: State, first: int, count: int) -> None:
    """Start the steps that all ranks of a group have formed; send the KV of long prompts among them by layer."""
    end_together(s, first, count)
    for k in range(first, first + count):
        if s.instances[k].busy and s.instances[k].first_tokens_pending > 0 and s.step[k].decodes > 0:
            stamp_first_tokens(s, k, s.step[k].start_s + s.step[k].first_s)
    for k in range(first, first + count):
        if s.options.layerwise_tokens > 0 and s.instances[k].busy and s.step[k].prefill_tokens > 0:
            send_prompts_ahead(s, k)


@inner
def _log_is_full(s: State) -> bool:
    """Whether one more event could write more log rows than there is room for."""
    rows_of_an_event = (3 + s.options.rows_at_once) * s.options.most_running + 64
    return (
        s.sim.step_rows + 1 + s.options.rows_at_once > s.options.step_log_rows
        or s.sim.token_rows + rows_of_an_event > s.options.token_log_rows
    )


_SIGNATURE = numba.types.int64(HANDED, numba.types.int64)


@entry(_SIGNATURE)
def run(words: Any, most_events: int) -> int:
    """Process up to `most_events` events and return why the loop came back: DONE, YIELDED, LOG_FULL, MARKED, DECIDES,
    or an error of a hook. After DECIDES the caller calls `roles.decisions.decide`, after SPAN_DUE
    `roles.spans.pass_span`.

    `words`: what `memory.attach.handed` makes of the memory, and of what compiled hooks receive.
    """
    return _run(attach_at(words), most_events)


@entry(_SIGNATURE)
def run_plain(words: Any, most_events: int) -> int:
    """`run` for a memory that `unused.is_plain`: the same from less code."""
    return _run(attach_plain_at(words), most_events)
