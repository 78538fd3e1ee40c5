"""The gateway (SEMANTICS.md: Gateway): requests wait in flows, and a look releases or refuses them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from framework.codes import PREFILL
from framework.reference.arrivals import refuse, serve
from framework.reference.gateway.gate import Flow, Signals
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request


def look(s: Simulation) -> None:
    """Take in who has come, release requests while the fleet is not saturated, then refuse some."""
    gate = s.gate
    assert gate is not None
    gate.look = None
    gate.charge_outputs(s.finished)
    gate.take_in()
    while gate.waiting and not is_saturated(s, gate.shown(s.now_s) if gate.goes_by_reports else signals(s)):
        release(s, gate.next_flow())
    for flow in gate.flows:
        while flow.requests and gate.deadline_s(flow) <= s.now_s:
            refuse_waiting(s, flow.requests[0], "expired")
    for r in too_many(s):
        refuse_waiting(s, r, "shed")
    for flow in gate.flows:
        if flow.requests and gate.deadline_s(flow) < math.inf:
            gate.look_at(s, gate.deadline_s(flow))
    if gate.waiting and gate.goes_by_reports:
        number = gate.next_report(s.now_s)
        if not is_saturated(s, signals(s)):
            gate.last_news = gate.taken + 1
        if number <= gate.last_news:
            gate.look_at(s, gate.arrives_s(number))


def release(s: Simulation, flow: Flow) -> None:
    """Serve the first request of the flow."""
    gate = s.gate
    assert gate is not None
    r = flow.requests[0]
    gate.leave(r, s.now_s)
    gate.turns[flow.band] = flow.tenant
    flow.tokens += r.input_tokens
    serve(s, r)


def refuse_waiting(s: Simulation, r: Request, reason: str) -> None:
    """Refuse a request that waits."""
    assert s.gate is not None
    s.gate.leave(r, s.now_s)
    refuse(s, r, reason)


def too_many(s: Simulation) -> Iterator[Request]:
    """The requests that find no place: the last of each band with too many, then the last of the last band."""
    gate = s.gate
    assert gate is not None
    for band in sorted({flow.band for flow in gate.flows}):
        while len(gate.of(band)) > gate.limits[band][0]:
            yield gate.of(band)[-1]
    while len(gate.waiting) > (math.inf if gate.config.most_waiting is None else gate.config.most_waiting):
        yield gate.of(max(flow.band for flow in gate.flows if flow.requests))[-1]


# --- saturation -------------------------------------------------------------------------------------------------------


def is_saturated(s: Simulation, seen: Signals) -> bool:
    """Whether the fleet can take no more prompts, by what is seen of its instances."""
    gate = s.gate
    assert gate is not None
    there = [i for i in s.instances if i.role & PREFILL]
    if gate.config.saturation == "in_flight":
        return sum(map(in_flight, s.instances)) >= gate.config.most_in_flight * len(there)
    scores = [score(s, *seen[i.id]) for i in there]
    if not scores:
        return True
    return min(scores) >= 1 if gate.config.saturated_at == "all" else sum(scores) >= len(scores)


def signals(s: Simulation) -> Signals:
    """By instance: waiting requests, used blocks, and all blocks."""
    return [(len(i.waiting) + len(i.inbox), i.cache.total - i.cache.available, i.cache.total) for i in s.instances]


def score(s: Simulation, queued: int, used: int, total: int) -> float:
    """How near an instance is to saturation, 1: there."""
    assert s.gate is not None
    config = s.gate.config
    return max(queued / config.queue_threshold, used / total / config.kv_threshold)


def in_flight(i: Instance) -> int:
    """The requests that i has, or that are on their way there."""
    waiting = len(i.waiting) + len(i.inbox) + len(i.swapped) + len(i.incoming) + len(i.reserved)
    return waiting + len(i.prefilling) + len(i.running) + len(i.joining) + len(i.computed)


def keep_report(s: Simulation, number: int) -> None:
    """Keep what the instances report now."""
    if s.gate is not None:
        s.gate.keep(number, signals(s))
