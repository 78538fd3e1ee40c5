"""The prefix cache of an instance: requests share cached blocks, which have names.

Each instance has an open-addressing table of its cached blocks, of the trace or of the engine. A list holds the blocks
that no request references, from the least to the most recently used; `kv/ranks.py` has further ones, of blocks that the
policy ranked. Memory of an instance, from `cache_at`: slots | key | references | older | younger | rank.
"""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.kv.held_blocks import hold, node_of, open_list
from framework.engine.kv.prefix_tiers import keep, name_in, tier_of
from framework.engine.kv.ranks import link_ranked, lowest, rank_of, set_rank, unlink_ranked
from framework.engine.memory.kv_blocks import note_use
from framework.engine.memory.state import State

_MARK = 1 << 40  # added to the references of a marked block


@inner
def matched_blocks(s: State, i: int, r: int, target: int) -> int:
    """Number of leading trace blocks of r in i's cache or stores; at least one of `target` tokens is left out."""
    q = s.requests[r]
    if s.options.hash_blocks == 0:
        return 0
    hash_tokens = s.options.hash_blocks * s.options.block_tokens
    most = min(q.hash_count, (target - 1) // hash_tokens)
    run = 0
    while run < most:
        key = s.names[q.hash_at + run]
        if find(s, i, key) < 0 and (s.options.tiers == 0 or tier_of(s, i, r, run) < 0):
            break
        run += 1
    return run


@inner
def cached_among(s: State, i: int, r: int, run: int) -> int:
    """The number of r's first `run` trace blocks, all matched, that are in i's cache; stores hold the others."""
    if s.options.tiers == 0:
        return run
    count = 0
    for j in range(run):
        if find(s, i, s.names[s.requests[r].hash_at + j]) >= 0:
            count += 1
    return count


@inner
def unreferenced_among(s: State, i: int, r: int, run: int) -> int:
    """Engine blocks among r's first `run` matched trace blocks that count as evictable now."""
    refs_at = s.instances[i].cache_at + s.options.cache_slots + s.options.cache_nodes
    count = 0
    for j in range(run):
        node = find(s, i, s.names[s.requests[r].hash_at + j])
        if node >= 0 and s.lists[refs_at + node] == 0:
            count += 1
    return count * s.options.hash_blocks


@inner
def reference_prefix(s: State, i: int, r: int, run: int) -> None:
    """Let r reference those of its first `run` trace blocks, all matched, that i caches."""
    q = s.requests[r]
    if run > 0:
        open_list(s, r)
    for j in range(run):
        node = find(s, i, s.names[q.hash_at + j])
        if node >= 0:
            reference(s, i, node)
            hold(s, r, j, node)
            q.shared += 1
    q.registered = run


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
def register_prefix(s: State, i: int, r: int, tokens: int) -> None:
    """Enter into i's cache the blocks of r that its first `tokens` tokens fill.

    A block whose name is already cached stays private; with `engine.prefix_unit=engine` it also enters, behind the
    first.
    """
    q = s.requests[r]
    if s.options.hash_blocks == 0:
        return
    hash_tokens = s.options.hash_blocks * s.options.block_tokens
    while q.registered < q.hash_count and (q.registered + 1) * hash_tokens <= tokens:
        key = s.names[q.hash_at + q.registered]
        if s.options.shares_early or find(s, i, key) < 0:
            open_list(s, r)
            hold(s, r, q.registered, insert(s, i, key))
            q.shared += 1
        q.registered += 1


@inner
def share_chunk(s: State, i: int, r: int, tokens: int) -> None:
    """Share the blocks of r's first `tokens` tokens, which the step that is being formed computes."""
    if unlikely(s.options.shares_early):
        register_prefix(s, i, r, tokens)


@inner
def read_stores(s: State, i: int, r: int) -> None:
    """Read from stores the matched blocks of r that i does not cache."""
    q, inst = s.requests[r], s.instances[i]
    for k in range(s.options.tiers):
        blocks = 0
        for j in range(q.registered - 1, -1, -1):
            if node_of(s, r, j) < 0 and tier_of(s, i, r, j) == k:
                blocks += 1
                if unlikely(s.tiers[i * s.options.tiers + k].on_eviction):
                    keep(s, i, k, name_in(s, i, k, r, j))
        if blocks > 0:
            store = s.tiers[i * s.options.tiers + k]
            tokens = blocks * s.options.hash_blocks * s.options.block_tokens
            bytes_ = tokens * s.options.kv_bytes_per_token
            store.loaded_bytes += bytes_
            inst.load_s += store.latency_s + bytes_ / store.bandwidth_bytes_s
            if q.start_s != q.start_s:
                store.hit_tokens += tokens


@inner
def enter_read(s: State, i: int, r: int) -> None:
    """Enter into i's cache what was read for r; r has taken room for it."""
    q = s.requests[r]
    for j in range(q.registered):
        key = s.names[q.hash_at + j]
        if node_of(s, r, j) < 0 and (s.options.shares_early or find(s, i, key) < 0):
            hold(s, r, j, insert(s, i, key))
            q.shared += 1


# --- the table ----------------------------------------------------------------------------------------------------


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
def finds_marked(s: State, i: int, key: int) -> bool:
    """Whether i's cache finds a marked block under that name."""
    refs_at = s.instances[i].cache_at + s.options.cache_slots + s.options.cache_nodes
    node = find(s, i, key)
    return bool(node >= 0 and s.lists[refs_at + node] >= _MARK)


@inner
def mark_prefix(s: State, i: int, r: int) -> int:
    """Mark the cached blocks that r references on i; return how many engine blocks were not marked before."""
    return _add_mark(s, i, r, _MARK)


@inner
def unmark_prefix(s: State, i: int, r: int) -> None:
    """Unmark the cached blocks that r references on i."""
    _add_mark(s, i, r, -_MARK)


@inner
def _add_mark(s: State, i: int, r: int, mark: int) -> int:
    """Add `mark` to the references of the cached blocks that r references on i, and return their engine blocks.

    A positive mark skips marked blocks, a negative one skips unmarked blocks.
    """
    q, refs_at = s.requests[r], s.instances[i].cache_at + s.options.cache_slots + s.options.cache_nodes
    blocks = 0
    for j in range(q.registered if q.shared > 0 else 0):
        node = node_of(s, r, j)
        if node >= 0 and (s.lists[refs_at + node] < _MARK) == (mark > 0):
            s.lists[refs_at + node] += mark
            blocks += s.options.hash_blocks
    return blocks


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


# --- the list of unreferenced blocks --------------------------------------------------------------------------------


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
