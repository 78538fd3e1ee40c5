"""Pins: references to the cached blocks of requests that have ended, which keep them for the next call of a program.

A pinned request references blocks as it did before it ended, and is in the list of pinned requests of its instance,
the oldest pin first. A prefetch is a pin some of whose blocks are still being loaded: of these it has the room.
"""

from __future__ import annotations

from framework.codes import FINISHED, PIN_END
from framework.compiler.decorators import inner, unlikely
from framework.engine.kv.cached_blocks import find, insert, link, reference, unlink
from framework.engine.kv.held_blocks import hold, node_of
from framework.engine.kv.kv_cache import allocate, drop_references, free
from framework.engine.kv.prefix_cache import read_stores, reference_prefix
from framework.engine.kv.prefix_tiers import tier_of
from framework.engine.kv.ranks import set_rank
from framework.engine.memory.kv_blocks import available, watermark_of
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
    if unlikely(is_loading(s, r)):
        free(s, q.instance, blocks_under_way(s, r))
        _note_end_of_load(s, r)
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


# --- prefetches -------------------------------------------------------------------------------------------------------


@inner
def awaits_prefetch(s: State, r: int) -> bool:
    """Whether the prefetch of r, which has ended, is to come."""
    q = s.requests[r]
    return bool(q.heap_index >= 0 and q.registered == 0 and q.shared_there == 0 and q.landing_s >= 0.0)


@inner
def is_loading(s: State, r: int) -> bool:
    """Whether blocks of r, which is pinned, are being loaded."""
    return bool(s.requests[r].registered > s.requests[r].shared)


@inner
def blocks_under_way(s: State, r: int) -> int:
    """The engine blocks that are being loaded for r."""
    return int((s.requests[r].registered - s.requests[r].shared) * s.options.hash_blocks)


@inner
def waits_for_load(s: State, i: int, r: int) -> bool:
    """Whether r, which waits at i, waits for blocks that are being loaded there."""
    before = s.lists[s.options.awaited_at + r]
    if before < 0:
        return False
    found = _is_loading_on(s, i, before)
    if s.options.joins:
        for k in range(s.lists[s.options.joins_at + r], s.lists[s.options.joins_at + r + 1]):
            found |= _is_loading_on(s, i, s.lists[k])
    return found


@inner
def _is_loading_on(s: State, i: int, r: int) -> bool:
    """Whether blocks of r, which has ended, are being loaded on i."""
    return bool(s.requests[r].state == FINISHED and s.requests[r].instance == i and is_loading(s, r))


@inner
def loadable_run(s: State, i: int, r: int) -> int:
    """The length of the longest run of leading blocks of r in the cache or tiers of i that has room in the cache."""
    run = 0
    while run < s.requests[r].hash_count and (
        find(s, i, s.names[s.requests[r].hash_at + run]) >= 0 or (s.options.tiers > 0 and tier_of(s, i, r, run) >= 0)
    ):
        run += 1
    return _with_room(s, i, r, run)


@inner
def moved_run(s: State, i: int, r: int) -> int:
    """The length of the longest run of leading blocks of r that i caches or that have come there, if they have room."""
    q, run = s.requests[r], 0
    while run < q.fetched_to and (run >= q.fetched_from or find(s, i, s.names[q.hash_at + run]) >= 0):
        run += 1
    return _with_room(s, i, r, run)


@inner
def _with_room(s: State, i: int, r: int, most: int) -> int:
    """Of the first `most` blocks of r, the number that have room in the cache of i once they are pinned there."""
    q, inst = s.requests[r], s.instances[i]
    refs_at = inst.cache_at + s.options.cache_slots + s.options.cache_nodes
    room, run = available(s, i) - watermark_of(s, i), 0
    while run < most:
        node = find(s, i, s.names[q.hash_at + run])
        if node < 0 or s.lists[refs_at + node] == 0:
            room -= s.options.hash_blocks
        if room < 0:
            break
        run += 1
    return run


@inner
def begin_load(s: State, i: int, r: int) -> float:
    """Take room for the blocks of r, pinned on i, that the cache lacks, and read them; return the end of that load."""
    inst = s.instances[i]
    before_s, inst.load_s = inst.load_s, 0.0
    read_stores(s, i, r)
    load_s, inst.load_s = inst.load_s, before_s
    allocate(s, i, blocks_under_way(s, r))
    inst.loading += 1
    s.sim.awaited += 1
    inst.loads_end_s = max(inst.loads_end_s, s.sim.now_s) + load_s
    return float(inst.loads_end_s)


@inner
def end_load(s: State, i: int, r: int) -> None:
    """Enter the blocks loaded for r, pinned on i; where i caches one by now, the room of its copy comes free."""
    q = s.requests[r]
    for j in range(q.registered):
        if node_of(s, r, j) < 0:
            node = find(s, i, s.names[q.hash_at + j])
            if node >= 0:
                free(s, i, s.options.hash_blocks)
                reference(s, i, node)
            else:
                node = insert(s, i, s.names[q.hash_at + j])
            hold(s, r, j, node)
            q.shared += 1
    _note_end_of_load(s, r)


@inner
def _note_end_of_load(s: State, r: int) -> None:
    s.instances[s.requests[r].instance].loading -= 1
    s.sim.awaited -= 1
    s.requests[r].landing_s = -1.0


# --- the ends of TTLs -------------------------------------------------------------------------------------------------


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
