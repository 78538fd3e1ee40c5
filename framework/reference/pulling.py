"""KV that instances fetch as they form steps (SEMANTICS.md: KV that is pulled)."""

from __future__ import annotations

from framework.reference.copies.transfers import (
    kv_of_first_step,
    kv_there,
    lacking,
    reserve,
    start_copy,
    start_decoding,
)
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request


def pull(s: Simulation, d: Instance) -> None:
    """Fetch the KV of requests that wait for d, in order, while there is room beyond what d's own prompts need.

    The KV of a prompt that is still being computed is fetched layer by layer.
    """
    kept = sum(s.blocks_of(d, r.prefill_until) - s.blocks_of(d, r.covered) for r in d.prefilling)
    while d.incoming and reserve(s, d, d.incoming[0], kv_there(s, d, d.incoming[0]), d.incoming[0].coming_kv, kept):
        r = d.incoming.pop(0)
        assert r.source is not None
        computed_s = r.source.step.end_s if r.is_partial and r.sent_ahead and r.source.step else 0.0
        blocks = -(-(r.prefill_until if r.sent_ahead else r.kv) // s.options.block_tokens)
        start_copy(s, r, r.source, d, lacking(s, d, r, blocks * s.options.block_tokens), computed_s)


def may_join(i: Instance) -> bool:
    """Whether a request with fetched KV may join i: there is a seat and, unless i is idle, room above the watermark."""
    alone = not i.running and not i.prefilling and not i.deferred_frees
    keeps = alone or i.cache.available >= i.watermark
    return bool(i.joining) and i.seats + i.late_seats < i.max_batch and keeps


def join(s: Simulation, i: Instance) -> Request:
    """Let the first request whose KV has come to i decode there, or continue its prefill."""
    r = i.joining.pop(0)
    r.counted = 0
    s.give_admission_number(r)
    i.take_in(r)
    if r.is_partial:
        i.prefilling.append(r)
        r.caches = True
        return r
    if i.spec.pulls:  # free the room for its first step: from now on it grows like any other
        i.cache.take(r.id, s.blocks_of(i, r.kv) - s.blocks_of(i, kv_of_first_step(s, r, r.kv)))
    if s.options.first_token == "join" and r.first_token_pending and r.emitted == 1:
        r.first_token_s, r.token_s[0], r.first_token_pending = s.now_s, s.now_s, False
    start_decoding(s, i, r)
    return r


def join_computed(s: Simulation, i: Instance) -> None:
    """Let the first request that i's prefill stream has computed decode; it already has its seat and blocks."""
    i.known -= 1
    r = i.computed.pop(0)
    s.give_admission_number(r)
    start_decoding(s, i, r)
