"""Events: the earliest of all kinds, and the instances that schedule once all events of one time are processed."""

from __future__ import annotations

import math

import numpy as np

from framework.codes import ARRIVAL, CONCURRENT, COPY_END, GIVE_UP, PREFILL_STEP_END, SCHEDULE, STEP_END, TICK
from framework.compiler.decorators import inner, unlikely
from framework.engine.durations.leap import catch_up_one, end_leap_early
from framework.engine.durations.lockstep import group_of, rank_in_step
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import first_due, load_changed, time_of
from framework.engine.parallel.sm_sharing import may_prefill
from framework.policy.hooks import MOST_QUIET_TICKS, ON_FINISH


@inner
def next_event(s: State) -> int:
    """Advance the clock to the next event and return its id; -1 if only ticks, role changes and crashes are left.

    While an instance is down its return counts as an event, and so do each client that may give up and a look of the
    gateway.

    Ties go to the lower kind, then to the lower id: an instance schedules only if nothing else is due at that time.
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
    r = next_arrival(s)
    if r >= 0:
        arrival_s = s.requests[r].event_s
        if arrival_s < time_s:
            time_s, kind, event = arrival_s, ARRIVAL, r
    if sim.woken > 0 and sim.now_s < time_s:
        time_s, kind, event = sim.now_s, SCHEDULE, s.lists[s.options.woken_at + sim.woken_first]
    is_before = sim.change_s < time_s or (sim.change_s == time_s and kind > sim.change_kind)
    if is_before and (event >= 0 or sim.awaited > 0):
        time_s, kind, event = sim.change_s, sim.change_kind, sim.changing
    if event >= 0 and _comes_after_tick(s, kind, time_s):
        time_s, kind, event = sim.next_tick * s.options.tick_s, TICK, sim.next_tick
    if event >= 0:
        if time_s > sim.now_s:
            sim.scheduled = -1
        sim.now_s = time_s
        sim.kind = kind
        sim.id = event
    return event


@inner
def _comes_after_tick(s: State, kind: int, time_s: float) -> bool:
    """Whether a tick at which the policy is asked comes before the next event of any other kind."""
    if s.options.tick_s <= 0.0:
        return False
    tick_s = s.sim.next_tick * s.options.tick_s
    if tick_s < time_s or (tick_s == time_s and kind >= ARRIVAL):
        return not _skips_ticks(s, kind, time_s)
    if kind != SCHEDULE:
        s.sim.quiet_ticks = 0
    return False


@inner
def nothing_is_due(s: State) -> bool:
    """Whether no event is left at the present time."""
    sim = s.sim
    if sim.woken > 0:
        return False
    time_s = min(time_of(s, STEP_END, first_due(s, STEP_END)), sim.prefill_end_s)
    if sim.heap_size > 0:
        time_s = min(time_s, s.requests[s.lists[s.options.heap_at]].event_s)
    r = next_arrival(s)
    if r >= 0:
        time_s = min(time_s, s.requests[r].event_s)
    if time_s == np.inf and sim.awaited == 0:  # no changes of role, no crashes and no ticks then
        return True
    if s.options.tick_s > 0.0:
        time_s = min(time_s, sim.next_tick * s.options.tick_s)
    return min(time_s, sim.change_s) > sim.now_s


@inner
def _skips_ticks(s: State, kind: int, time_s: float) -> bool:
    """Count the tick that is due before an event of that kind and time, or skip all ticks before that event.

    Returns False if a tick comes first, True if the event does.
    """
    sim = s.sim
    steps_s = min(time_of(s, STEP_END, first_due(s, STEP_END)), sim.prefill_end_s)
    is_far_off = kind >= GIVE_UP or kind == COPY_END
    if not is_far_off or sim.woken > 0 or steps_s < np.inf:
        sim.quiet_ticks = 0
    elif sim.quiet_ticks < MOST_QUIET_TICKS:
        sim.quiet_ticks += 1
    else:
        sim.next_tick = _first_tick(time_s, s.options.tick_s)
        if kind < ARRIVAL or sim.next_tick * s.options.tick_s > time_s:
            sim.quiet_ticks = 0
            return True
    return False


@inner
def _first_tick(time_s: float, tick_s: float) -> int:
    """The number of the first tick that is not before `time_s`."""
    number = max(math.ceil(time_s / tick_s), 1)
    while number > 1 and (number - 1) * tick_s >= time_s:
        number -= 1
    while number * tick_s < time_s:
        number += 1
    return number


@inner
def next_arrival(s: State) -> int:
    """The request that arrives next, of the trace or a later turn whose arrival is known; -1 if there is none."""
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
    """Let i, where something changed, schedule once this time's events are processed, unless it is in a step."""
    inst = s.instances[i]
    inst.changed = True
    load_changed(s, i)
    stepping = i if inst.busy else -1
    if stepping < 0 and unlikely(inst.group > 0):
        stepping = rank_in_step(s, i)
    if stepping >= 0:
        end_leap_early(s, stepping)
        if not unlikely(inst.mode == CONCURRENT) or not may_prefill(s, i):
            return
    await_turn(s, i)


@inner
def stores_gained(s: State) -> None:
    """End leaps of instances where a waiting prompt may now fit the next step: stores of prefixes gained blocks.

    Such a prompt may have fewer tokens left to compute.
    """
    for k in range(s.sim.leaping):
        i = s.lists[s.options.leaping_at + k]
        if s.instances[i].waiting_root >= 0 and (s.options.unchunked or s.instances[i].chunk_stages > 0):
            catch_up_one(s, i)  # later looks at this time must see what has passed, whether or not the leap ends now
            end_leap_early(s, i)


@inner
def await_turn(s: State, i: int) -> None:
    """Let i schedule once this time's events are processed; waiting instances take turns in order of number."""
    sim, size = s.sim, s.options.instances
    if s.instances[i].woken or s.instances[i].hung:
        return
    s.instances[i].woken = True
    at = (sim.woken_first + sim.woken) % size
    for _ in range(sim.woken):
        before = (at + size - 1) % size
        other = s.lists[s.options.woken_at + before]
        if other < i:
            break
        s.lists[s.options.woken_at + at] = other
        at = before
    s.lists[s.options.woken_at + at] = i
    sim.woken += 1


@inner
def take_turn(s: State, i: int) -> None:
    """Take the turn of i, the first instance that waits to schedule."""
    sim = s.sim
    _drop_first_turn(s, i)
    sim.scheduled = max(sim.scheduled, i)


@inner
def _drop_first_turn(s: State, i: int) -> None:
    s.sim.woken_first = (s.sim.woken_first + 1) % s.options.instances
    s.sim.woken -= 1
    s.instances[i].woken = False


@inner
def decision_is_due(s: State, i: int) -> bool:
    """Whether the policy decides before i, whose turn it is, and its group schedule."""
    first, count = group_of(s, i)
    found = False
    for k in range(first, first + count):
        if s.instances[k].busy:
            return False
        found |= s.instances[k].changed and not s.instances[k].asked
    return found


@inner
def tells(s: State) -> bool:
    """Whether the policy has not yet seen some finished requests."""
    return bool(s.sim.finished > s.sim.finished_seen and s.hooks[ON_FINISH].address != 0)


@inner
def drop_turn(s: State, i: int) -> None:
    """Drop the turn of i, if it has one: i schedules now or has failed."""
    if not s.instances[i].woken:
        return
    sim, size, at = s.sim, s.options.instances, s.options.woken_at
    if s.lists[at + sim.woken_first] == i:
        _drop_first_turn(s, i)
        return
    found = False
    for j in range(sim.woken - 1):
        place = at + (sim.woken_first + j) % size
        found = found or s.lists[place] == i
        if found:
            s.lists[place] = s.lists[at + (sim.woken_first + j + 1) % size]
    sim.woken -= 1
    s.instances[i].woken = False
