"""Prefixes on their way up: what an admitted request finds in stores, and what another instance sends ahead of it."""

from __future__ import annotations

from framework.codes import (
    BAD_INSTANCE,
    FETCH_PREFIX,
    FETCHING,
    HOOK_RAISED,
    PREFILL,
    REASON_KV,
    REJECTED,
    ROUTE_PREFILL,
)
from framework.compiler.decorators import inlined, kernel, unlikely
from framework.engine.ask import ask_split, choose, enqueue, fail
from framework.engine.hooks import RAISED, Hooks
from framework.engine.kv_cache import find, fits, insert, matched_blocks
from framework.engine.leap import catch_up
from framework.engine.mechanisms.prefix_tiers import keep, tier_of
from framework.engine.requests import end
from framework.engine.state import State
from framework.engine.transfers import start_copy


@kernel
def load_prefix(s: State, i: int, r: int) -> None:
    """Bring the matched blocks of r that i has in stores alone into its cache, where r has taken room for them."""
    q, inst, sim = s.requests[r], s.instances[i], s.sim[0]
    for k in range(sim.tiers):
        blocks = 0
        for j in range(q.registered):
            held = s.arena[sim.held_at + q.hash_at + j]
            if held == 0 and tier_of(s, i, s.arena[sim.hash_at + q.hash_at + j]) == k:
                blocks += 1
        if blocks > 0:
            store = s.stores[i * sim.tiers + k]
            tokens = blocks * sim.hash_blocks * sim.block_tokens
            bytes_ = tokens * sim.kv_bytes_per_token
            store.loaded_bytes += bytes_
            inst.load_s += store.latency_s + bytes_ / store.bandwidth_bytes_s
            if q.start_s != q.start_s:
                store.hit_tokens += tokens
    for j in range(q.registered):
        key = s.arena[sim.hash_at + q.hash_at + j]
        if s.arena[sim.held_at + q.hash_at + j] == 0 and find(s, i, key) < 0:
            insert(s, i, key)
            s.arena[sim.held_at + q.hash_at + j] = 1
            q.shared += 1


@inlined
def place(s: State, h: Hooks, r: int) -> None:
    """Queue r, which may be served, where the policy says, once a prefix that it wants there has come."""
    i = choose(s, h, ROUTE_PREFILL, r)
    if i < 0:
        return
    if not fits(s, i, r):
        end(s, r, REJECTED, REASON_KV)
        return
    if unlikely(s.sim[0].asks_fetch) and _fetches(s, h, i, r):
        return
    _queue(s, h, i, r)


@inlined
def _queue(s: State, h: Hooks, i: int, r: int) -> None:
    if unlikely(s.sim[0].asks_split_at):
        ask_split(s, h, r)
    enqueue(s, h, i, r)


@kernel
def _fetches(s: State, h: Hooks, i: int, r: int) -> bool:
    """Ask where to copy a longer prefix of r from; whether r waits for that copy, or the run stops."""
    sim = s.sim[0]
    if sim.observes:
        catch_up(s)
    source = h.fetch_prefix(r, h.seen, h.params, h.state)
    if source == -1:
        return False
    if source < 0 or source >= sim.instances:
        fail(s, HOOK_RAISED if source == RAISED else BAD_INSTANCE, FETCH_PREFIX, r, source)
        return True
    return _start_fetch(s, r, source, i)


@kernel
def _start_fetch(s: State, r: int, source: int, target: int) -> bool:
    q, sim = s.requests[r], s.sim[0]
    there = matched_blocks(s, source, r, q.input_tokens)
    here = matched_blocks(s, target, r, q.input_tokens)
    if there <= here:
        return False
    q.state = FETCHING
    q.instance = target
    q.fetched_from = here
    q.fetched_to = there
    start_copy(s, r, source, target, (there - here) * sim.hash_blocks * sim.block_tokens)
    return True


@kernel
def end_fetch(s: State, h: Hooks, r: int) -> None:
    """The prefix of r has come to its instance: r is queued there, or placed anew if that prefills no more."""
    i = _keep_fetched(s, r)
    if s.instances[i].role & PREFILL:
        _queue(s, h, i, r)
    else:
        place(s, h, r)


@kernel
def _keep_fetched(s: State, r: int) -> int:
    """Enter the blocks that have come into the first store; the instance."""
    q = s.requests[r]
    for j in range(q.fetched_to - 1, q.fetched_from - 1, -1):
        keep(s, q.instance, 0, s.arena[s.sim[0].hash_at + q.hash_at + j])
    return q.instance
