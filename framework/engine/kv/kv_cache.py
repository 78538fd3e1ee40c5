"""Paged KV memory of an instance: blocks are allocated and freed here; the prefix cache evicts its own."""

from __future__ import annotations

from framework.codes import OUT_OF_BLOCKS
from framework.compiler.decorators import inner, unlikely
from framework.engine.kv.cached_blocks import evict_oldest, unreference
from framework.engine.kv.held_blocks import close_list, hold, node_of
from framework.engine.kv.prefix_cache import register_prefix
from framework.engine.kv.prefix_tiers import keep_outputs
from framework.engine.kv.spans import OVER, PHASE, at_span, end_span, instance_of, keep, kept_by
from framework.engine.memory.kv_blocks import add_kv_tokens, blocks_of, note_use
from framework.engine.memory.state import State


@inner
def allocate(s: State, i: int, blocks: int) -> None:
    """Take available blocks; evict the oldest unreferenced prefixes if free blocks are not enough."""
    allocate_noted(s, i, blocks, blocks * s.sim.now_s)


@inner
def allocate_noted(s: State, i: int, blocks: int, taken_s: float) -> None:
    """Take blocks as of earlier times in a leap; `taken_s` is the sum of these times over the blocks."""
    inst = s.instances[i]
    inst.kv_block_s -= taken_s
    while inst.free_blocks < blocks:
        if inst.evictable_blocks == 0:
            s.error.status = OUT_OF_BLOCKS
            break
        evict_oldest(s, i)
    inst.free_blocks -= blocks


@inner
def free(s: State, i: int, blocks: int) -> None:
    """Free private blocks."""
    note_use(s, i, -blocks, s.sim.now_s)
    s.instances[i].free_blocks += blocks


@inner
def free_ended(s: State, i: int, r: int) -> None:
    """Free the blocks of r, which has ended on i, where tiers that take outputs keep them."""
    q = s.requests[r]
    if unlikely(s.options.keeps_outputs) and q.caches:
        if s.options.shares_early:
            register_prefix(s, i, r, q.kv - q.accepted)
        keep_outputs(s, i, r)
    free_kv(s, i, r)


@inner
def free_kv(s: State, i: int, r: int) -> None:
    """Free the blocks of all KV that r holds on i. `kv` keeps its value: a swapped request comes back with as much."""
    q, sim = s.requests[r], s.sim
    if unlikely(s.options.shares_early) and q.caches:
        # This covers generated blocks too: no request can have looked them up before.
        register_prefix(s, i, r, min(q.kv, q.prefilled) if q.prefilled < q.prefill_until else q.kv - q.accepted)
    if unlikely(s.options.reserves):
        s.instances[i].freed |= 2 if s.options.asynchronous else 1
    elsewhere = end_span(s, r) if unlikely(s.options.spans) else 0
    add_kv_tokens(s, i, elsewhere - q.kv, sim.now_s)
    free(s, i, blocks_of(s, i, q.kv) - q.shared * s.options.hash_blocks - elsewhere // s.options.block_tokens)
    drop_references(s, i, r)
    q.caches = False
    q.accepted = 0


@inner
def give_back(s: State, number: int, k: int) -> None:
    """Free what instance k > 0 of a span, whose request has lost its KV, keeps."""
    row, i, kept = at_span(s, number), instance_of(s, number, k), kept_by(s, number, k)
    free(s, i, kept // s.options.block_tokens)
    add_kv_tokens(s, i, -kept, s.sim.now_s)
    s.instances[i].guests -= kept * (s.lists[row + PHASE] == OVER)
    keep(s, number, k, 0)


@inner
def drop_references(s: State, i: int, r: int) -> None:
    """Drop the references of r to cached blocks of i, the last block first."""
    q = s.requests[r]
    if q.shared > 0:
        for j in range(q.registered - 1, -1, -1):
            node = node_of(s, r, j)
            if node >= 0:
                unreference(s, i, node)
                hold(s, r, j, -1)
    close_list(s, r)
    q.shared = 0
    q.registered = 0
