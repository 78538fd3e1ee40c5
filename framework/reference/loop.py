"""The event loop of the reference engine (SEMANTICS.md: Events, Ticks): each step is an event of its own."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from framework.codes import (
    ARRIVAL,
    COPY_END,
    FAULT,
    GATEWAY,
    GIVE_UP,
    PIN_END,
    PREFILL_STEP_END,
    REPORT,
    ROLE_CHANGE,
    SCHEDULE,
    STEP_END,
    TICK,
)
from framework.policy.hooks import MOST_QUIET_TICKS
from framework.reference.arrivals import arrive, finish_copy
from framework.reference.circles import break_circle, fail_rest
from framework.reference.copies.links import share_links
from framework.reference.decisions import carry_out, decide, decision_is_due, lose_patience, tell
from framework.reference.faults.crashes import come_back, fail, route_parked
from framework.reference.gateway.look import keep_report, look
from framework.reference.holdings import kv_tokens
from framework.reference.kv import free_deferred
from framework.reference.pins import deal_with_notices, end_pins, pass_time
from framework.reference.roles import take_role
from framework.reference.simulation import FAR_OFF, NOT_AWAITED, Simulation
from framework.reference.spans.together import deal_with_spans, give_back_shares, span_is_due
from framework.reference.steps.scheduling import take_turn
from framework.reference.steps.step_end import finish_prefill_step, finish_step

_EVENTS_BETWEEN_REPORTS = 10_000


def run(s: Simulation, progress: Callable[[int, int], None] | None = None) -> Simulation:
    """Process events until every request has ended; `progress(ended, total)` is called now and then."""
    _begin(s)
    while len(s.ended) < len(s.requests):
        give_back_shares(s)
        deal_with_notices(s)
        if instant_is_over(s) and break_circle(s):
            share_links(s)
            continue
        if not s.goes_on:
            fail_rest(s)
            break
        time_s, kind, id, serial = heapq.heappop(s.heap)
        if serial in s.withdrawn:
            continue
        if kind == TICK and skips_ticks(s, time_s, id):
            continue
        s.outstanding -= kind not in NOT_AWAITED
        s.far_off -= kind in FAR_OFF
        while time_s > s.next_mark_s:
            advance(s, s.next_mark_s)
            s.take_mark()
        advance(s, time_s)
        if kind == SCHEDULE:
            if decision_is_due(s, s.instances[id]):
                decide(s, s.instances[id])
                s.push(time_s, SCHEDULE, id)
            elif span_is_due(s, s.instances[id]):
                if not deal_with_spans(s, s.instances[id]):
                    s.push(time_s, SCHEDULE, id)
            else:
                take_turn(s, s.instances[id])
            tell(s)
            route_parked(s)
            share_links(s)
            continue
        if kind != TICK:
            s.quiet_ticks = 0
        s.order.append((time_s, kind, id))
        process(s, kind, id)
        tell(s)
        route_parked(s)
        share_links(s)
        if progress is not None and len(s.order) % _EVENTS_BETWEEN_REPORTS == 0:
            progress(len(s.ended), len(s.requests))
    give_back_shares(s)
    for i in s.instances:
        free_deferred(s, i)
        end_pins(i)
    return s


def _begin(s: Simulation) -> None:
    """Announce the arrivals that are known, faults, the first tick and the first report."""
    opening = [r for r in s.requests if s.opens(r.id)]
    if s.options.clients is None:
        for r in filter(lambda r: s.waits_for_none(r.id), s.requests):
            s.push(float(s.workload.arrival_s[r.id]) + s.options.request_s, ARRIVAL, r.id)
    else:
        s.sessions = opening
        for _ in range(min(s.options.clients, len(opening))):
            s.push(s.options.request_s, ARRIVAL, s.sessions.pop(0).id)
    if s.hooks.tick_s is not None:
        s.push(s.hooks.tick_s, TICK, 1)
    for one in s.options.faults:
        s.push(one.at_s, FAULT, one.instance)
    if s.gate is not None:
        keep_report(s, 0)
    if s.options.engine.views:
        s.push(s.options.engine.views.period_s, REPORT, 1)


def instant_is_over(s: Simulation) -> bool:
    """Whether nothing more is due at the present time."""
    while s.heap and s.heap[0][3] in s.withdrawn:
        heapq.heappop(s.heap)
    return not s.goes_on or s.heap[0][0] > s.now_s


def advance(s: Simulation, time_s: float) -> None:
    """Advance the clock to the next event."""
    passed_s = time_s - s.now_s
    if passed_s == 0.0:
        return
    for i in s.instances:
        totals = i.totals
        totals["kv_block_s"] += i.cache.used * passed_s
        totals["kv_token_s"] += kv_tokens(i) * passed_s
    s.now_s = time_s


def process(s: Simulation, kind: int, id: int) -> None:
    """Process one event."""
    if kind == STEP_END:
        finish_step(s, s.instances[id])
    elif kind == PREFILL_STEP_END:
        finish_prefill_step(s, s.instances[id])
    elif kind == COPY_END:
        finish_copy(s, s.requests[id])
    elif kind == ARRIVAL:
        arrive(s, s.requests[id])
    elif kind == GIVE_UP:
        lose_patience(s, s.sent[id])
    elif kind == PIN_END:
        pass_time(s, s.requests[id])
    elif kind == FAULT:
        fail(s, s.instances[id])
    elif kind == REPORT:
        report(s, id)
    elif kind == GATEWAY:
        look(s)
    elif kind == ROLE_CHANGE and s.instances[id].down:
        come_back(s, s.instances[id])
    elif kind == ROLE_CHANGE:
        take_role(s, s.instances[id])
        s.wake(s.instances[id])
    else:
        tick(s, id)


def report(s: Simulation, number: int) -> None:
    """Let the instances report."""
    s.push((number + 1) * s.options.engine.views.period_s, REPORT, number + 1)
    s.hooks.report(s, number)
    keep_report(s, number)


def skips_ticks(s: Simulation, time_s: float, number: int) -> bool:
    """Count a tick, or skip it and those up to the next arrival or end of a copy if nothing else can follow."""
    assert s.hooks.tick_s is not None
    while s.heap and s.heap[0][3] in s.withdrawn:
        heapq.heappop(s.heap)
    next_s, kind, _, _ = s.heap[0]
    if kind not in FAR_OFF or s.outstanding > s.far_off:
        s.quiet_ticks = 0
    elif s.quiet_ticks < MOST_QUIET_TICKS:
        s.quiet_ticks += 1
    else:
        later = first_tick(next_s, s.hooks.tick_s)
        if later > number:
            s.push(later * s.hooks.tick_s, TICK, later)
            return True
    return False


def first_tick(time_s: float, tick_s: float) -> int:
    """The number of the first tick that is not before `time_s`."""
    number = max(math.ceil(time_s / tick_s), 1)
    while number > 1 and (number - 1) * tick_s >= time_s:
        number -= 1
    while number * tick_s < time_s:
        number += 1
    return number


def tick(s: Simulation, number: int) -> None:
    """Ask for the actions of a tick and carry them out in order."""
    assert s.hooks.tick_s is not None
    s.push((number + 1) * s.hooks.tick_s, TICK, number + 1)
    for action in s.hooks.on_tick(s, number):
        carry_out(s, "on_tick", action)
