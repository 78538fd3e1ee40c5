"""Transfers and live migration (SEMANTICS.md: Transfers, Live migration), and their effect on running orders."""

from __future__ import annotations

import math

from framework.codes import DECODE
from framework.reference.asking import ask_route_decode
from framework.reference.copies.links import begin_copy, withdraw_copy
from framework.reference.prefixes import cached_run, free_kv
from framework.reference.simulation import Simulation
from framework.reference.state import FAILED, Instance, Migration, Request
from framework.reference.steps.step import Chunk


def give_up_place(s: Simulation, d: Instance, r: Request) -> None:
    """Free everything that r has on d, where it waited for room or was being copied, because it does not come to d."""
    if r in d.incoming:
        d.incoming.remove(r)
    else:
        withdraw_copy(s, r)
        d.cache.free_kv(r.id)
        d.reserved.remove(r)


def start_decoding(s: Simulation, i: Instance, r: Request) -> None:
    """Append r to the running order of i; its KV is there already."""
    i.running.append(r)
    r.instance = r.decode_instance = i.id
    r.rerouted = r.skips = False
    r.join_step, r.joined_with = int(i.totals["decode_steps"]), r.emitted


def stop_decoding(s: Simulation, i: Instance, r: Request) -> None:
    """Take r out of the running order of i."""
    i.running.remove(r)
    note_tokens(s, i, r)


def note_tokens(s: Simulation, i: Instance, r: Request) -> None:
    """Log the decode steps that gave r its tokens on i since it began or continued to decode there."""
    last = int(i.totals["decode_steps"])
    steps, emitted = last - r.join_step, r.emitted - r.joined_with
    if steps > 0:
        previous_s = r.token_s[r.joined_with - 1] if r.joined_with > 0 else math.nan
        s.token_log.append((r.join_step, last, previous_s, r.id, i.id, emitted - steps))


def kv_there(s: Simulation, d: Instance, r: Request) -> int:
    """Tokens for which r, on its way to d, has blocks there: of the whole prompt if it was split within it; if KV is
    pulled, also what its first step there stores at most.
    """
    if r.is_partial and not r.sent_ahead:
        return r.prefill_until
    return kv_of_first_step(s, r, r.coming_kv) if d.spec.pulls else r.coming_kv


def kv_of_first_step(s: Simulation, r: Request, kv: int) -> int:
    """KV tokens that r, which arrives with `kv`, holds at most in its first decode step, with all its drafts."""
    return min(kv + 1 + s.options.drafts.depth, r.input_tokens + r.output_tokens - 1)


def room_there(
    s: Simulation, d: Instance, r: Request, tokens: int, kv: int, kept: int = 0
) -> tuple[list[int], int, bool]:
    """Room on d for KV of r that comes from elsewhere.

    Returns the ids among its first `kv` tokens that d caches, the blocks that the rest of `tokens` tokens needs, and
    whether there is room for these and `kept` blocks more.
    """
    ids = cached_run(s, d, r, kv)
    blocks = s.blocks_of(d, tokens) - len(ids) * d.cache.blocks_per_id
    return ids, blocks, d.has_room(blocks + d.cache.idle_blocks(ids) + kept) and not s.gives_way(d)


def reserve(s: Simulation, d: Instance, r: Request, tokens: int, kv: int, kept: int = 0) -> bool:
    """Reserve a seat and blocks for KV of r that comes to d, and reference what is cached there; False: no room.

    `kept`: blocks that must stay available.
    """
    ids, blocks, has_room = room_there(s, d, r, tokens, kv, kept)
    if has_room:
        d.cache.reference(r.id, ids)
        d.cache.take(r.id, blocks)
        d.reserved.append(r)
    return has_room


def lacking(s: Simulation, d: Instance, r: Request, kv: int) -> int:
    """The number of r's first `kv` tokens that it does not reference on d."""
    return kv - s.hash_tokens * len(d.cache.held.get(r.id, []))


def asks_where_to_decode(s: Simulation, i: Instance) -> bool:
    """Whether the policy chooses the decode instance of a request that i has prefilled."""
    return not i.role & DECODE or "route_decode" in s.hooks.overrides


def send_ahead(s: Simulation, i: Instance, chunks: list[Chunk]) -> None:
    """Send long prompts that the step completes layer by layer, if their destination has room at once."""
    least = s.options.layerwise_tokens
    if least is None or not asks_where_to_decode(s, i) or s.unserved & DECODE:
        return
    for r, prefix, tokens in chunks:
        if r.prefill_until < least or prefix + tokens < r.prefill_until or r.split > 0 or s.recomputes_here(r):
            continue
        d = ask_route_decode(s, r)
        if isinstance(d, str):
            continue
        first_token_recomputed = s.options.first_token == "recomputed" and r.emitted == 0
        kv = r.prefill_until - first_token_recomputed
        if d.spec.pulls and d is not i and s.fits(d, r):  # it fetches each layer once it is computed
            r.source, r.destination, r.sent_ahead, r.first_token_recomputed = i, d, True, first_token_recomputed
            d.incoming.append(r)
            start_transfers(s, d)
        elif not d.spec.pulls and d is not i and not d.incoming and reserve(s, d, r, kv, kv):
            assert i.step is not None
            r.source, r.destination, r.sent_ahead, r.first_token_recomputed = i, d, True, first_token_recomputed
            start_copy(s, r, i, d, lacking(s, d, r, kv), i.step.end_s)


def call_back(s: Simulation, r: Request) -> None:
    """Give up the copy that began, or for which r still waits, before the prefill of r had ended."""
    if r.sent_ahead and r.destination is not None:
        d, waits = r.destination, r in r.destination.incoming
        if not waits:
            withdraw_copy(s, r)
        r.sent_ahead, r.first_token_recomputed, r.source, r.destination = False, False, None, None
        if waits:
            d.incoming.remove(r)
        else:
            d.cache.free_kv(r.id)
            d.reserved.remove(r)
        start_transfers(s, d)
        s.wake(d)


def start_transfers(s: Simulation, d: Instance) -> None:
    """Start copies of requests that wait for d and now find room, in order; with pulled KV, let d schedule."""
    if d.hung:
        return
    if d.spec.pulls:
        if d.incoming:
            s.wake(d)
        return
    while d.incoming and reserve(s, d, d.incoming[0], kv_there(s, d, d.incoming[0]), d.incoming[0].sent_kv):
        r = d.incoming.pop(0)
        assert r.source is not None
        start_copy(s, r, r.source, d, lacking(s, d, r, r.sent_kv))
    if d.pinned and d.incoming and not d.running and not d.prefilling and d.prefill_step is None:
        s.wake(d)


def start_copy(
    s: Simulation, r: Request, source: Instance, target: Instance, tokens: int, computed_s: float = 0.0
) -> None:
    """Send `tokens` tokens of KV to another instance; their last layer is computed only at `computed_s`."""
    per_token = s.options.copy_bytes_per_token
    size = tokens * (s.options.kv_bytes_per_token if per_token is None else per_token) + s.options.state_bytes
    complete_s = s.now_s
    if computed_s > 0:
        last_layer = size / s.options.layers
        complete_s = computed_s + last_layer / min(source.spec.bandwidth_bytes_s, target.spec.bandwidth_bytes_s)
    begin_copy(s, r, source, target, size, complete_s, s.options.latency_s + tokens * target.spec.unpack_s)


def migrate(s: Simulation, r: Request, d: Instance) -> None:
    """Begin to copy a decoding request to another instance; do nothing if it cannot be migrated now."""
    source = next((i for i in s.instances if r in i.running), None)
    if source is None or source is d or r.migration is not None or not d.role & DECODE or r.span is not None:
        return
    if not s.fits(d, r) or not reserve(s, d, r, r.kv, r.kv):
        return
    r.migration = Migration(d, r.kv)
    start_copy(s, r, source, d, lacking(s, d, r, r.kv))


def cancel_migration(s: Simulation, r: Request) -> None:
    """Free what r had reserved at its destination, if it is migrating."""
    if r.migration is not None:
        d = withdraw_migration(s, r)
        start_transfers(s, d)
        s.wake(d)


def withdraw_migration(s: Simulation, r: Request) -> Instance:
    """Free what the migrating r had reserved and return the destination, to which no other request comes yet."""
    assert r.migration is not None
    d, ready = r.migration.target, r.migration.ready
    if not ready:
        withdraw_copy(s, r)
    r.migration = None
    d.cache.free_kv(r.id)
    d.reserved.remove(r)
    return d


def switch_over(s: Simulation, i: Instance, r: Request) -> None:
    """Send the tail of r's KV at a boundary of i and stop its decoding, or give the migration up."""
    assert r.migration is not None
    d, copied = r.migration.target, r.migration.copied
    i.changed = True
    room = kv_of_first_step(s, r, r.kv) if d.spec.pulls else r.kv
    extra = s.blocks_of(d, room) - s.blocks_of(d, copied)
    if extra > d.cache.available:
        cancel_migration(s, r)
        return
    d.cache.take(r.id, extra)
    stop_decoding(s, i, r)
    i.leaving.append(r)
    r.migration, r.source, r.destination, r.handing_over = None, i, d, True
    start_copy(s, r, i, d, r.kv - copied)


def turn_away(s: Simulation, i: Instance, r: Request, state: int, reason: str) -> bool:
    """End r after its prefill on i: its KV is freed."""
    i.leaving.remove(r)
    free_kv(s, i, r)
    call_back(s, r)
    s.end_request(r, state, reason)
    return True


def hand_over(s: Simulation, i: Instance, r: Request, d: Instance) -> bool:
    """Send r, which is split here, and its KV to d, or fail r if it could never fit. True: a seat was freed."""
    if not s.fits(d, r):
        return turn_away(s, i, r, FAILED, "kv")
    r.source, r.destination, r.handing_over = i, d, True
    d.incoming.append(r)
    start_transfers(s, d)
    return True
