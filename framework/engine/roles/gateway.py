"""A look of the gateway, for which the loop returns to Python: it takes in who has come, and releases or refuses some.

A run without a gateway compiles nothing of this module.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from framework.codes import FUTURE, LEAST_TOKENS, PREFILL, REASON_EXPIRED, REASON_SHED, ROUND_ROBIN, YIELDED
from framework.compiler.decorators import entry, inner
from framework.engine.copies.link_sharing import share_links
from framework.engine.durations.leap import catch_up
from framework.engine.memory.attach import HANDED, VIEW, attach_at
from framework.engine.memory.state import State
from framework.engine.requests.arrivals import refuse, serve
from framework.engine.requests.gate import leave_gateway, link, look_at, unlink
from framework.engine.roles.changes import note_next_change
from framework.policy.inspection import View


@entry(numba.types.int64(HANDED, VIEW))
def pass_look(words: Any, shown: View) -> int:
    """Process the look for which `engine.loop.run` came back; return YIELDED, or an error of a hook.

    `shown`: what the gateway sees of instances, if it goes by reports.
    """
    s = attach_at(words)
    _look(s, shown)
    return int(s.error.status) if s.error.status != 0 else YIELDED


@inner
def _look(s: State, shown: View) -> None:
    sim = s.sim
    sim.look_s = np.inf
    sim.awaited -= 1
    note_next_change(s)
    catch_up(s)
    _charge_outputs(s)
    _take_in(s)
    while sim.gated > 0 and s.error.status == 0 and not _is_saturated(s, shown.instances):
        _release(s, _next_flow(s))
    _expire(s)
    _shed(s)
    _look_later(s)
    if sim.changed_links > 0:
        share_links(s)


@inner
def _charge_outputs(s: State) -> None:
    """Charge flows for the outputs of their requests that have finished since the last look."""
    while s.sim.charged < s.sim.finished:
        r = s.lists[s.options.finished_at + s.sim.charged]
        s.flows[s.lists[s.options.flow_at + r]].tokens += s.options.output_weight * s.requests[r].emitted
        s.sim.charged += 1


@inner
def _take_in(s: State) -> None:
    """Let those that have come enter their flows. An empty flow is charged as much as the others, if it was less."""
    while s.flows[s.options.flows].head >= 0:
        r = s.flows[s.options.flows].head
        unlink(s, s.options.flows, r)
        f = s.lists[s.options.flow_at + r]
        band = s.flows[s.flows[f].first]
        if s.flows[f].head < 0:
            least = s.flows[_least_charged(s, s.flows[f].first)].tokens if band.gated > 0 else band.floor
            s.flows[f].tokens = max(s.flows[f].tokens, least)
        link(s, f, r)
        band.gated += 1
        s.sim.gated_number += 1
        s.lists[s.options.gated_number_at + r] = s.sim.gated_number
        s.sim.last_news = max(s.sim.last_news, s.sim.next_report - 1)  # those that are under way


@inner
def _least_charged(s: State, first: int) -> int:
    """The flow with requests that is charged least, in the band of flow `first`."""
    best = -1
    for f in range(first, first + s.flows[first].flows):
        if s.flows[f].head >= 0 and (best < 0 or s.flows[f].tokens < s.flows[best].tokens):
            best = f
    return best


# --- release ----------------------------------------------------------------------------------------------------------


@inner
def _is_saturated(s: State, instances: Any) -> bool:
    """Whether the fleet can take no more prompts, by these columns of instances."""
    return _is_utilized(s, instances) if s.options.goes_by_utilization else _has_its_most(s)


@inner
def _is_utilized(s: State, instances: Any) -> bool:
    """Whether instances that take prompts have long queues or little memory; their roles are the present ones."""
    scores, least, count = 0.0, np.inf, 0
    for i in range(s.options.instances):
        if s.instances[i].role & PREFILL:
            inst = instances[i]
            used = inst.total_blocks - inst.free_blocks - inst.evictable_blocks
            score = max(inst.queued / s.options.queue_threshold, used / inst.total_blocks / s.options.kv_threshold)
            scores += score
            least = min(least, score)
            count += 1
    return count == 0 or (least >= 1.0 if s.options.saturated_at_all else scores >= count)


@inner
def _has_its_most(s: State) -> bool:
    """Whether as many requests are in flight as may be; the gateway has sent them itself, so it knows."""
    sent, count = 0, 0
    for i in range(s.options.instances):
        inst = s.instances[i]
        sent += inst.queued + inst.prefilling + inst.running + inst.joining + inst.swapped + inst.incoming
        count += inst.role & PREFILL > 0
    return sent >= s.options.most_in_flight * count


@inner
def _next_flow(s: State) -> int:
    """The flow whose first request is released next."""
    first = 0
    while s.flows[first].gated == 0:
        first += s.flows[first].flows
    if s.options.fairness == LEAST_TOKENS:
        return _least_charged(s, first)
    if s.options.fairness == ROUND_ROBIN:
        return _in_turn(s, first)
    return first


@inner
def _in_turn(s: State, first: int) -> int:
    """The next flow with requests behind the one that released the last, in the band of flow `first`."""
    band = s.flows[first]
    f = band.turn
    while True:
        f = f + 1 if f + 1 < first + band.flows else first
        if s.flows[f].head >= 0:
            return f


@inner
def _release(s: State, f: int) -> None:
    """Serve the first request of flow f, and charge the flow for its prompt."""
    r = s.flows[f].head
    leave_gateway(s, r)
    s.flows[s.flows[f].first].turn = f
    s.flows[f].tokens += s.requests[r].input_tokens
    s.requests[r].state = FUTURE
    serve(s, r)


# --- refusal ----------------------------------------------------------------------------------------------------------


@inner
def _expire(s: State) -> None:
    """Refuse those that have waited for as long as their band allows, flow by flow."""
    for f in range(s.options.flows):
        while s.flows[f].head >= 0 and _deadline_s(s, f) <= s.sim.now_s:
            _refuse(s, s.flows[f].head, REASON_EXPIRED)


@inner
def _deadline_s(s: State, f: int) -> float:
    """When the first request of flow f has waited for too long."""
    return s.times[s.options.gated_since_at + s.flows[f].head] + s.flows[s.flows[f].first].ttl_s


@inner
def _shed(s: State) -> None:
    """Refuse those that came last, of each band with too many, then of the last band with any if too many are left."""
    first = 0
    while first < s.options.flows:
        while s.flows[first].gated > s.flows[first].most:
            _refuse(s, _last_of(s, first), REASON_SHED)
        first += s.flows[first].flows
    while s.sim.gated > s.options.most_gated:
        f = s.options.flows - 1
        while s.flows[s.flows[f].first].gated == 0:
            f = s.flows[f].first - 1
        _refuse(s, _last_of(s, s.flows[f].first), REASON_SHED)


@inner
def _last_of(s: State, first: int) -> int:
    """The request that came last to the band of flow `first`."""
    last, number = -1, 0
    for f in range(first, first + s.flows[first].flows):
        r = s.flows[f].tail
        if r >= 0 and s.lists[s.options.gated_number_at + r] > number:
            last, number = r, s.lists[s.options.gated_number_at + r]
    return last


@inner
def _refuse(s: State, r: int, reason: int) -> None:
    leave_gateway(s, r)
    s.requests[r].state = FUTURE
    refuse(s, r, reason)


@inner
def _look_later(s: State) -> None:
    """Look again at the next deadline, and when the next report with news arrives, if requests wait."""
    for f in range(s.options.flows):
        if s.flows[f].head >= 0 and _deadline_s(s, f) < np.inf:
            look_at(s, _deadline_s(s, f))
    if s.options.goes_by_reports and s.sim.gated > 0:
        _await_report(s)


@inner
def _await_report(s: State) -> None:
    """Look again when the next report arrives: one that was under way, or that may show what has come free by now."""
    sim, every_s, delay_s = s.sim, s.options.report_every_s, s.options.report_delay_s
    if not _is_saturated(s, s.instances):
        sim.last_news = sim.next_report
    while sim.next_seen * every_s + delay_s <= sim.now_s:
        sim.next_seen += 1
    if sim.next_seen <= sim.last_news:
        look_at(s, sim.next_seen * every_s + delay_s)
