"""Scaling: instances of a pool are switched on and off until so many are on."""

from __future__ import annotations

from framework.codes import OFF
from framework.compiler.decorators import inner
from framework.engine.memory.state import State
from framework.engine.roles.changes import keeps_phases, order_role


@inner
def scale(s: State, pool: int, count: int) -> None:
    """Switch instances of the pool on or off until `count` are on, or no phase could lose another instance."""
    on = _switched_on(s, pool)
    while on < count and s.error.status == 0:
        i = _first_to_start(s, pool)
        _order(s, i, s.instances[i].pool_role)
        on += 1
    while on > count and s.error.status == 0:
        i = _first_to_stop(s, pool)
        if i < 0:
            return
        _order(s, i, OFF)
        on -= 1


@inner
def _order(s: State, i: int, role: int) -> None:
    s.instances[i].next_budget = 0  # no plan comes with the change
    order_role(s, i, role)


@inner
def _switched_on(s: State, pool: int) -> int:
    """Instances of the pool that are on and stay so, or start, or will come back on."""
    count = 0
    for i in range(s.options.instances):
        count += s.instances[i].pool == pool and s.instances[i].next_role != OFF
    return count


@inner
def _first_to_start(s: State, pool: int) -> int:
    """The first instance of the pool that drains; else the first that is off, else the first that is down."""
    best, least = -1, 0
    for i in range(s.options.instances):
        inst = s.instances[i]
        if inst.pool == pool and inst.next_role == OFF:
            place = 0 if inst.draining_role != OFF else 1 + inst.down
            if best < 0 or place < least:
                best, least = i, place
    return best


@inner
def _first_to_stop(s: State, pool: int) -> int:
    """The last instance of the pool that starts or is down; else the last of those with the fewest requests; -1: none
    that is on may go, because a phase would have no other instance.
    """
    best, least = -1, 0
    for i in range(s.options.instances):
        inst = s.instances[i]
        if inst.pool == pool and inst.next_role != OFF and _may_go(s, i):
            work = -1 if inst.draining_role == OFF else _requests(s, i)
            if best < 0 or work <= least:
                best, least = i, work
    return best


@inner
def _may_go(s: State, i: int) -> bool:
    """Whether each phase of i, now and after changes that are under way, has another instance."""
    lost = s.instances[i].next_role
    for j in range(s.options.instances):
        if j != i:
            lost &= ~s.instances[j].next_role
    return lost == OFF and keeps_phases(s, i, OFF)


@inner
def _requests(s: State, i: int) -> int:
    """Requests on i or on their way there."""
    inst = s.instances[i]
    here = inst.queued + inst.prefilling + inst.running + inst.joining + inst.swapped + inst.suspended
    return int(here + inst.incoming)
