"""Changes of role: an instance drains the phases that it leaves, then takes up the new ones.

`role`: the phases of which an instance takes new work. `draining_role`: the phases of which it may still have work.
`next_role`: its phases after the change. A change is under way while the last two differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.codes import DECODE, FAILED, FAULT, MIXED, OFF, PREFILL, REASON_KV, REPORT, ROLE_CHANGE, WAITING
from framework.compiler.decorators import inner, unlikely
from framework.engine.durations.leap import catch_up_one
from framework.engine.events.ask import ask_route
from framework.engine.events.order import wake
from framework.engine.kv.cached_blocks import forget_prefixes
from framework.engine.kv.pins import end_pins, note_next_pin_end
from framework.engine.memory.kv_blocks import fits
from framework.engine.memory.queues import append, queue_pop, queue_push
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import first_due, load_changed, set_time, time_of
from framework.engine.requests.asynchronous import take_in
from framework.engine.requests.gate import note_look
from framework.engine.requests.giving_up import note_next_to_give_up
from framework.engine.requests.lifecycle import end_request
from framework.engine.requests.parking import park
from framework.engine.requests.queueing import enter_queue, recomputes_here
from framework.engine.roles.inventory import is_drained
from framework.policy.hooks import ROUTE_PREFILL


@inner
def set_role(s: State, i: int, action: Any) -> None:
    """Begin to change i's role; do nothing if that is its next role, or if a phase would lose its last instance.

    An instance that is down comes back in that role.
    """
    inst = s.instances[i]
    if action.role == inst.next_role or not keeps_phases(s, i, inst.draining_role & action.role):
        return
    inst.next_mode = action.mode
    inst.next_budget = action.value
    inst.next_percent = action.percent
    order_role(s, i, action.role)


@inner
def order_role(s: State, i: int, role: int) -> None:
    """Begin to change i's role, or, if i is down, let it come back in that role; its plan is set."""
    inst = s.instances[i]
    if unlikely(inst.down):
        inst.next_role = role
        return
    _begin_change(s, i, role)
    wake(s, i)
    if inst.role & PREFILL == 0:
        take_in(s, i)
        _reroute_queue(s, i)


@inner
def keeps_phases(s: State, i: int, role: int) -> bool:
    """Whether each phase that has an instance now would still have one with i in this role."""
    lost = s.instances[i].role & ~role
    for j in range(s.options.instances):
        if j != i:
            lost &= ~s.instances[j].role
    return bool(lost == 0)


@inner
def note_phases(s: State) -> None:
    """Note the phases of which no instance takes work, after the present role of an instance changed."""
    served = 0
    for j in range(s.options.instances):
        served |= s.instances[j].role
    s.sim.unserved = MIXED & ~served


@inner
def _begin_change(s: State, i: int, role: int) -> None:
    inst, sim = s.instances[i], s.sim
    was_off = is_off(s, i)
    _note_trend(s, i, role)
    inst.next_role = role
    inst.role = inst.draining_role & role
    if unlikely(inst.pinned_head >= 0) and role == OFF:
        catch_up_one(s, i)
        end_pins(s, i)
    load_changed(s, i)
    sim.role_changes += 1
    announce(s, i, np.inf)
    if unlikely(s.options.faults > 0):
        note_phases(s)
    if was_off:
        inst.off_s += sim.now_s - inst.off_since_s
        inst.starts += 1
    elif is_off(s, i):  # it was starting
        inst.off_since_s = sim.now_s
        inst.stops += 1


@inner
def _note_trend(s: State, i: int, role: int) -> None:
    """Count a reversal if a phase has fewer instances with the new role and their number last grew, or the reverse."""
    inst, sim = s.instances[i], s.sim
    prefill = (role & PREFILL) - (inst.next_role & PREFILL)
    decode = ((role & DECODE) - (inst.next_role & DECODE)) // DECODE
    inst.reversals += prefill * sim.prefill_trend < 0 or decode * sim.decode_trend < 0
    if prefill != 0:
        sim.prefill_trend = prefill
    if decode != 0:
        sim.decode_trend = decode


@inner
def is_off(s: State, i: int) -> bool:
    """Whether i, which is not down, is off and not starting."""
    return s.instances[i].draining_role == OFF and s.instances[i].next_role == OFF


@inner
def is_up(s: State, i: int) -> bool:
    """Whether i is neither down nor off."""
    return not (s.instances[i].down or is_off(s, i))


@inner
def announce(s: State, i: int, time_s: float) -> None:
    """Let i's change take effect at `time_s`, inf: not yet known."""
    set_time(s, ROLE_CHANGE, i, time_s)
    note_next_change(s)


@inner
def note_next_change(s: State) -> None:
    """Note the next change of role, fault, report, end of a TTL or look of the gateway, or the next to give up."""
    sim = s.sim
    sim.changing = first_due(s, ROLE_CHANGE)
    sim.change_s = time_of(s, ROLE_CHANGE, sim.changing)
    sim.change_kind = ROLE_CHANGE
    if unlikely(sim.next_fault < s.options.faults):
        fault_s = s.times[s.options.fault_times_at + sim.next_fault]
        if fault_s < sim.change_s:
            sim.change_s = fault_s
            sim.changing = s.lists[s.options.fault_at + sim.next_fault]
            sim.change_kind = FAULT
    if unlikely(s.options.report_every_s > 0.0) and sim.next_report * s.options.report_every_s < sim.change_s:
        sim.change_s = sim.next_report * s.options.report_every_s
        sim.changing = sim.next_report
        sim.change_kind = REPORT
    note_next_pin_end(s)
    note_next_to_give_up(s)
    note_look(s)


@inner
def _reroute_queue(s: State, i: int) -> None:
    """Route the requests of i's queue anew, in order, except those that are recomputed on i."""
    at = s.options.asked_at
    leaving, k = _take_out_movers(s, i), 0
    while k < leaving and s.error.status == 0:
        reroute(s, s.lists[at + k])
        k += 1


@inner
def _take_out_movers(s: State, i: int) -> int:
    """Move requests of i's queue that are routed anew to the list at `asked_at`, in order; return their number."""
    inst, at = s.instances[i], s.options.asked_at
    leaving, first, last = 0, -1, -1
    while inst.waiting_root >= 0:
        r = queue_pop(s, i)
        if recomputes_here(s, r):
            first = append(s, first, last, r)
            last = r
        else:
            s.lists[at + leaving] = r
            leaving += 1
            inst.queued -= 1
            inst.queued_tokens -= s.requests[r].prefill_until
    while first >= 0:
        r = first
        first = s.requests[r].next
        queue_push(s, i, r)
    load_changed(s, i)
    return leaving


@inner
def reroute(s: State, r: int) -> None:
    """Route r, taken out of a queue or off a crashed instance, anew; it keeps its key and queue number."""
    if unlikely(s.sim.unserved > 0):
        park(s, r)
        return
    s.requests[r].state = WAITING
    target = ask_route(s, ROUTE_PREFILL, r)
    if target < 0:
        return
    if fits(s, target, r):
        s.requests[r].instance = target
        enter_queue(s, target, r)
    else:
        end_request(s, r, FAILED, REASON_KV)


@inner
def take_role(s: State, i: int) -> None:
    """Let i's change take effect now."""
    take_effect(s, i)
    wake(s, i)


@inner
def proceed(s: State, i: int) -> None:
    """Advance the change under way at a boundary of i: once i is drained it takes effect, or gets a time to do so."""
    inst, sim = s.instances[i], s.sim
    if time_of(s, ROLE_CHANGE, i) < np.inf or not is_drained(
        s, i, inst.draining_role & ~inst.next_role, inst.next_role == OFF
    ):
        return
    delay_s = inst.start_s if inst.draining_role == OFF else s.options.role_change_s
    if inst.next_role & ~inst.draining_role == 0 or delay_s == 0.0:
        take_effect(s, i)
    else:
        if inst.draining_role == OFF:
            delay_s = _begin_start(s, i)
        announce(s, i, sim.now_s + delay_s)


@inner
def _begin_start(s: State, i: int) -> float:
    """The seconds that i's start, which begins, takes: its tries, and until the source has served earlier starts."""
    inst, sim = s.instances[i], s.sim
    delay_s = inst.start_s
    if unlikely(s.options.start_draws > 0):
        drawn_at = s.options.start_draws_at + 2 * (sim.timed_starts % s.options.start_draws)
        sim.timed_starts += 1
        delay_s = max(delay_s + s.times[drawn_at], 0.0) * s.times[drawn_at + 1]
    if unlikely(inst.source_s > 0.0):
        ready_s = sim.now_s + inst.provisioning_s
        begin_s = max(ready_s, sim.source_free_s)
        sim.source_free_s = begin_s + inst.source_s
        delay_s += begin_s - ready_s
    return delay_s


@inner
def take_effect(s: State, i: int) -> None:
    """End the change under way."""
    inst, sim = s.instances[i], s.sim
    inst.draining_role = inst.next_role
    inst.role = inst.next_role
    load_changed(s, i)
    inst.changed = True
    if inst.next_budget > 0:
        inst.mode = inst.next_mode
        inst.token_budget = inst.next_budget
        if inst.next_percent > 0:
            inst.prefill_percent = inst.next_percent
    sim.role_changes += 1
    announce(s, i, np.inf)
    if unlikely(s.options.faults > 0):
        note_phases(s)
    if inst.role == OFF:
        inst.off_since_s = sim.now_s
        inst.stops += 1
        forget_prefixes(s, i)
