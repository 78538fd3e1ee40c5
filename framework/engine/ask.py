"""Asking the policy: where a request goes, in what order a queue is read, how an instance forms its steps."""

from __future__ import annotations

import numpy as np

from framework.codes import (
    BAD_INSTANCE,
    BAD_ROLE,
    BATCHING,
    DECODE,
    HOOK_RAISED,
    PREFILL,
    PRIORITIZE,
    ROUTE_DECODE,
    ROUTE_PREFILL,
    SPLIT_AT,
    WAITING,
)
from framework.compiler.decorators import inlined, kernel, unlikely
from framework.engine.hooks import RAISED, REFUSED, Hooks
from framework.engine.leap import catch_up
from framework.engine.queues import append, queue_pop, queue_push
from framework.engine.state import State
from framework.engine.transfers import poke

_MODES, _SHARE = 8, 1 << 48  # a batching plan arrives as prefill_percent (or 0) * 2^48 + token_budget * 8 + mode


@kernel
def fail(s: State, status: int, hook: int, request: int, value: int) -> None:
    """Stop the run because of what a hook did; the first such event is kept."""
    sim = s.sim[0]
    if sim.status == 0:
        sim.status = status
        sim.error_hook = hook
        sim.error_request = request
        sim.error_value = value


@inlined
def choose(s: State, h: Hooks, hook: int, r: int) -> int:
    """Ask a routing hook for r's instance; -1 after stopping the run where the answer cannot be used.

    `route_decode` may refuse: the answer is then handed on.
    """
    sim = s.sim[0]
    if sim.observes:
        catch_up(s)
    if hook == ROUTE_PREFILL:
        i = h.route_prefill(r, h.seen, h.params, h.state)
    else:
        i = h.route_decode(r, h.seen, h.params, h.state)
    if i == RAISED:
        fail(s, HOOK_RAISED, hook, r, i)
        return -1
    if hook == ROUTE_DECODE and i <= REFUSED:
        return int(i)
    if i < 0 or i >= sim.instances:
        fail(s, BAD_INSTANCE, hook, r, i)
        return -1
    phase = PREFILL if hook == ROUTE_PREFILL else DECODE
    if s.instances[i].role & phase == 0:
        fail(s, BAD_ROLE, hook, r, i)
        return -1
    return int(i)


@kernel
def ask_split(s: State, h: Hooks, r: int) -> None:
    """Where r, just routed, is cut; a cut behind its prompt is so in its output, at the first token or later."""
    q, sim = s.requests[r], s.sim[0]
    if sim.observes:
        catch_up(s)
    cut = h.split_at(r, h.seen, h.params, h.state)
    if cut < 0:
        fail(s, HOOK_RAISED, SPLIT_AT, r, cut)
    else:
        q.cut = cut if cut < q.input_tokens else max(cut, q.input_tokens + 1)


@inlined
def enqueue(s: State, h: Hooks, i: int, r: int) -> None:
    """Queue r at i by the policy's key."""
    q, sim = s.requests[r], s.sim[0]
    q.instance = i
    q.state = WAITING
    q.key = 0.0
    if sim.asks_prioritize:
        if sim.observes:
            catch_up(s)
        q.key = _key(s, h, r)
    sim.seq += 1
    q.seq = sim.seq
    enter_queue(s, i, r)


@inlined
def _key(s: State, h: Hooks, r: int) -> float:
    key = h.prioritize(r, h.seen, h.params, h.state)
    if key != key:
        fail(s, HOOK_RAISED, PRIORITIZE, r, 0)
    return key


@kernel
def enter_queue(s: State, i: int, r: int) -> None:
    """Let r, its key and seq set, wait at i to have all it has so far prefilled."""
    q, inst = s.requests[r], s.instances[i]
    q.target = q.input_tokens + q.emitted
    if unlikely(0 < q.cut < q.target):
        q.target = q.cut
    q.done = 0
    inst.queued += 1
    inst.queued_tokens += q.target
    queue_push(s, i, r)
    poke(s, i)


@inlined
def ask_plan(s: State, h: Hooks, i: int) -> None:
    """The plan of i's coming iterations, and new keys for its queue where they are dynamic."""
    inst, sim = s.instances[i], s.sim[0]
    if sim.asks_batching:
        if sim.observes:
            catch_up(s)
        plan = h.batching(i, h.seen, h.params, h.state)
        if plan <= 0:
            fail(s, HOOK_RAISED, BATCHING, i, plan)
        else:
            if unlikely(plan >= _SHARE):
                inst.prefill_percent = plan // _SHARE
                plan %= _SHARE
            inst.token_budget = plan // _MODES
            inst.mode = plan % _MODES
    if sim.dynamic_keys and inst.queued > 0:
        if sim.observes:
            catch_up(s)
        _renew_keys(s, h, i)


@inlined
def _renew_keys(s: State, h: Hooks, i: int) -> None:
    """Empty the queue into a chain, ask for new keys in the queue's order, and queue all again."""
    first = last = -1
    while s.instances[i].waiting_root >= 0:
        r = queue_pop(s, i)
        first = append(s, first, last, r)
        last = r
    while first >= 0:
        r = first
        first = s.requests[r].next
        if s.requests[r].key != -np.inf:
            s.requests[r].key = _key(s, h, r)
        queue_push(s, i, r)
