"""Paged KV memory of an instance and its prefix cache: blocks are counted, cached prefixes are known by name.

Cached blocks of a trace's prefixes live in an open-addressing table per instance, unreferenced ones in a list from old
to young (least recently used first). Memory per instance, from `cache_at`: slots | key | references | older | younger.
"""

from __future__ import annotations

from framework.codes import OUT_OF_BLOCKS
from framework.compiler.decorators import kernel
from framework.engine.mechanisms.prefix_tiers import tier_of
from framework.engine.state import State


@kernel
def blocks_for(s: State, tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return (tokens + s.sim[0].block_tokens - 1) // s.sim[0].block_tokens


@kernel
def held_blocks(s: State, i: int, tokens: int) -> int:
    """Blocks that a request of so many KV tokens has on i: those that hold them, or the instance's reservation."""
    reserved = s.instances[i].reserve_blocks
    return reserved if reserved > 0 else blocks_for(s, tokens)


@kernel
def fits(s: State, i: int, r: int) -> bool:
    """Whether r's peak KV could ever be admitted to i, and is not more than i reserves."""
    inst = s.instances[i]
    peak = s.requests[r].input_tokens + s.arena[s.sim[0].output_at + r] - 1
    largest = inst.reserve_blocks if inst.reserve_blocks > 0 else inst.total_blocks - inst.watermark
    return blocks_for(s, peak) <= largest


@kernel
def available(s: State, i: int) -> int:
    """Blocks that can be taken: free ones, and those of cached prefixes that nobody references."""
    return s.instances[i].free_blocks + s.instances[i].evictable_blocks


@kernel
def note_use(s: State, i: int, blocks: int, time_s: float) -> None:
    """From `time_s` on, so many more blocks are in use: what is in use is 0 at both ends of a run, so that the sum of
    -blocks * time over all changes is the integral of blocks in use over time.
    """
    s.instances[i].kv_block_s -= blocks * time_s


@kernel
def hold(s: State, i: int, tokens: int, time_s: float) -> None:
    """From `time_s` on, so many more KV tokens are held on i; their integral over time is kept as that of blocks is."""
    s.instances[i].kv_tokens += tokens
    s.instances[i].kv_token_s -= tokens * time_s


@kernel
def take(s: State, i: int, blocks: int) -> None:
    """Take blocks that are available, evicting the oldest unreferenced prefixes where free ones are not enough."""
    take_at(s, i, blocks, s.sim[0].now_s)


@kernel
def take_at(s: State, i: int, blocks: int, time_s: float) -> None:
    """The same, for blocks that were taken at an earlier time of a leap."""
    inst = s.instances[i]
    note_use(s, i, blocks, time_s)
    while inst.free_blocks < blocks:
        if inst.cache_old < 0:
            s.sim[0].status = OUT_OF_BLOCKS
            break
        _evict_oldest(s, i)
    inst.free_blocks -= blocks


@kernel
def give_back(s: State, i: int, blocks: int) -> None:
    """Free blocks that nobody shares."""
    note_use(s, i, -blocks, s.sim[0].now_s)
    s.instances[i].free_blocks += blocks


@kernel
def release(s: State, i: int, r: int) -> None:
    """Give back all KV that r holds on i."""
    q, sim = s.requests[r], s.sim[0]
    hold(s, i, -q.kv, sim.now_s)
    give_back(s, i, held_blocks(s, i, q.kv) - q.shared * sim.hash_blocks)
    if q.shared > 0:
        for j in range(q.registered - 1, -1, -1):
            if s.arena[sim.held_at + q.hash_at + j] != 0:
                s.arena[sim.held_at + q.hash_at + j] = 0
                _unreference(s, i, s.arena[sim.hash_at + q.hash_at + j])
    q.shared = 0
    q.registered = 0


@kernel
def matched_blocks(s: State, i: int, r: int, target: int) -> int:
    """Leading trace blocks of r that i has cached or in a store, leaving at least one of `target` tokens to compute."""
    q, sim = s.requests[r], s.sim[0]
    if sim.hash_blocks == 0:
        return 0
    hash_tokens = sim.hash_blocks * sim.block_tokens
    most = min(q.hash_count, (target - 1) // hash_tokens)
    run = 0
    while run < most:
        key = s.arena[sim.hash_at + q.hash_at + run]
        if find(s, i, key) < 0 and (sim.tiers == 0 or tier_of(s, i, key) < 0):
            break
        run += 1
    return run


@kernel
def cached_among(s: State, i: int, r: int, run: int) -> int:
    """How many of r's first `run` trace blocks, all matched, are in i's cache: the others are in stores."""
    sim = s.sim[0]
    if sim.tiers == 0:
        return run
    count = 0
    for j in range(run):
        if find(s, i, s.arena[sim.hash_at + s.requests[r].hash_at + j]) >= 0:
            count += 1
    return count


@kernel
def unreferenced_among(s: State, i: int, r: int, run: int) -> int:
    """Engine blocks among r's first `run` matched trace blocks that count as evictable now."""
    sim = s.sim[0]
    refs_at = s.instances[i].cache_at + sim.cache_slots + sim.cache_nodes
    count = 0
    for j in range(run):
        node = find(s, i, s.arena[sim.hash_at + s.requests[r].hash_at + j])
        if node >= 0 and s.arena[refs_at + node] == 0:
            count += 1
    return count * sim.hash_blocks


@kernel
def reference_prefix(s: State, i: int, r: int, run: int) -> None:
    """Let r hold those of its first `run` trace blocks, all matched, that are cached on i."""
    q, inst, sim = s.requests[r], s.instances[i], s.sim[0]
    refs_at = inst.cache_at + sim.cache_slots + sim.cache_nodes
    for j in range(run):
        node = find(s, i, s.arena[sim.hash_at + q.hash_at + j])
        if node < 0:
            continue
        if s.arena[refs_at + node] == 0:
            _unlink(s, i, node)
            inst.evictable_blocks -= sim.hash_blocks
            note_use(s, i, sim.hash_blocks, sim.now_s)
        s.arena[refs_at + node] += 1
        s.arena[sim.held_at + q.hash_at + j] = 1
        q.shared += 1
    q.registered = run


@kernel
def register_prefix(s: State, i: int, r: int) -> None:
    """Enter into i's cache the trace blocks of r that its prefill has completed; one known already stays private."""
    q, sim = s.requests[r], s.sim[0]
    if sim.hash_blocks == 0:
        return
    hash_tokens = sim.hash_blocks * sim.block_tokens
    while q.registered < q.hash_count and (q.registered + 1) * hash_tokens <= q.done:
        key = s.arena[sim.hash_at + q.hash_at + q.registered]
        if find(s, i, key) < 0:
            insert(s, i, key)
            s.arena[sim.held_at + q.hash_at + q.registered] = 1
            q.shared += 1
        q.registered += 1


# --- the table ----------------------------------------------------------------------------------------------------


@kernel
def _home(s: State, key: int) -> int:
    """Fibonacci hashing of the low 31 bits; the table's size is a power of two."""
    return (((key & 0x7FFFFFFF) * 2654435769) >> 12) & (s.sim[0].cache_slots - 1)


@kernel
def find(s: State, i: int, key: int) -> int:
    """The cache node of a prefix block on i, -1 if it is not cached."""
    sim = s.sim[0]
    at = s.instances[i].cache_at
    mask = sim.cache_slots - 1
    slot = _home(s, key)
    while True:
        node = s.arena[at + slot]
        if node < 0 or s.arena[at + sim.cache_slots + node] == key:
            return node
        slot = (slot + 1) & mask


@kernel
def insert(s: State, i: int, key: int) -> None:
    """A new cached block with one reference. There is always a node left: nodes cover the whole KV memory."""
    sim, inst = s.sim[0], s.instances[i]
    at = inst.cache_at
    keys_at = at + sim.cache_slots
    node = inst.cache_free
    inst.cache_free = s.arena[keys_at + 3 * sim.cache_nodes + node]
    s.arena[keys_at + node] = key
    s.arena[keys_at + sim.cache_nodes + node] = 1
    slot = _home(s, key)
    while s.arena[at + slot] >= 0:
        slot = (slot + 1) & (sim.cache_slots - 1)
    s.arena[at + slot] = node


@kernel
def _remove(s: State, i: int, node: int) -> None:
    """Forget a cached block; later entries of its probe run move up so that none is lost."""
    sim, inst = s.sim[0], s.instances[i]
    at = inst.cache_at
    keys_at = at + sim.cache_slots
    mask = sim.cache_slots - 1
    hole = _home(s, s.arena[keys_at + node])
    while s.arena[at + hole] != node:
        hole = (hole + 1) & mask
    slot = (hole + 1) & mask
    while s.arena[at + slot] >= 0:
        home = _home(s, s.arena[keys_at + s.arena[at + slot]])
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            s.arena[at + hole] = s.arena[at + slot]
            hole = slot
        slot = (slot + 1) & mask
    s.arena[at + hole] = -1
    s.arena[keys_at + 3 * sim.cache_nodes + node] = inst.cache_free
    inst.cache_free = node


@kernel
def forget_prefixes(s: State, i: int) -> None:
    """Empty the cache of prefixes, none of which anybody references."""
    while s.instances[i].cache_old >= 0:
        _evict_oldest(s, i)


# --- the list of unreferenced blocks --------------------------------------------------------------------------------


@kernel
def _unreference(s: State, i: int, key: int) -> None:
    sim, inst = s.sim[0], s.instances[i]
    node = find(s, i, key)
    keys_at = inst.cache_at + sim.cache_slots
    nodes = sim.cache_nodes
    s.arena[keys_at + nodes + node] -= 1
    if s.arena[keys_at + nodes + node] == 0:
        s.arena[keys_at + 2 * nodes + node] = inst.cache_young
        s.arena[keys_at + 3 * nodes + node] = -1
        if inst.cache_young >= 0:
            s.arena[keys_at + 3 * nodes + inst.cache_young] = node
        else:
            inst.cache_old = node
        inst.cache_young = node
        inst.evictable_blocks += sim.hash_blocks
        note_use(s, i, -sim.hash_blocks, sim.now_s)


@kernel
def _unlink(s: State, i: int, node: int) -> None:
    sim, inst = s.sim[0], s.instances[i]
    older_at = inst.cache_at + sim.cache_slots + 2 * sim.cache_nodes
    younger_at = older_at + sim.cache_nodes
    older, younger = s.arena[older_at + node], s.arena[younger_at + node]
    if older >= 0:
        s.arena[younger_at + older] = younger
    else:
        inst.cache_old = younger
    if younger >= 0:
        s.arena[older_at + younger] = older
    else:
        inst.cache_young = older


@kernel
def _evict_oldest(s: State, i: int) -> None:
    inst, sim = s.instances[i], s.sim[0]
    node = inst.cache_old
    _unlink(s, i, node)
    _remove(s, i, node)
    inst.evictable_blocks -= sim.hash_blocks
    inst.free_blocks += sim.hash_blocks
