"""Requests that wait at the gateway: their lists, and when the gateway looks next. What it does then: roles/gateway.py.

A request that arrives is put behind the flows. At the look of that time it enters its flow, and gets a number.
"""

from __future__ import annotations

import numpy as np

from framework.codes import GATED, GATEWAY
from framework.compiler.decorators import inner
from framework.engine.memory.state import State


@inner
def wait_at_gateway(s: State, r: int) -> None:
    """r, which arrives, waits until the gateway looks, later at this time."""
    s.requests[r].state = GATED
    s.times[s.options.gated_since_at + r] = s.sim.now_s
    s.sim.gated += 1
    link(s, s.options.flows, r)
    look_at(s, s.sim.now_s)


@inner
def link(s: State, f: int, r: int) -> None:
    """Put r behind the requests of flow f."""
    flow = s.flows[f]
    s.lists[s.options.gated_next_at + r] = -1
    s.lists[s.options.gated_before_at + r] = flow.tail
    if flow.tail < 0:
        flow.head = r
    else:
        s.lists[s.options.gated_next_at + flow.tail] = r
    flow.tail = r


@inner
def unlink(s: State, f: int, r: int) -> None:
    """Take r out of flow f."""
    flow = s.flows[f]
    before, after = s.lists[s.options.gated_before_at + r], s.lists[s.options.gated_next_at + r]
    if before < 0:
        flow.head = after
    else:
        s.lists[s.options.gated_next_at + before] = after
    if after < 0:
        flow.tail = before
    else:
        s.lists[s.options.gated_before_at + after] = before


@inner
def leave_gateway(s: State, r: int) -> None:
    """Take r away from the gateway."""
    s.sim.gated -= 1
    s.times[s.options.gated_s_at + r] += s.sim.now_s - s.times[s.options.gated_since_at + r]
    f = s.lists[s.options.flow_at + r]
    if s.lists[s.options.gated_number_at + r] == 0:
        unlink(s, s.options.flows, r)
        return
    s.lists[s.options.gated_number_at + r] = 0
    unlink(s, f, r)
    band = s.flows[s.flows[f].first]
    band.gated -= 1
    if s.flows[f].head < 0:
        band.floor = s.flows[f].tokens


@inner
def note_turn(s: State) -> None:
    """An instance that was marked as changed schedules: it may have room for more afterwards."""
    if s.sim.gated > 0:
        look_at(s, s.sim.now_s)


@inner
def look_at(s: State, time_s: float) -> None:
    """Let the gateway look at that time, unless it looks before."""
    sim = s.sim
    if time_s < sim.look_s:
        sim.awaited += sim.look_s == np.inf
        sim.look_s = time_s
        note_look(s)


@inner
def note_look(s: State) -> None:
    """Note when the gateway looks, if that comes before what else is known to come."""
    sim = s.sim
    if sim.look_s < sim.change_s:
        sim.change_s = sim.look_s
        sim.changing = 0
        sim.change_kind = GATEWAY
