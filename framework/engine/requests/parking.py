"""Parking: requests that need routing while some phase has no instance wait until each phase has one."""

from __future__ import annotations

import numpy as np

from framework.codes import PARKED
from framework.compiler.decorators import inner
from framework.engine.memory.queues import append, take_out
from framework.engine.memory.state import State


@inner
def park(s: State, r: int) -> None:
    """Park r, which is in no list and holds no KV, behind other parked requests."""
    q, sim = s.requests[r], s.sim
    q.state = PARKED
    q.instance = -1
    q.destination = -1
    forget_place(s, r)
    sim.parked_head = append(s, sim.parked_head, sim.parked_tail, r)
    sim.parked_tail = r
    sim.parked += 1


@inner
def forget_place(s: State, r: int) -> None:
    """Let r, which holds no KV, be computed on the routed instance until it decodes."""
    q = s.requests[r]
    q.rerouted = True
    q.first_token_pending = False
    if q.emitted == 0:
        q.transfer_end_s = np.nan  # what was sent is lost; token 1 needs another transfer


@inner
def leave_parked(s: State, r: int) -> None:
    """Take r out of the parked requests."""
    sim = s.sim
    sim.parked_head, sim.parked_tail = take_out(s, sim.parked_head, sim.parked_tail, r)
    sim.parked -= 1


@inner
def unpark(s: State) -> int:
    """Take the first parked request."""
    sim = s.sim
    r = sim.parked_head
    sim.parked_head = s.requests[r].next
    sim.parked -= 1
    return r
