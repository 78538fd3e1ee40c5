"""Requests that wait for room on an instance while another instance holds their KV: one list for each destination."""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.memory.queues import append
from framework.engine.memory.state import State


@inner
def wait_for_room(s: State, i: int, r: int) -> None:
    """Let r, which holds KV on its instance, wait for room on i behind all others."""
    inst = s.instances[i]
    was_empty = inst.incoming_head < 0
    inst.incoming_head = append(s, inst.incoming_head, inst.incoming_tail, r)
    inst.incoming_tail = r
    s.sim.crossing += was_empty and inst.holding > 0
    holder = s.instances[s.requests[r].instance]
    holder.holding += 1
    s.sim.crossing += holder.holding == 1 and holder.incoming_head >= 0


@inner
def wait_no_more(s: State, i: int, before: int) -> int:
    """Take the request behind `before` (-1: the first) out of the incoming list of i."""
    inst = s.instances[i]
    r = inst.incoming_head if before < 0 else s.requests[before].next
    following = s.requests[r].next
    if before < 0:
        inst.incoming_head = following
    else:
        s.requests[before].next = following
    if following < 0:
        inst.incoming_tail = before
    s.sim.crossing -= inst.incoming_head < 0 and inst.holding > 0
    holder = s.instances[s.requests[r].instance]
    holder.holding -= 1
    s.sim.crossing -= holder.holding == 0 and holder.incoming_head >= 0
    return r
