"""Allocation of KV blocks, and preemption (SEMANTICS.md: Prefill, Preemption and swapping)."""

from __future__ import annotations

import math

from framework.codes import PREFILL
from framework.reference.asking import ask_route_prefill
from framework.reference.copies.transfers import cancel_migration, start_decoding, stop_decoding
from framework.reference.faults.parking import park
from framework.reference.pins import break_pins, waits_for_load
from framework.reference.prefixes import (
    enter_read,
    free_ended,
    free_kv,
    known_tokens,
    matched_prefix,
    read_backup,
    read_stores,
)
from framework.reference.reserve import keeps_reserve
from framework.reference.simulation import Simulation
from framework.reference.spans.waiting import await_span
from framework.reference.state import FAILED, Instance, Request
from framework.reference.steps.duration import choose_depth


def may_come(s: Simulation, i: Instance) -> bool:
    """Whether anything waits, and admission is open."""
    if not i.waiting or waits_for_load(s, i):
        return False
    return not i.running or (not i.closed and i.totals["decode_steps"] >= i.admission_opens)


def has_seat(i: Instance) -> bool:
    """Whether another request may be on i."""
    return i.seats + i.late_seats < i.max_batch


def has_blocks(s: Simulation, i: Instance, tokens: int | None) -> bool:
    """Whether the first of the queue finds blocks for `tokens` tokens; None: for all its tokens."""
    left = left_blocks(s, i, tokens)
    return left >= i.present_watermark and keeps_reserve(s, i, min(i.waiting)[2], left)


def left_blocks(s: Simulation, i: Instance, tokens: int | None) -> int:
    """Blocks that are available once the first of the queue has those."""
    r = min(i.waiting)[2]
    ids = [id for id in matched_prefix(s, i, r) if id in i.cache.references]
    fresh = s.blocks_of(i, r.goal if tokens is None else tokens) - len(ids) * i.cache.blocks_per_id
    return i.cache.available - i.late_blocks - i.cache.idle_blocks(ids) - fresh


def finds_room(s: Simulation, i: Instance, tokens: int | None = None) -> bool:
    """Whether the first of the queue finds a seat and blocks for `tokens` tokens.

    If it does not, admission closes, given an output reserve and decodes.
    """
    found = has_seat(i) and has_blocks(s, i, tokens)
    reserves = s.options.engine.output_reserve.ratio > 0 and i.spec.reserve_blocks is None
    i.closed = not found and reserves and bool(i.running)
    return found


def admit(s: Simulation, i: Instance, covered: int) -> None:
    """Let the first of the queue begin its prefill, with blocks for its first `covered` tokens."""
    entry = min(i.waiting)
    i.waiting.remove(entry)
    r = entry[2]
    ids = matched_prefix(s, i, r)
    present = [id for id in ids if id in i.cache.references]
    i.cache.reference(r.id, present)
    r.prefill_until, r.registered, r.prefilled = r.goal, len(ids), known_tokens(s, i, r)
    r.covered, r.caches = covered, True
    lacking = [id for id in ids if id not in present]
    r.counted = 0
    read_stores(s, i, r, lacking)
    i.cache.take(r.id, s.blocks_of(i, covered) - len(present) * i.cache.blocks_per_id)
    enter_read(i, r, lacking)
    read_backup(s, i, r, s.hash_tokens * len(ids))
    i.take_in(r)
    i.prefilling.append(r)
    s.give_admission_number(r)
    if math.isnan(r.start_s):
        r.start_s, r.prefill_instance, r.cached_tokens = s.now_s, i.id, r.prefilled
        s.note(r, has_ended=False)


def cover(s: Simulation, i: Instance, r: Request, tokens: int) -> bool:
    """Allocate blocks for the first `tokens` tokens of a prefill; the last in order give way. False if r itself did."""
    if tokens <= r.covered:
        return True
    fresh = s.blocks_of(i, tokens) - s.blocks_of(i, r.covered)
    break_pins(i, fresh)
    while fresh > i.cache.available:
        i.chunk_preempted = True
        last = i.prefilling[-1]
        preempt_prefill(s, i, last)
        if last is r:
            return False
    i.cache.take(r.id, fresh)
    r.covered = tokens
    return True


def make_room(s: Simulation, i: Instance) -> bool:
    """Make room for the tokens that the next decode step stores. True: something was preempted."""
    preempted = False
    i.depth = choose_depth(s, i)
    break_pins(i, sum([growth(s, i, r) for r in selected(i)]))
    while sum([growth(s, i, r) for r in selected(i)]) > i.cache.available:
        give_way(s, i, victim(s, i))
        preempted = True
    for r in selected(i):
        i.cache.take(r.id, growth(s, i, r))
    return preempted


def selected(i: Instance) -> list[Request]:
    """The decodes of i's next step: those that the policy does not leave out."""
    return [r for r in i.running if not r.skips]


def victim(s: Simulation, i: Instance) -> Request:
    """The request to preempt next: by the policy, unless one has a deferred free, or by `engine.victim`."""
    there = i.running + i.prefilling + i.deferred_frees
    if "victim" in s.hooks.overrides:
        return max(i.deferred_frees, key=lambda r: r.admission) if i.deferred_frees else s.requests[asked_for(s, i)]
    if s.options.engine.victim == "fewest_tokens":
        return min(there, key=lambda r: (r.emitted, -r.input_tokens, -r.admission))
    if s.options.engine.victim == "least_urgent":
        return max(there, key=lambda r: (r.key, r.queue_number))
    return max(there, key=lambda r: r.admission)


def asked_for(s: Simulation, i: Instance) -> int:
    """The request of i that the policy gives up."""
    return int(s.hooks.ask("victim", i.id))


def give_way(s: Simulation, i: Instance, r: Request) -> None:
    """Preempt r; if its free is deferred, free its KV now: it has ended and is not recomputed."""
    if r not in i.deferred_frees:
        preempt(s, i, r)
        return
    i.deferred_frees.remove(r)
    s.freed_early += 1
    forget_last(s, i, r)
    free_ended(s, i, r)
    s.note(r, has_ended=True)


def free_deferred(s: Simulation, i: Instance) -> bool:
    """Free the KV whose free is deferred, since i's next step is formed. True: there was some."""
    there, i.deferred_frees = i.deferred_frees, []
    for r in there:
        free_ended(s, i, r)
        s.note(r, has_ended=True)
    return bool(there)


def forget_last(s: Simulation, i: Instance, r: Request) -> None:
    """Keep the last token of r out of the prefix cache.

    The scheduler does not know yet which token r got in the step of i that still runs.
    """
    if s.options.asynchronous and r.join_step < int(i.totals["decode_steps"]):
        r.accepted += 1


def preempt_prefill(s: Simulation, i: Instance, r: Request) -> None:
    """Drop the partial prefill of r on i; r waits there again, for any role of i."""
    s.preemptions += 1
    r.preemptions += 1
    evict(s, i, r)
    i.waiting.append(place_again(s, r))


def preempt(s: Simulation, i: Instance, r: Request) -> None:
    """Drop or swap out the KV of r."""
    s.preemptions += 1
    r.preemptions += 1
    swap = s.options.preemption == "swap" and r in i.running
    evict(s, i, r)
    if swap:
        i.swap_bytes += r.kv * s.options.kv_bytes_per_token + s.options.state_bytes
        i.swapped.append(r)
        return
    queue_preempted(s, i, r)


def evict(s: Simulation, i: Instance, r: Request) -> None:
    """Take r, which decodes or prefills on i, out of its list and free its KV."""
    i.changed = True
    if r in i.running:
        stop_decoding(s, i, r)
        forget_last(s, i, r)
    else:
        i.prefilling.remove(r)
    if i.prefill_step is not None:
        i.prefill_step.dropped.append(r)
    free_kv(s, i, r)
    cancel_migration(s, r)


def queue_preempted(s: Simulation, i: Instance, r: Request) -> None:
    """Queue r, whose KV is dropped, on i again if i prefills or recomputes r; else route it anew."""
    if r.spanned:
        await_span(s, r, 0)
        return
    if i.role & PREFILL or s.recomputes_here(r):
        i.waiting.append(place_again(s, r))
        return
    if s.unserved:
        park(s, r)
        return
    entry = place_again(s, r)
    target = ask_route_prefill(s, r)
    if not s.fits(target, r):
        s.end_request(r, FAILED, "kv")
        return
    target.waiting.append(entry)
    r.instance = target.id
    s.wake(target)


def place_again(s: Simulation, r: Request) -> tuple[float, int, Request]:
    """The entry of the preempted r in a queue: before all others, at its old place, or behind those of its key."""
    entry = (-math.inf, -s.preemptions, r)
    if s.options.engine.victim == "least_urgent":
        entry = (r.key, r.queue_number, r)
    if s.options.engine.requeue == "last":
        s.queue_number += 1
        r.queue_number = s.queue_number
        entry = (r.key, r.queue_number, r)
    r.place = entry[:2]
    return entry


def swap_in(s: Simulation, i: Instance, preempted: bool) -> None:
    """Bring back swapped-out requests in order, while seats and blocks allow, unless this iteration preempted."""
    while not preempted and i.swapped and i.has_room(s.blocks_of(i, kv_of_next_step(s, i, i.swapped[0]))):
        r = i.swapped.pop(0)
        i.cache.take(r.id, s.blocks_of(i, kv_of_next_step(s, i, r)))
        i.swap_bytes += r.kv * s.options.kv_bytes_per_token + s.options.state_bytes
        s.give_admission_number(r)
        i.take_in(r)
        start_decoding(s, i, r)


def kv_of_next_step(s: Simulation, i: Instance, r: Request) -> int:
    """KV tokens that r stores at most in the step being formed; drafts beyond its last token store nothing."""
    return min(r.kv + 1 + i.depth, r.input_tokens + r.output_tokens - 1)


def growth(s: Simulation, i: Instance, r: Request) -> int:
    """New blocks that r, which decodes, needs for the step being formed."""
    return s.blocks_of(i, kv_of_next_step(s, i, r)) - s.blocks_of(i, r.kv)
