"""Roles that change while a run goes on: an instance drains of the phases it leaves, then takes up the new ones.

`role` holds the phases that an instance takes new work of, `settled_role` those that it may still have work of, and
`next_role` those that it shall have. Where the last two differ a change is under way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.codes import DECODE, FAILED, MIXED, OFF, PREFILL, REASON_KV, ROUTE_PREFILL
from framework.compiler.decorators import inlined, kernel
from framework.engine.ask import choose, enter_queue
from framework.engine.hooks import Hooks
from framework.engine.kv_cache import available, fits, forget_prefixes
from framework.engine.mechanisms.sm_sharing import streaming
from framework.engine.queues import queue_pop
from framework.engine.requests import end
from framework.engine.state import State
from framework.engine.transfers import poke


@inlined
def set_role(s: State, h: Hooks, i: int, action: Any) -> None:
    """Begin to change i's role; ignored if that is its next role, or if nobody would be left for one of the phases."""
    inst = s.instances[i]
    if action.role == inst.next_role or not _served(s, i, inst.settled_role & action.role):
        return
    _begin_change(s, i, action.role)
    inst.next_mode = action.mode
    inst.next_budget = action.value
    inst.next_percent = action.percent
    poke(s, i)
    while inst.role & PREFILL == 0 and inst.queued > 0 and s.sim[0].status == 0:
        _reroute_first(s, h, i)


@kernel
def _served(s: State, i: int, role: int) -> bool:
    """Whether each phase has an instance that takes work of it, with i in this role."""
    phases = role
    for j in range(s.sim[0].instances):
        if j != i:
            phases |= s.instances[j].role
    return phases == MIXED


@kernel
def _begin_change(s: State, i: int, role: int) -> None:
    inst, sim = s.instances[i], s.sim[0]
    was_off = _is_off(s, i)
    inst.next_role = role
    inst.role = inst.settled_role & role
    sim.role_changes += 1
    _announce(s, i, np.inf)
    if was_off:
        inst.off_s += sim.now_s - inst.off_since_s
    elif _is_off(s, i):  # it was being started
        inst.off_since_s = sim.now_s


@kernel
def _is_off(s: State, i: int) -> bool:
    return s.instances[i].settled_role == OFF and s.instances[i].next_role == OFF


@kernel
def _announce(s: State, i: int, time_s: float) -> None:
    """i's change takes effect at `time_s`, inf: not yet known."""
    sim = s.sim[0]
    s.instances[i].change_s = time_s
    sim.change_s, sim.changing = np.inf, -1
    for j in range(sim.instances):
        if s.instances[j].change_s < sim.change_s:
            sim.change_s, sim.changing = s.instances[j].change_s, j


@inlined
def _reroute_first(s: State, h: Hooks, i: int) -> None:
    """Queue the first of i's queue, its key and seq kept, where `route_prefill` says now."""
    inst = s.instances[i]
    r = queue_pop(s, i)
    inst.queued -= 1
    inst.queued_tokens -= s.requests[r].target
    place = choose(s, h, ROUTE_PREFILL, r)
    if place < 0:
        return
    if fits(s, place, r):
        s.requests[r].instance = place
        enter_queue(s, place, r)
    else:
        end(s, r, FAILED, REASON_KV)


@kernel
def proceed(s: State, i: int) -> None:
    """At a boundary of i, with a change under way: once drained, the change takes effect, or a time is set for it."""
    inst, sim = s.instances[i], s.sim[0]
    if inst.change_s < np.inf or not _drained(s, i):
        return
    delay_s = sim.start_s if inst.settled_role == OFF else sim.role_change_s
    if inst.next_role & ~inst.settled_role == 0 or delay_s == 0.0:
        take_effect(s, i)
    else:
        _announce(s, i, sim.now_s + delay_s)


@kernel
def _drained(s: State, i: int) -> bool:
    """Whether i has no work left of the phases that it leaves; before it goes off, no KV either."""
    inst = s.instances[i]
    left = inst.settled_role & ~inst.next_role
    if left & PREFILL and (inst.queued_tokens > 0 or streaming(s, i)):  # of those on their way here too
        return False
    if left & DECODE and inst.running + inst.joined + inst.incoming + inst.swapped > 0:
        return False
    return inst.next_role != OFF or available(s, i) == inst.total_blocks


@kernel
def take_effect(s: State, i: int) -> None:
    """The change under way is over."""
    inst, sim = s.instances[i], s.sim[0]
    inst.settled_role = inst.next_role
    inst.role = inst.next_role
    inst.marked = True
    if inst.next_budget > 0:
        inst.mode = inst.next_mode
        inst.token_budget = inst.next_budget
        if inst.next_percent > 0:
            inst.prefill_percent = inst.next_percent
    sim.role_changes += 1
    _announce(s, i, np.inf)
    if inst.role == OFF:
        inst.off_since_s = sim.now_s
        forget_prefixes(s, i)
