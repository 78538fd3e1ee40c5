"""The prefix cache: what a request finds in the cache of an instance and in stores, references there, and enters."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.kv.cached_blocks import find, insert, reference
from framework.engine.kv.held_blocks import hold, node_of, open_list
from framework.engine.kv.prefix_tiers import keep, name_in, tier_of
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


# --- marks: blocks that several requests reference are counted once ---------------------------------------------------


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
