"""The cached blocks of an instance, which have names.

An open-addressing table has all of them, blocks of the trace or of the engine. A list holds the blocks that no request
references, from the least to the most recently used; `kv/ranks.py` has further ones, of blocks that the policy ranked.
Memory of an instance, from `cache_at`: slots | key | references | older | younger | rank.
"""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.kv.prefix_tiers import keep
from framework.engine.kv.ranks import link_ranked, lowest, rank_of, set_rank, unlink_ranked
from framework.engine.memory.kv_blocks import note_use
from framework.engine.memory.state import State


@inner
def reference(s: State, i: int, node: int) -> None:
    """Add one reference to a cached block."""
    inst = s.instances[i]
    refs_at = inst.cache_at + s.options.cache_slots + s.options.cache_nodes
    if s.lists[refs_at + node] == 0:
        unlink(s, i, node)
        inst.evictable_blocks -= s.options.hash_blocks
        note_use(s, i, s.options.hash_blocks, s.sim.now_s)
    s.lists[refs_at + node] += 1


@inner
def _home(s: State, key: int) -> int:
    """Fibonacci hashing of the low 31 bits; the table's size is a power of two."""
    return (((int(key) & 0x7FFFFFFF) * 2654435769) >> 12) & (s.options.cache_slots - 1)


@inner
def find(s: State, i: int, key: int) -> int:
    """The node of a prefix block in i's cache, the first if several have its name; -1 if there is none."""
    at = s.instances[i].cache_at
    mask = s.options.cache_slots - 1
    slot = _home(s, key)
    while True:
        node = s.lists[at + slot]
        if node < 0 or s.lists[at + s.options.cache_slots + node] == key:
            return node
        slot = (slot + 1) & mask


@inner
def insert(s: State, i: int, key: int) -> int:
    """The node of a new cached block with one reference, behind the nodes of the same name.

    A node is always available: there are enough for the whole KV memory.
    """
    inst = s.instances[i]
    at = inst.cache_at
    keys_at = at + s.options.cache_slots
    node = inst.cache_free
    inst.cache_free = s.lists[keys_at + 3 * s.options.cache_nodes + node]
    s.lists[keys_at + node] = key
    s.lists[keys_at + s.options.cache_nodes + node] = 1
    slot = _home(s, key)
    while s.lists[at + slot] >= 0:
        slot = (slot + 1) & (s.options.cache_slots - 1)
    s.lists[at + slot] = node
    return node


@inner
def _remove(s: State, i: int, node: int) -> None:
    """Remove a cached block, and move later entries of its probe run up so that none is lost."""
    inst = s.instances[i]
    at = inst.cache_at
    keys_at = at + s.options.cache_slots
    mask = s.options.cache_slots - 1
    hole = _home(s, s.lists[keys_at + node])
    while s.lists[at + hole] != node:
        hole = (hole + 1) & mask
    slot = (hole + 1) & mask
    while s.lists[at + slot] >= 0:
        home = _home(s, s.lists[keys_at + s.lists[at + slot]])
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            s.lists[at + hole] = s.lists[at + slot]
            hole = slot
        slot = (slot + 1) & mask
    s.lists[at + hole] = -1
    s.lists[keys_at + 3 * s.options.cache_nodes + node] = inst.cache_free
    inst.cache_free = node


@inner
def forget_prefixes(s: State, i: int) -> None:
    """Empty the cache of prefixes, none of which a request references; they go nowhere."""
    while s.instances[i].evictable_blocks > 0:
        _evict(s, i, _first_to_go(s, i))


@inner
def unreference(s: State, i: int, node: int) -> None:
    """Remove a request's reference to a cached block of i; the block becomes evictable if this was the last one."""
    sim, inst = s.sim, s.instances[i]
    keys_at = inst.cache_at + s.options.cache_slots
    nodes = s.options.cache_nodes
    s.lists[keys_at + nodes + node] -= 1
    if s.lists[keys_at + nodes + node] == 0:
        link(s, i, node)
        inst.evictable_blocks += s.options.hash_blocks
        note_use(s, i, -s.options.hash_blocks, sim.now_s)


@inner
def link(s: State, i: int, node: int) -> None:
    """Make a block, which no request references, the youngest of its list."""
    inst = s.instances[i]
    if unlikely(inst.ranked_nodes > 0) and rank_of(s, i, node) != 0:
        link_ranked(s, i, node)
        return
    older_at = inst.cache_at + s.options.cache_slots + 2 * s.options.cache_nodes
    younger_at = older_at + s.options.cache_nodes
    s.lists[older_at + node] = inst.cache_young
    s.lists[younger_at + node] = -1
    if inst.cache_young >= 0:
        s.lists[younger_at + inst.cache_young] = node
    else:
        inst.cache_old = node
    inst.cache_young = node


@inner
def unlink(s: State, i: int, node: int) -> None:
    """Take a block out of its list."""
    inst = s.instances[i]
    if unlikely(inst.ranked_nodes > 0) and rank_of(s, i, node) != 0:
        unlink_ranked(s, i, node)
        return
    older_at = inst.cache_at + s.options.cache_slots + 2 * s.options.cache_nodes
    younger_at = older_at + s.options.cache_nodes
    older, younger = s.lists[older_at + node], s.lists[younger_at + node]
    if older >= 0:
        s.lists[younger_at + older] = younger
    else:
        inst.cache_old = younger
    if younger >= 0:
        s.lists[older_at + younger] = older
    else:
        inst.cache_young = older


@inner
def evict_oldest(s: State, i: int) -> None:
    """Evict the cached block that no request references of the lowest rank, and of these the least recently used."""
    node = _first_to_go(s, i)
    if unlikely(s.options.writes_back):
        keep(s, i, 0, s.lists[s.instances[i].cache_at + s.options.cache_slots + node])
    _evict(s, i, node)


@inner
def _first_to_go(s: State, i: int) -> int:
    """The node that is evicted next."""
    return lowest(s, i) if unlikely(s.instances[i].ranked_nodes > 0) else int(s.instances[i].cache_old)


@inner
def _evict(s: State, i: int, node: int) -> None:
    inst = s.instances[i]
    unlink(s, i, node)
    _remove(s, i, node)
    if unlikely(inst.ranked_nodes > 0):
        set_rank(s, i, node, 0)
    inst.evictable_blocks -= s.options.hash_blocks
    inst.free_blocks += s.options.hash_blocks
