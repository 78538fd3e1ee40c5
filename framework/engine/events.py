"""Events: the earliest of all kinds, when each instance's own ones are due, and who is woken by what happened."""

from __future__ import annotations

import numpy as np

from framework.codes import ARRIVAL, CONCURRENT, COPY_END, PREFILL_STEP_END, ROLE_CHANGE, STEP_END, TICK
from framework.compiler.decorators import inner, unlikely
from framework.engine.leap import end_leap_early
from framework.engine.mechanisms.sm_sharing import may_prefill
from framework.engine.queues import first_due, load_changed, time_of
from framework.engine.state import State


@inner
def next_event(s: State) -> int:
    """Advance the clock to the next event and tell which it is: its id; -1 if only ticks and role changes are left.

    Ties go to the lower kind, then to the lower id.
    """
    sim = s.sim
    time_s, kind, event = np.inf, STEP_END, -1
    first = first_due(s, STEP_END)
    if time_of(s, STEP_END, first) < time_s:
        time_s, event = time_of(s, STEP_END, first), first
    if sim.prefill_end_s < time_s:
        time_s, kind, event = sim.prefill_end_s, PREFILL_STEP_END, sim.prefill_end_of
    if sim.heap_size > 0:
        r = s.lists[s.options.heap_at]
        if s.requests[r].event_s < time_s:
            time_s, kind, event = s.requests[r].event_s, COPY_END, r
    r = _next_arrival(s)
    if r >= 0:
        arrival_s = s.requests[r].event_s
        if arrival_s < time_s:
            time_s, kind, event = arrival_s, ARRIVAL, r
    if event >= 0 and (sim.change_s < time_s or (sim.change_s == time_s and kind == ARRIVAL)):
        time_s, kind, event = sim.change_s, ROLE_CHANGE, sim.changing
    if event >= 0 and s.options.tick_s > 0.0:
        tick_s = sim.next_tick * s.options.tick_s
        if tick_s < time_s or (tick_s == time_s and kind == ARRIVAL):
            time_s, kind, event = tick_s, TICK, sim.next_tick
    if event >= 0:
        sim.now_s = time_s
        sim.kind = kind
        sim.id = event
    return event


@inner
def _next_arrival(s: State) -> int:
    """The request that arrives next: of the trace, or a later turn whose arrival is known; -1 if there is none."""
    sim = s.sim
    while sim.next_arrival < s.options.requests and s.requests[sim.next_arrival].follows:
        sim.next_arrival += 1
    r = sim.next_arrival if sim.next_arrival < s.options.requests else -1
    if sim.turns_size > 0:
        other = s.lists[s.options.turns_at]
        if r < 0:
            return other
        x, y = s.requests[other].event_s, s.requests[r].event_s
        if x < y or (x == y and other < r):
            return other
    return r


@inner
def wake(s: State, i: int) -> None:
    """Something changed for i: idle, it schedules a step after this event, else at its next boundary."""
    sim, inst = s.sim, s.instances[i]
    inst.changed = True
    load_changed(s, i)
    if inst.busy:
        end_leap_early(s, i)
        if not unlikely(inst.mode == CONCURRENT) or not may_prefill(s, i):
            return
    if not inst.woken:
        inst.woken = True
        s.lists[s.options.woken_at + (sim.woken_first + sim.woken) % s.options.instances] = i
        sim.woken += 1


@inner
def next_woken(s: State) -> int:
    """Take the first of the woken instances; -1 if there is none."""
    sim = s.sim
    if sim.woken == 0:
        return -1
    i = s.lists[s.options.woken_at + sim.woken_first]
    sim.woken_first = (sim.woken_first + 1) % s.options.instances
    sim.woken -= 1
    s.instances[i].woken = False
    return i
