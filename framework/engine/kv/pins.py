"""Pins: references to the cached blocks of requests that have ended, which keep them for the next call of a program.

A pinned request references blocks as it did before it ended, and is in the list of pinned requests of its instance,
the oldest pin first.
"""

from __future__ import annotations

from framework.codes import PIN_END
from framework.compiler.decorators import inner
from framework.engine.kv.cached_blocks import find, link, unlink
from framework.engine.kv.kv_cache import drop_references
from framework.engine.kv.prefix_cache import reference_prefix
from framework.engine.kv.ranks import set_rank
from framework.engine.memory.kv_blocks import available
from framework.engine.memory.queues import append
from framework.engine.memory.state import State


@inner
def is_pinned(s: State, r: int) -> bool:
    """Whether r, which has ended, is pinned: it references blocks, and has been in the heap of ends of TTLs."""
    return bool(s.requests[r].heap_index >= 0 and s.requests[r].registered > 0)


@inner
def cached_blocks(s: State, i: int, r: int) -> int:
    """The length of the longest run of leading blocks of r that i caches."""
    q, run = s.requests[r], 0
    while run < q.hash_count and find(s, i, s.names[q.hash_at + run]) >= 0:
        run += 1
    return run


@inner
def rank_blocks(s: State, i: int, r: int, run: int, rank: int) -> None:
    """Give r's first `run` blocks, which i caches, that rank; those that nobody references become its youngest."""
    q, inst = s.requests[r], s.instances[i]
    refs_at = inst.cache_at + s.options.cache_slots + s.options.cache_nodes
    for j in range(run - 1, -1, -1):
        node = find(s, i, s.names[q.hash_at + j])
        is_idle = s.lists[refs_at + node] == 0
        if is_idle:
            unlink(s, i, node)
        set_rank(s, i, node, rank)
        if is_idle:
            link(s, i, node)


@inner
def pin(s: State, i: int, r: int, run: int) -> None:
    """Pin r's first `run` blocks, which i caches."""
    q, inst = s.requests[r], s.instances[i]
    reference_prefix(s, i, r, run)
    q.previous = inst.pinned_tail
    inst.pinned_head = append(s, inst.pinned_head, inst.pinned_tail, r)
    inst.pinned_tail = r


@inner
def end_pin(s: State, r: int) -> None:
    """End the pin of r: its blocks may be evicted, unless others reference them."""
    q = s.requests[r]
    inst = s.instances[q.instance]
    if q.previous >= 0:
        s.requests[q.previous].next = q.next
    else:
        inst.pinned_head = q.next
    if q.next >= 0:
        s.requests[q.next].previous = q.previous
    else:
        inst.pinned_tail = q.previous
    drop_references(s, q.instance, r)


@inner
def end_pins(s: State, i: int) -> None:
    """End all pins of i."""
    while s.instances[i].pinned_head >= 0:
        end_pin(s, s.instances[i].pinned_head)


@inner
def break_pin(s: State, i: int) -> None:
    """End the oldest pin of i, because others need its room."""
    end_pin(s, s.instances[i].pinned_head)
    s.instances[i].pins_broken += 1


@inner
def break_pins(s: State, i: int, blocks: int) -> None:
    """Break pins of i, the oldest first, until that many blocks are available or no pin is left."""
    while s.instances[i].pinned_head >= 0 and blocks > available(s, i):
        break_pin(s, i)
        s.instances[i].pins_yielded = True


@inner
def note_next_pin_end(s: State) -> None:
    """Note whose TTL ends next, if that comes before what else is known to come."""
    sim = s.sim
    if sim.pin_ends == 0:
        return
    r = s.lists[s.options.pin_ends_at]
    time_s = s.requests[r].event_s
    if time_s < sim.change_s or (time_s == sim.change_s and sim.change_kind > PIN_END):
        sim.change_s = time_s
        sim.changing = r
        sim.change_kind = PIN_END
