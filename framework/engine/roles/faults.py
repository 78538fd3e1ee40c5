"""Faults: the loop returns to Python for each, and for the return of an instance that was down.

A run in which nothing fails therefore compiles nothing of this module.
"""

from __future__ import annotations

from typing import Any

import numba

from framework.codes import CRASH, DETECTION, FAULT, FUTURE, HANG, LINK_FAULT, REPAIR, ROLE_CHANGE, YIELDED
from framework.compiler.decorators import entry, inner, unlikely
from framework.engine.copies.link_sharing import share_links
from framework.engine.memory.attach import HANDED, attach_at
from framework.engine.memory.state import State
from framework.engine.requests.arrivals import serve
from framework.engine.requests.parking import unpark
from framework.engine.roles.changes import note_next_change, reroute
from framework.engine.roles.crashes import come_back, crash, lose_gpus, repair
from framework.engine.roles.hangs import hang, notice
from framework.engine.roles.networks import limit_network
from framework.engine.roles.slow_downs import slow_down


@inner
def _pass_fault(s: State) -> None:
    """Process the fault or return that is due, then route parked requests if each phase has an instance."""
    sim = s.sim
    sim.fell = 0
    if sim.kind == FAULT:
        _fault(s, sim.id)
    elif sim.kind == ROLE_CHANGE and s.instances[sim.id].down:
        come_back(s, sim.id)
    while sim.parked > 0 and sim.unserved == 0 and s.error.status == 0:
        r = unpark(s)
        if s.requests[r].queue_number == 0:  # it has not been in a queue
            s.requests[r].state = FUTURE
            serve(s, r)
        else:
            reroute(s, r)
    if unlikely(sim.changed_links > 0):
        share_links(s)


@inner
def _fault(s: State, i: int) -> None:
    """Process the fault of i that is due."""
    sim = s.sim
    value = s.times[s.options.fault_values_at + sim.next_fault]
    what = s.lists[s.options.fault_at + s.options.faults + sim.next_fault]
    width = s.lists[s.options.fault_at + 2 * s.options.faults + sim.next_fault]
    sim.next_fault += 1
    note_next_change(s)
    if what == CRASH:
        crash(s, i, value)
    elif what == HANG:
        hang(s, i)
    elif what == DETECTION:
        notice(s, i, value)
    elif what == LINK_FAULT:
        limit_network(s, i, value)
    elif what == REPAIR:
        repair(s, i)
    else:
        slow_down(s, i, value)
    if what != REPAIR and sim.fell > 0 and s.options.widths > 0:
        lose_gpus(s, i, width, value)


@entry(numba.types.int64(HANDED))
def pass_fault(words: Any) -> int:
    """Process the fault for which `engine.loop.run` came back; return YIELDED, or an error of a hook."""
    s = attach_at(words)
    _pass_fault(s)
    return int(s.error.status) if s.error.status != 0 else YIELDED
