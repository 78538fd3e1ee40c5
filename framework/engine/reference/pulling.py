"""KV that instances fetch as they form steps (SEMANTICS.md: KV that is pulled)."""

from __future__ import annotations

from framework.engine.reference.simulation import Simulation
from framework.engine.reference.state import Instance, Request
from framework.engine.reference.transfers import kv_there, lacking, reserve, start_copy, start_decoding


def pull(s: Simulation, d: Instance) -> None:
    """Fetch the KV of those that wait for d and find room, in order, beside what its prompts still need."""
    kept = sum(s.blocks_of(d, r.prefill_until) - s.blocks_of(d, r.covered) for r in d.prefilling)
    while d.incoming and reserve(s, d, d.incoming[0], kv_there(d, d.incoming[0]), d.incoming[0].sent_kv, kept):
        r = d.incoming.pop(0)
        assert r.source is not None
        blocks = -(-r.kv // s.options.block_tokens)
        start_copy(s, r, r.source, d, lacking(s, d, r, blocks * s.options.block_tokens))


def may_join(i: Instance) -> bool:
    """Whether the KV of somebody has come to i who finds a seat there, and the watermark beside others."""
    alone = not i.running and not i.prefilling and not i.lingering
    keeps = alone or i.cache.available >= i.watermark
    return bool(i.joining) and i.seats + i.late_seats < i.max_batch and keeps


def join(s: Simulation, i: Instance) -> Request:
    """The first whose KV has come to i decodes there, or goes on with its prefill."""
    r = i.joining.pop(0)
    s.give_admission_number(r)
    i.take_in(r)
    if r.is_partial:
        i.prefilling.append(r)
        r.caches = True
        return r
    if i.spec.pulls:  # the room for the token that its first step stores: it grows like any other
        i.cache.take(r.id, s.blocks_of(i, r.kv) - s.blocks_of(i, r.kv + 1))
    if s.options.first_token == "join" and r.untold and r.emitted == 1:
        r.first_token_s, r.token_s[0], r.untold = s.now_s, s.now_s, False
    start_decoding(s, i, r)
    return r
