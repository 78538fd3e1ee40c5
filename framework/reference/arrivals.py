"""Arrivals of requests (SEMANTICS.md: Arrivals) and of copies (Transfers, Prefix tiers, Live migration)."""

from __future__ import annotations

import math

from framework.codes import ARRIVAL, GIVE_UP, PREFILL
from framework.reference.asking import ask_route_prefill, checked
from framework.reference.copies.links import has_ended
from framework.reference.copies.transfers import start_copy, start_transfers
from framework.reference.faults.parking import park
from framework.reference.prefixes import free_kv, matched_prefix, register_cached
from framework.reference.simulation import Simulation
from framework.reference.spans.waiting import fits_together, is_to_span
from framework.reference.state import FINISHED, REJECTED, UNSENT, Instance, Request


def arrive(s: Simulation, r: Request) -> None:
    """Take in, refuse or route r, which arrives."""
    if not r.taken_in:
        s.announce_next_beside(r)
        if s.now_s >= s.options.horizon_s:
            s.end_request(r, UNSENT)
            return
        r.taken_in, r.arrival_s = True, s.now_s
        s.present[r.id] = r
        read_s = s.options.intake_token_s * r.input_tokens
        if len(s.options.late_s):
            read_s += s.options.late_s[r.id]
        if s.options.intake_s + read_s > 0:
            s.intake_free_s = max(s.now_s, s.intake_free_s) + s.options.intake_s
            s.push(s.intake_free_s + read_s, ARRIVAL, r.id)
            return
    if r.input_tokens + r.output_tokens > s.options.max_context:
        s.end_request(r, REJECTED, "context")
        return
    if all(not s.fits(i, r) for i in s.instances) and not fits_together(s, r):
        s.end_request(r, REJECTED, "kv")
        return
    if s.gate is None:
        serve(s, r)
    else:
        s.gate.come(s, r)
    awaited = r.instance >= 0 or r in s.parked or r in s.spans.waiting or s.gate is not None
    if s.options.patience_s < math.inf and r.id in s.present and awaited:
        s.push(s.now_s + s.options.patience_s, GIVE_UP, len(s.sent))
        s.sent.append(r)
        r.attempts += 1


def serve(s: Simulation, r: Request) -> None:
    """Ask whether to serve r, which some instance could, and route it; r waits while a phase has no instance."""
    if s.unserved:
        park(s, r)
        return
    reason = s.hooks.admit(s, r) if "admit" in s.hooks.overrides else None
    if reason is None:
        route(s, r)
    else:
        refuse(s, r, reason)


def refuse(s: Simulation, r: Request, reason: str) -> None:
    """Reject r, unless its client sends it again later."""
    if s.now_s + s.options.backoff_s < s.options.horizon_s < math.inf:
        s.push(s.now_s + s.options.backoff_s, ARRIVAL, r.id)
    else:
        s.end_request(r, REJECTED, reason)


def route(s: Simulation, r: Request) -> None:
    """Route the admitted request r and queue it there, unless it waits for a span."""
    if not is_to_span(s, r):
        route_to_one(s, r)


def route_to_one(s: Simulation, r: Request) -> None:
    """Route r, which needs no span, and queue it; with `fetch_prefix`, only after its prefix has arrived."""
    i = ask_route_prefill(s, r)
    if not s.fits(i, r):
        s.end_request(r, REJECTED, "kv")
        return
    if "fetch_prefix" in s.hooks.overrides and i.stores:
        source = s.hooks.fetch_prefix(s, r)
        if source != -1 and start_fetch(s, r, checked(s, "fetch_prefix", source, f" for request {r.id}"), i):
            return
    enqueue(s, r, i)


def start_fetch(s: Simulation, r: Request, source: Instance, i: Instance) -> bool:
    """Copy to i the leading blocks that the source has beyond those of i; False if there are none."""
    blocks = matched_prefix(s, source, r)[len(matched_prefix(s, i, r)) :]
    if blocks:
        r.fetch, r.instance = (i, blocks), i.id
        start_copy(s, r, source, i, len(blocks) * s.hash_tokens)
    return bool(blocks)


def end_fetch(s: Simulation, r: Request) -> None:
    """Queue r at its instance, which now has its prefix; route r anew if that instance no longer prefills."""
    assert r.fetch is not None
    (i, blocks), r.fetch = r.fetch, None
    for id in reversed(blocks):
        if (r.hash_ids.index(id) + 1) % i.stores[0].chunk == 0:
            i.keep(0, id)
    if i.role & PREFILL:
        enqueue(s, r, i)
    elif s.unserved:
        park(s, r)
    else:
        route(s, r)


def enqueue(s: Simulation, r: Request, i: Instance) -> None:
    """Queue r at i by the policy's key."""
    if "split_at" in s.hooks.overrides:
        split = s.hooks.split_at(s, r)
        r.split = split if split < r.input_tokens else max(split, r.input_tokens + 1)
    r.instance = i.id
    take_place(s, r)
    s.queue_of_arrivals(i).append((r.key, r.queue_number, r))
    s.wake(i)


def take_place(s: Simulation, r: Request) -> None:
    """Give r, which enters a queue, the policy's key and a queue number."""
    key = math.inf if s.hooks.dynamic_keys else 0.0
    if "prioritize" in s.hooks.overrides and not s.hooks.dynamic_keys:
        key = float(s.hooks.prioritize(s, [r])[0])
    s.queue_number += 1
    r.key, r.queue_number = r.place = key, s.queue_number


def finish_copy(s: Simulation, r: Request) -> None:
    """Handle the end of r's copy, or of its last byte's: that of a fetched prefix, of a migration, or of its KV."""
    if not has_ended(s, r):
        return
    if r.fetch is not None:
        end_fetch(s, r)
        return
    if r.state == FINISHED:
        s.note(r, has_ended=True)
        return
    if r.migration is not None:
        r.migration.ready = True
        s.wake(s.instances[r.decode_instance])
        return
    arrive_with_kv(s, r)


def arrive_with_kv(s: Simulation, r: Request) -> None:
    """Free r's KV at the source; r joins the destination at that instance's next boundary."""
    source, d = r.source, r.destination
    assert source is not None
    assert d is not None
    if r.handing_over:
        r.migrations += 1
    else:
        r.transferred = True
        if math.isnan(r.transfer_end_s):
            r.transfer_end_s = s.now_s
            r.first_token_pending = r.emitted <= 1
    r.source, r.destination, r.handing_over = None, None, False
    free_kv(s, source, r)
    source.leaving.remove(r)
    r.first_token_recomputed = False
    start_transfers(s, source)
    s.wake(source)
    d.reserved.remove(r)
    if r.is_partial:
        r.covered = r.prefill_until
    r.instance, r.registered = d.id, len(d.cache.held.get(r.id, []))
    register_cached(s, d, r, min(r.prefilled, r.kv + d.spec.pulls))
    r.caches = d.spec.pulls
    d.joining.append(r)
    s.wake(d)
