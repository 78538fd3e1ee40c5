"""The event loop: the earliest of step ends, copy ends, role changes, ticks and arrivals, until all have ended."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from framework.codes import (
    ADMIT,
    ARRIVAL,
    BAD_INSTANCE,
    COPYING,
    DONE,
    FETCHING,
    HOOK_RAISED,
    LOG_FULL,
    MIGRATE,
    ON_TICK,
    PAUSED,
    PREFILL_END,
    REASON_CONTEXT,
    REASON_KV,
    REASON_POLICY,
    REASON_STALLED,
    REJECTED,
    ROLE_CHANGE,
    SET_ROLE,
    SET_TOKEN_BUDGET,
    STEP_END,
    TICK,
    TRANSFER_END,
)
from framework.compiler.decorators import entry, inlined, kernel, unlikely
from framework.compiler.pointer import pointer
from framework.engine.arrivals import end_fetch, place
from framework.engine.ask import fail
from framework.engine.hooks import DECISION, KEY, RAISED, Hooks
from framework.engine.kv_cache import fits
from framework.engine.leap import catch_up
from framework.engine.mechanisms.roles import set_role, take_effect
from framework.engine.mechanisms.sm_sharing import may_prefill
from framework.engine.queues import copy_withdraw, release_pop, release_push, tree_update
from framework.engine.requests import end, fail_rest
from framework.engine.scheduler import begin, begin_prefills
from framework.engine.state import INSTANCE, LEAP, MEMBERSHIP, PROGRESS, REQUEST, SIM, STORE, STREAM, State, View
from framework.engine.step_end import end_prefills, end_step
from framework.engine.transfers import arrive_with_kv, copy_done, migrate, poke
from framework.timing.table import ROW


def sample_state() -> State:
    """Arrays of the right types and no meaning, for signatures."""
    return State(
        np.zeros(1, SIM),
        np.zeros(1, REQUEST),
        np.zeros(1, INSTANCE),
        np.zeros(1, PROGRESS),
        np.zeros(1, STREAM),
        np.zeros(1, np.int64),
        np.zeros(1, LEAP),
        np.zeros(1, MEMBERSHIP),
        np.zeros(1, ROW),
        np.zeros(1),
        np.zeros(1, STORE),
    )


@kernel
def _next_event(s: State) -> int:
    """Advance the clock to the next event and tell which it is: the id; -1 if only ticks and role changes are left."""
    sim = s.sim[0]
    time_s, kind, event = np.inf, STEP_END, -1
    first = s.arena[sim.tree_at + 1]
    if first < sim.instances and s.progress[first].event_s < time_s:
        time_s, kind, event = s.progress[first].event_s, STEP_END, first
    if sim.stream_s < time_s:
        time_s, kind, event = sim.stream_s, PREFILL_END, sim.streaming
    if sim.heap_size > 0:
        r = s.arena[sim.heap_at]
        if s.requests[r].event_s < time_s:
            time_s, kind, event = s.requests[r].event_s, TRANSFER_END, r
    r = _next_arrival(s)
    if r >= 0:
        arrival_s = s.requests[r].event_s
        if arrival_s < time_s:
            time_s, kind, event = arrival_s, ARRIVAL, r
    if event >= 0 and (sim.change_s < time_s or (sim.change_s == time_s and kind == ARRIVAL)):
        time_s, kind, event = sim.change_s, ROLE_CHANGE, sim.changing
    if event >= 0 and sim.tick_s > 0.0:
        tick_s = sim.next_tick * sim.tick_s
        if tick_s < time_s or (tick_s == time_s and kind == ARRIVAL):
            time_s, kind, event = tick_s, TICK, sim.next_tick
    if event >= 0:
        sim.now_s = time_s
        sim.kind = kind
        sim.id = event
    return event


@kernel
def _next_arrival(s: State) -> int:
    """The request that arrives next: of the trace, or a later turn that has been released; -1 if none is known."""
    sim = s.sim[0]
    while sim.next_arrival < sim.requests and s.requests[sim.next_arrival].follows:
        sim.next_arrival += 1
    r = sim.next_arrival if sim.next_arrival < sim.requests else -1
    if sim.released_size > 0:
        other = s.arena[sim.released_at]
        if r < 0:
            return other
        x, y = s.requests[other].event_s, s.requests[r].event_s
        if x < y or (x == y and other < r):
            return other
    return r


@inlined
def _process(s: State, h: Hooks, event: int) -> None:
    sim = s.sim[0]
    if event < 0:
        fail_rest(s, REASON_STALLED)
    elif sim.kind == STEP_END:
        end_step(s, h, event)
        tree_update(s, event)
    elif unlikely(sim.kind == PREFILL_END):
        end_prefills(s, h, event)
    elif sim.kind == TRANSFER_END:
        copy_withdraw(s, event)
        if s.requests[event].migration == COPYING:
            copy_done(s, event)
        elif unlikely(s.requests[event].state == FETCHING):
            end_fetch(s, h, event)
        else:
            arrive_with_kv(s, event)
    elif sim.kind == ROLE_CHANGE:
        take_effect(s, event)
        poke(s, event)
    elif sim.kind == TICK:
        sim.next_tick += 1
        _tick(s, h, event)
    else:
        _arrive(s, h, event)


@inlined
def _begin_woken(s: State, h: Hooks) -> None:
    """Idle instances for which something came up in this event begin, in the order in which they were woken."""
    sim = s.sim[0]
    while sim.woken > 0:
        i = s.arena[sim.woken_at + sim.woken_first]
        sim.woken_first = (sim.woken_first + 1) % sim.instances
        sim.woken -= 1
        s.instances[i].woken = False
        if not s.instances[i].busy:
            begin(s, h, i)
        elif unlikely(may_prefill(s, i)):
            begin_prefills(s, h, i)


@inlined
def _arrive(s: State, h: Hooks, r: int) -> None:
    q, sim = s.requests[r], s.sim[0]
    if sim.released_size > 0 and s.arena[sim.released_at] == r:
        release_pop(s)
    else:
        sim.next_arrival += 1
    if not q.taken_in:
        q.taken_in = True
        q.arrival_s = sim.now_s
        if sim.intake_s > 0.0:
            sim.intake_free_s = max(sim.now_s, sim.intake_free_s) + sim.intake_s
            release_push(s, r, sim.intake_free_s)
            return
    if q.input_tokens + s.arena[sim.output_at + r] > sim.max_context:
        end(s, r, REJECTED, REASON_CONTEXT)
        return
    fitting = False
    for i in range(sim.instances):
        fitting = fitting or fits(s, i, r)
        if fitting:
            break
    if not fitting:
        end(s, r, REJECTED, REASON_KV)
        return
    if sim.asks_admit:
        if sim.observes:
            catch_up(s)
        answer = h.admit(r, h.seen, h.params, h.state)
        if answer == RAISED:
            fail(s, HOOK_RAISED, ADMIT, r, answer)
            return
        if answer != 0:
            end(s, r, REJECTED, answer if sim.admit_gives_reasons else REASON_POLICY)
            return
    place(s, h, r)


@inlined
def _tick(s: State, h: Hooks, tick: int) -> None:
    sim = s.sim[0]
    catch_up(s)
    count = h.on_tick(tick, h.seen, h.params, h.state)
    if count == RAISED:
        fail(s, HOOK_RAISED, ON_TICK, -1, count)
        return
    for j in range(count):
        action = h.seen.actions[j]
        if action.instance < 0 or action.instance >= sim.instances:
            fail(s, BAD_INSTANCE, ON_TICK, action.request, action.instance)
            return
        if action.kind == MIGRATE:
            migrate(s, action.request, action.instance)
        elif action.kind == SET_TOKEN_BUDGET:
            s.instances[action.instance].token_budget = action.value
            poke(s, action.instance)
        elif action.kind == SET_ROLE:
            set_role(s, h, action.instance, action)
            if sim.status != 0:
                return


_DECISION = types.FunctionType(DECISION)
_VIEW, _FLOATS = DECISION.args[1], DECISION.args[2]
_RUN = types.int64(
    numba.typeof(sample_state()),
    *(_DECISION, _DECISION, _DECISION, types.FunctionType(KEY), _DECISION, _DECISION, _DECISION, _DECISION),
    *(_VIEW, _FLOATS, _FLOATS, types.int64),
)


@entry(_RUN)
def run(
    s: State,
    admit: Any,
    route_prefill: Any,
    route_decode: Any,
    prioritize: Any,
    batching: Any,
    on_tick: Any,
    split_at: Any,
    fetch_prefix: Any,
    view: View,
    params: np.ndarray,
    state: np.ndarray,
    events: int,
) -> int:
    """Process up to `events` events; why it came back (DONE, PAUSED, LOG_FULL, or an error of a hook)."""
    m = State(
        pointer(s.sim),
        pointer(s.requests),
        pointer(s.instances),
        pointer(s.progress),
        pointer(s.streams),
        pointer(s.arena),
        pointer(s.leaps),
        pointer(s.memberships),
        pointer(s.timing_rows),
        pointer(s.timing_data),
        pointer(s.stores),
    )
    h = Hooks(
        admit, route_prefill, route_decode, prioritize, batching, on_tick, split_at, fetch_prefix, view, params, state
    )
    sim = m.sim[0]
    memberships_of_an_event = 4 * sim.most_running + 64
    stop = sim.events + events
    while sim.remaining > 0:
        if sim.leaps + 2 > len(s.leaps) or sim.memberships + memberships_of_an_event > len(s.memberships):
            return LOG_FULL
        if sim.events >= stop:
            return PAUSED
        sim.events += 1
        _process(m, h, _next_event(m))
        _begin_woken(m, h)
        if sim.status != 0:
            return int(sim.status)
    return DONE
