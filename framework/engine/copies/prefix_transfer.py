"""Transfers to an instance that caches a part of the request's prefix: that part is shared, not copied."""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.durations.leap import catch_up_one, reserve
from framework.engine.kv.cached_blocks import find, reference, unreference
from framework.engine.kv.held_blocks import hold, open_list
from framework.engine.kv.kv_cache import free
from framework.engine.kv.prefix_cache import register_prefix, unreferenced_among
from framework.engine.memory.kv_blocks import blocks_of, has_room
from framework.engine.memory.state import State


@inner
def reserve_for(s: State, i: int, r: int, tokens: int, kv: int, kept: int) -> bool:
    """Reserve a seat and blocks for `tokens` tokens of r on i; reference those of `kv` sent tokens that i caches.

    Returns False if this would leave fewer than `kept` blocks available.
    """
    inst, q = s.instances[i], s.requests[r]
    run = _cached_run(s, i, r, kv)
    blocks = blocks_of(s, i, tokens) - run * s.options.hash_blocks
    if not has_room(s, i, blocks + unreferenced_among(s, i, r, run) + kept):
        return False
    for j in range(run):
        reference(s, i, find(s, i, s.names[q.hash_at + j]))
    q.shared_there = run
    inst.reserved += 1
    reserve(s, i, blocks)
    return True


@inner
def _cached_run(s: State, i: int, r: int, kv: int) -> int:
    """The number of leading trace blocks of r that i caches, all within r's first `kv` tokens."""
    q = s.requests[r]
    if s.options.hash_blocks == 0:
        return 0
    most = min(q.hash_count, kv // (s.options.hash_blocks * s.options.block_tokens))
    run = 0
    while run < most and find(s, i, s.names[q.hash_at + run]) >= 0:
        run += 1
    return run


@inner
def tokens_to_copy(s: State, r: int, kv: int) -> int:
    """The number of r's first `kv` tokens that its destination lacks."""
    return kv - s.requests[r].shared_there * s.options.hash_blocks * s.options.block_tokens


@inner
def release(s: State, i: int, r: int, tokens: int) -> None:
    """Free everything that `reserve_for` reserved and referenced, except the seat."""
    q = s.requests[r]
    free(s, i, blocks_of(s, i, tokens) - q.shared_there * s.options.hash_blocks)
    for j in range(q.shared_there - 1, -1, -1):
        unreference(s, i, find(s, i, s.names[q.hash_at + j]))
    q.shared_there = 0


@inner
def settle_prefix(s: State, i: int, r: int) -> None:
    """Make the shared blocks r's prefix on i, where its KV has arrived, and cache its other trace blocks there."""
    q = s.requests[r]
    if s.options.hash_blocks == 0:
        return
    catch_up_one(s, i)  # blocks that its running leap has evicted by now are not cached
    if q.shared_there > 0:
        open_list(s, r)
    for j in range(q.shared_there):
        hold(s, r, j, find(s, i, s.names[q.hash_at + j]))
    q.shared = q.registered = q.shared_there
    q.shared_there = 0
    register_prefix(s, i, r, min(q.prefilled, q.kv + s.options.pulls))
