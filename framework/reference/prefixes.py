"""Known prefixes (SEMANTICS.md: Prefix cache, Prefix tiers)."""

from __future__ import annotations

import math

from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request


def matched_prefix(s: Simulation, i: Instance, r: Request) -> list[int]:
    """Ids of the cached prefix that r can reference; at least one token is left to compute."""
    return known_prefix(s, i, r, r.goal)


def known_prefix(s: Simulation, i: Instance, r: Request, tokens: int) -> list[int]:
    """Ids of the trace blocks of r in the cache or a store of i; at least one of `tokens` is left to compute."""
    ids: list[int] = []
    for j, id in enumerate(r.hash_ids):
        if id not in i.cache.references and not any(store.has(r.hash_ids, j) for store in i.stores):
            break
        ids.append(id)
    while ids and s.hash_tokens * len(ids) >= tokens:
        ids.pop()
    return ids


def known_tokens(s: Simulation, i: Instance, r: Request) -> int:
    """KV tokens that r, which waits, need not compute on i: of its cached prefix, or of its backup if that has more."""
    return max(s.hash_tokens * len(matched_prefix(s, i, r)), min(r.backed_up, r.goal - 1))


def read_backup(s: Simulation, i: Instance, r: Request, cached: int) -> None:
    """Read back to i what the backup of r, which is admitted, has beyond `cached` tokens."""
    tokens, r.backed_up = r.prefilled - cached, 0
    if tokens > 0:
        size = tokens * s.options.kv_bytes_per_token + s.options.state_bytes
        i.load_s += size / (s.options.engine.faults.restore_bytes_s or i.spec.host_bytes_s)
        i.restored_tokens += tokens


def cached_run(s: Simulation, i: Instance, r: Request, kv: int) -> list[int]:
    """Ids of the leading trace blocks of r that i caches, all within its first `kv` tokens."""
    ids: list[int] = []
    for id in r.hash_ids:
        if id not in i.cache.references or s.hash_tokens * (len(ids) + 1) > kv:
            break
        ids.append(id)
    return ids


def loadable_run(s: Simulation, i: Instance, r: Request) -> list[int]:
    """Ids of the leading blocks of r, in the cache or a store of i, for which there is room in the cache."""
    return with_room(i, known_prefix(s, i, r, s.hash_tokens * len(r.hash_ids) + 1))


def with_room(i: Instance, run: list[int]) -> list[int]:
    """Of the blocks of a run, the leading ones that have room in the cache of i once they are pinned there."""
    room, ids = i.cache.available - i.present_watermark, []
    for id in run:
        if id not in i.cache.references or i.cache.idle_blocks([id]):
            room -= i.cache.blocks_per_id
        if room < 0:
            break
        ids.append(id)
    return ids


def read_stores(s: Simulation, i: Instance, r: Request, ids: list[int]) -> None:
    """Read from stores what the cache lacks."""
    places = [r.hash_ids.index(id) for id in ids]
    tiers = [next(k for k, store in enumerate(i.stores) if store.has(r.hash_ids, j)) for j in places]
    for k in sorted(set(tiers)):
        tier, tokens = s.options.tiers[k], tiers.count(k) * s.hash_tokens
        size = tokens * s.options.kv_bytes_per_token
        i.load_s += tier.latency_s + size / (tier.bandwidth_bytes_s or i.spec.host_bytes_s)
        i.loaded_bytes[k] += size
        i.hit_tokens[k] += tokens if math.isnan(r.start_s) else 0
    for id, k in reversed(list(zip(ids, tiers, strict=True))):
        if i.stores[k].on_eviction:
            i.stores[k].keep(id)


def enter_read(i: Instance, r: Request, ids: list[int]) -> None:
    """Enter into the cache what was read."""
    for id in ids:
        i.cache.register(r.id, id)
    if ids:
        i.cache.sort_held(r.id, r.hash_ids)


def share_chunk(s: Simulation, i: Instance, r: Request, tokens: int) -> None:
    """Share the blocks of r's first `tokens` tokens, which the step that is being formed computes."""
    if s.shares_early:
        register_cached(s, i, r, tokens)


def free_kv(s: Simulation, i: Instance, r: Request) -> None:
    """Free r's KV on i; generated tokens stay in the cache if blocks are shared from their allocation on."""
    if s.shares_early and r.caches:
        register_cached(s, i, r, r.kv - r.accepted)
    r.caches, r.accepted = False, 0
    if s.options.engine.output_reserve.ratio:
        i.opens_after.append(2 if s.options.asynchronous else 1)
    i.cache.free_kv(r.id)
    end_span(s, r)


def end_span(s: Simulation, r: Request) -> None:
    """End r's span, if it has one; what others keep is freed when the event is over."""
    if r.span is not None:
        s.spans.over.append(r.span)
        s.spans.claims = [other for other in s.spans.claims if other is not r]
        r.span = None


def register_cached(s: Simulation, i: Instance, r: Request, tokens: int) -> None:
    """Enter into i's cache the blocks that r's first `tokens` tokens fill, except those that are entered already."""
    while r.registered < len(r.hash_ids) and (r.registered + 1) * s.hash_tokens <= tokens:
        i.cache.register(r.id, r.hash_ids[r.registered])
        r.registered += 1


def register_prefix(s: Simulation, i: Instance, r: Request, tokens: int) -> None:
    """Enter the blocks that r's first tokens fill into i's cache, and keep them in its stores, after a chunk."""
    register_cached(s, i, r, tokens)
    for k in range(len(i.stores)):
        write_through(i, k, r)
    r.counted = r.registered


def write_through(i: Instance, k: int, r: Request) -> None:
    """Count the use of what r has so far on i, and keep it in a store."""
    store = i.stores[k]
    store.uses.update(r.hash_ids[r.counted : r.registered])
    for j in reversed(range(0 if store.on_eviction else r.registered)):
        id = r.hash_ids[j]
        often = store.write_after == 1 or store.uses[id] >= store.write_after
        if (j + 1) % store.chunk == 0 and often:
            i.keep(k, id)


def free_ended(s: Simulation, i: Instance, r: Request) -> None:
    """Free the KV of r, which has ended on i; stores that take outputs keep what it has."""
    if r.caches:
        if s.shares_early:
            register_cached(s, i, r, r.kv - r.accepted)
        for k, store in enumerate(i.stores):
            if store.takes_outputs:
                write_through(i, k, r)
    free_kv(s, i, r)
