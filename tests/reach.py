"""What random runs reach: `python -m tests.reach [--runs N | --together]`.

Prints how often each thing that can happen to a request or an instance happened over N runs, of the broad families and
of one that is rare, and in how many runs each two mechanisms were both at work. The reference engine is watched while
it runs: a probe is called before a function of that engine, with what the function is called with, and names what is
about to happen.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from framework.codes import ARRIVAL, DECODE, OFF, PREFILL
from framework.policy.spans import SpanRow
from framework.reference import (
    arrivals,
    cache,
    circles,
    decisions,
    giving_up,
    kv,
    loop,
    pins,
    prefixes,
    pulling,
    reserve,
    roles,
)
from framework.reference.copies import links, transfers
from framework.reference.faults import crashes, parking
from framework.reference.faults.reports import Reports
from framework.reference.gateway import look
from framework.reference.gateway.gate import Flow
from framework.reference.giving_up import GAVE_UP
from framework.reference.holdings import coming
from framework.reference.options import Spec
from framework.reference.simulation import Simulation
from framework.reference.spans import together as spans
from framework.reference.spans.span import Span
from framework.reference.state import FINISHED, Instance, Request
from framework.reference.steps import duration, forming, lockstep, prefill_end, running_list, scheduling, step_end
from tests.helpers.agreement import drawn
from tests.helpers.differences import run_reference
from tests.helpers.rulers import Note
from tests.helpers.scenarios import Scenario

MODULES: tuple[Any, ...] = (
    *(
        arrivals,
        cache,
        circles,
        decisions,
        duration,
        forming,
        giving_up,
        kv,
        links,
        lockstep,
        loop,
        pins,
        prefixes,
        pulling,
        reserve,
        roles,
        spans,
    ),
    *(prefill_end, running_list, scheduling, step_end, transfers, crashes, parking, look),
)
Names = Iterator[str]


# --- probes: (arguments of the function) -> what happens --------------------------------------------------------------


def _preempt_prefill(s: Simulation, i: Instance, r: Request) -> Names:
    yield "preempted for a chunk's blocks"
    yield from _preempted(s, i, r)


def _preempt(s: Simulation, i: Instance, r: Request) -> Names:
    swaps = s.options.preemption == "swap" and r in i.running
    if swaps:
        yield "swapped out"
    elif not i.role & PREFILL:
        yield "preempted and prefilled there" if s.recomputes_here(r) else "preempted and prefilled elsewhere"
    yield from _preempted(s, i, r)


def _preempted(s: Simulation, i: Instance, r: Request) -> Names:
    yield "preempted"
    swaps = s.options.preemption == "swap" and r in i.running
    yield from _preempted_before_token(s, r)
    decodes = r in i.running
    if r.migration is not None:
        yield "preempted while migrating"
    if not decodes:
        yield "preempted while prefilling"
    if i.prefill_step is not None:
        yield "preempted concurrent with a prefill step"
        if any(chunk[0] is r for chunk in i.prefill_step.chunks):
            yield "preempted with its chunk under way"
    if not decodes and s.recomputes_here(r):
        yield "preempted while it is computed again"
    if i.draining_role != i.next_role:
        yield "preempted while its instance changes role"
    if i.cache.held.get(r.id):
        yield "preempted with a cached prefix"
    if i.depth > 0:
        yield "preempted where drafts take blocks"
    if i.spec.ranks > 1:
        yield "preempted on a rank"
    if i.spec.stages > 1:
        yield "preempted in a pipeline"
    if s.options.engine.requeue == "last" and not swaps and any(key == r.key for key, _, _ in i.waiting):
        yield "preempted request that waits behind others"


def _preempted_before_token(s: Simulation, r: Request) -> Names:
    if s.options.first_token == "recomputed" and r.first_token_pending and r.emitted == 0:
        yield "preempted before its first token"


def _give_way(s: Simulation, i: Instance, r: Request) -> Names:
    if r in i.deferred_frees:
        yield "one that has ended gives way"


def _free_deferred(s: Simulation, i: Instance) -> Names:
    if i.deferred_frees:
        yield "KV of those that have ended while a step is formed"
        if i.step is not None:  # of decodes, which goes on
            yield "ended with a prefill step concurrent with decodes"


def _forget_last(s: Simulation, i: Instance, r: Request) -> Names:
    decoded = r.join_step < int(i.totals["decode_steps"])
    if s.options.asynchronous and s.shares_early and r.caches and decoded and r.kv % s.hash_tokens == 0:
        yield "block that is not known to be full yet"


def _victim(s: Simulation, i: Instance) -> Names:
    there, by = i.running + i.prefilling + i.deferred_frees, s.options.engine.victim
    if by == "fewest_tokens" and min(there, key=lambda r: r.emitted) is not max(there, key=lambda r: r.admission):
        yield "one of fewer tokens preempted instead of the last"


def _asked_for(s: Simulation, i: Instance) -> Names:
    yield "victim asked for"
    yield from ["victim asked for in order of admission"] * (s.options.engine.step_order == "admission")
    yield from ["victim asked for where requests prefill"] * bool(i.prefilling)


def _tell(s: Simulation) -> Names:
    if "on_finish" in s.hooks.overrides:
        yield from ["told of an end"] * (s.ended[s.finished_seen :] != [])


def _ask_about(s: Simulation, r: Request) -> Names:
    yield "asked what becomes of KV"
    if r.has_next:
        yield "asked about KV that has been used"


def _release_pin(s: Simulation, r: Request) -> Names:
    i = s.instances[r.instance]
    if r in i.pinned:
        yield "pin used" if r.has_next else "pin that lasted its time"
        yield from ["pin that ends where others wait"] * bool(i.waiting or i.incoming)
    elif not r.has_next:
        yield "time of a pin that ended before"


def _prefetch(s: Simulation, r: Request, ttl_s: float) -> Names:
    yield "prefetch due"
    i = s.instances[r.instance]
    run = prefixes.known_prefix(s, i, r, s.hash_tokens * len(r.hash_ids) + 1)
    yield from ["prefetch without room for all"] * (prefixes.loadable_run(s, i, r) != run)
    yield from ["prefetch of what the cache has"] * bool(run and all(id in i.cache.references for id in run))


def _pass_time(s: Simulation, r: Request) -> Names:
    if r.prefetch_ttl_s is not None and r.has_next:
        yield "prefetch whose next call has come"
    if r.load_ttl_s and not r.loading and r not in s.instances[r.instance].pinned:
        yield "prefetch that others broke, or TTL that had ended"


def _finish_load(s: Simulation, i: Instance, r: Request) -> Names:
    yield "prefetched"
    yield from ["prefetched to another instance"] * (i.id not in (r.prefill_instance, r.decode_instance))
    yield from ["prefetched blocks that are there by now"] * any(id in i.cache.references for id in r.loading)
    yield from ["prefetched for one that waits"] * (bool(i.waiting) and pins.waits_for_load(s, i))
    yield from ["prefetched in a step"] * i.busy


def _end_move(s: Simulation, r: Request, i: Instance) -> Names:
    yield "KV moved" if r.moved[1] else "KV moved to where it is"
    yield from ["KV moved whose next call has come"] * r.has_next
    run = [*r.moved[0], *r.moved[1]]
    yield from ["KV moved without room for all"] * (prefixes.with_room(i, run) != run)
    yield from ["KV moved to where a part of it is"] * bool(r.moved[0] and r.moved[1])
    yield from ["KV moved to one that is off or down"] * (i.down or i.next_role == OFF)


def _break_pin(i: Instance) -> Names:
    yield from ["load broken"] * bool(i.pinned[0].loading)
    yield "pin broken" if i.running or i.prefilling else "pin broken for what waits"
    shared = {id for other in i.pinned[1:] for id in i.cache.held.get(other.id, [])}
    yield from ["pin broken with blocks that another pins"] * bool(shared & {*i.cache.held.get(i.pinned[0].id, [])})


def _end_pins(i: Instance) -> Names:
    if i.pinned and i.next_role == OFF:
        yield "pins ended by going off"


def _pop_first(store: cache.Cache, idle: list[Any]) -> Names:
    if store.ranks.get(idle[0], 0) > min(store.ranks.get(one, 0) for one in idle):
        yield "evicted by rank before an older block"


def _claim_instances(s: Simulation, r: Request, answer: SpanRow) -> Names:
    yield "asked again by which instances" if r.emitted == 0 else "to be computed again by several instances"
    yield from ["instances that another request has claimed"] * any(
        s.instances[i] in spans.instances_of(other) for other in s.spans.claims for i in answer.instances
    )


def _begin_span(s: Simulation, r: Request) -> Names:
    together = spans.instances_of(r)
    yield "step of several instances" if len(together) > 1 else "step of a span of one instance"
    yield from ["instances that pause their decodes for others"] * any(i.running for i in together)
    yield from ["KV on several instances"] * (r.elsewhere > 0)


def _lose_steps_of_span(s: Simulation, r: Request, span: Span) -> Names:
    if span.begun:
        yield (
            "crash in a step of several instances"
            if r in span.instances[0].prefilling
            else "crash where KV of others is"
        )


def _finds_room(s: Simulation, i: Instance, tokens: int | None = None) -> Names:
    if s.options.engine.output_reserve.ratio and (i.running or i.prefilling) and kv.has_seat(i):
        r = min(i.waiting)[2]
        if kv.left_blocks(s, i, tokens) >= i.present_watermark:
            found = reserve.keeps_reserve(s, i, r, kv.left_blocks(s, i, tokens))
            yield "admitted with room for outputs to come" if found else "output to come bars an admission"


def _may_come(s: Simulation, i: Instance) -> Names:
    if i.closed and i.running and i.waiting:
        yield "admission that is closed"


def _settle_reserve(s: Simulation, i: Instance, preempted: bool, chunks_alone: bool) -> Names:
    options = s.options.engine.output_reserve
    if not options.ratio:
        return
    if preempted and i.running:
        yield "preemption that tells of outputs"
    ratio, since = i.ratio_set
    if i.running and reserve.present_ratio(s, i) == options.least_ratio < ratio and i.totals["decode_steps"] > since:
        yield "reserve at its least"
    if not i.running and not i.prefilling and ratio != options.ratio:
        yield "idle instance that forgets what it knew of outputs"
    if i.closed and 1 in i.opens_after:
        yield "chunks alone keep admission closed" if chunks_alone and not preempted else "admission opened again"
    if s.options.asynchronous and i.closed and 1 in i.opens_after and not chunks_alone:
        yield "admission opened a step late"


def _swap_in(s: Simulation, i: Instance, preempted: bool) -> Names:
    if preempted or not i.swapped:
        return
    blocks = s.blocks_of(i, kv.kv_of_next_step(s, i, i.swapped[0]))
    seats, left = i.seats < i.max_batch, i.cache.available - blocks
    if i.has_room(blocks):
        yield "swapped in"
    elif seats and left >= 0:
        yield "swap-in barred by the watermark alone"
    elif not seats and left >= i.watermark:
        yield "swap-in barred by the largest batch alone"


def _migrate(s: Simulation, r: Request, d: Instance) -> Names:
    source = next((i for i in s.instances if r in i.running), None)
    if source is None or source is d or r.migration is not None or not d.role & DECODE:
        yield "migration that cannot be"
    elif not s.fits(d, r) or not transfers.room_there(s, d, r, r.kv, r.kv)[2]:
        yield "migration without room"
    else:
        yield "migrated"


def _cancel_migration(s: Simulation, r: Request) -> Names:
    if r.migration is not None:
        yield "migration cancelled"
        if r.migration.ready:
            yield "migration cancelled after its copy"


def _switch_over(s: Simulation, i: Instance, r: Request) -> Names:
    assert r.migration is not None
    d = r.migration.target
    if s.blocks_of(d, r.kv) - s.blocks_of(d, r.migration.copied) > d.cache.available:
        yield "migration without room for its tail"
    else:
        yield "migration switched over"


def _set_role(s: Simulation, i: Instance, role: int, plan: Any) -> Names:
    served = i.draining_role & role
    for other in s.instances:
        served |= 0 if other is i else other.role
    if role == i.next_role or served != PREFILL | DECODE:
        yield "role change that cannot be"
        return
    yield "role changed"
    if plan is not None:
        yield "role changed with a plan"
    if i.change_event is not None:
        yield "role change in place of another"
    if i.incoming or i.reserved:
        yield "role changed with KV on its way there"
    if i.leaving:
        yield "role changed with KV leaving"
    if i.swapped:
        yield "role changed with swapped requests"
    if i.prefilling:
        yield "role changed in the midst of a prefill"
    if any(r.fetch is not None and r.fetch[0] is i for r in s.requests):
        yield "role changed with a prefix on its way there"
    if s.gives_way(i) and not i.draining_role & role & PREFILL:
        yield "kept in its queue by a change of role"


def _scale(s: Simulation, pool: int, count: int) -> Names:
    there = [i for i in s.instances if i.spec.pool == pool]
    on = [i for i in there if i.next_role]
    if len(on) < count:
        yield "scaled up"
        off = [i for i in there if not i.next_role]
        yield from ["scaled up with one that drains"] * any(i.draining_role for i in off)
        yield from ["scaled up with one that is down"] * any(i.down for i in off)
    elif len(on) > count:
        yield "scaled down" if any(roles.may_go(s, i) for i in on) else "scaled down where none may go"
        yield from ["scaled down with one that starts"] * any(not i.draining_role and not i.down for i in on)
        yield from ["scaled down with one that has crashed"] * any(i.down for i in on)
        yield from ["scaled down with work on all"] * all(roles.requests_on(s, i) for i in on)


def _proceed(s: Simulation, i: Instance) -> Names:
    if i.spec.source_s and not i.draining_role:
        yield "start that reads from a source"
        if s.source_free_s > s.now_s + i.spec.provisioning_s:
            yield "start that waits for its source"


def _note_trend(s: Simulation, i: Instance, role: int) -> Names:
    before = i.next_role
    for phase in (PREFILL, DECODE):
        if (bool(role & phase) - bool(before & phase)) * s.trends[phase] < 0:
            yield "reversal"


def _has_drained(s: Simulation, i: Instance) -> Names:
    again = [r for r in [*(r for _, _, r in i.waiting), *i.prefilling] if s.recomputes_here(r)]
    leaves = i.draining_role & ~i.next_role
    if again and leaves & DECODE and not (i.running or i.joining or i.incoming or i.reserved or i.swapped):
        yield "decodes there once it is computed again, before a role changes"
    others = len(i.waiting) + len(i.prefilling) - len(again)
    if again and leaves == PREFILL and not others and not i.inbox and not coming(i) and not i.prefill_step:
        yield "role changed with one that is computed again"


def _complete_prefill(s: Simulation, i: Instance, r: Request, join: prefill_end.Join) -> Names:
    if s.recomputes_here(r) and r.emitted + 1 < r.output_tokens:
        if "route_decode" in s.hooks.overrides or not i.role & DECODE:
            yield "decodes where it was computed again, unasked"
        if join is prefill_end.join_later:
            yield "computed again concurrent with decodes"
        if i.spec.stages > 1:
            yield "computed again in a pipeline"
        if i.spec.ranks > 1:
            yield "computed again on a rank"


def _take_role(s: Simulation, i: Instance) -> Names:
    if not i.next_role:
        yield "switched off"
        if i.cache.references:
            yield "switched off with cached prefixes"
    elif not i.draining_role:
        yield "switched on"


def _admit(s: Simulation, i: Instance, covered: int) -> Names:
    r = min(i.waiting)[2]
    ids = prefixes.matched_prefix(s, i, r)
    if not (kv.may_come(s, i) and kv.has_seat(i) and kv.has_blocks(s, i, None)):
        yield "admitted for its first chunk alone"
    if i.present_watermark < i.watermark and i.cache.available - s.blocks_of(i, covered) < i.watermark:
        yield "admitted below the watermark"
    present = [id in i.cache.references for id in ids]
    if i.spec.state_blocks:
        yield "admitted with its states"
    if any(present):
        yield "admitted with a cached prefix"
    if not all(present):
        yield "loaded from a store"
        if s.shares_early:
            yield "KV block loaded from a store"
        if any(not here and any(present[k + 1 :]) for k, here in enumerate(present)):
            yield "loaded from a store before cached blocks"
        loaded = [j for j, here in enumerate(present) if not here]
        tiers = {next(k for k, store in enumerate(i.stores) if store.has(r.hash_ids, j)) for j in loaded}
        if len(tiers) > 1:
            yield "loaded from two tiers"
        if any(i.stores[k].chunk > 1 for k in tiers):
            yield "chunk loaded from a store"
        if any(i.stores[k].on_eviction for k in tiers):
            yield "loaded from a store that takes what is evicted"
    if s.shares_early:
        yield from _shared_early(s, i, r, ids)
    if r.preemptions:
        yield "admitted again"
        if ids:
            yield "admitted again with a prefix"


def _register_prefix(s: Simulation, i: Instance, r: Request, tokens: int) -> Names:
    fresh = [id for j, id in enumerate(r.hash_ids[r.counted :], r.counted) if (j + 1) * s.hash_tokens <= tokens]
    for store in i.stores:
        if any(store.uses[id] + 1 < store.write_after for id in fresh):
            yield "used too seldom to be written to a store"


def _shared_early(s: Simulation, i: Instance, r: Request, ids: list[int]) -> Names:
    size = s.hash_tokens
    others = [other for other in s.requests if other is not r]
    if any(ids[k] in other.hash_ids[other.input_tokens // size :][:1] for other in others for k in range(len(ids))):
        yield "hit what another has generated"
    if len(ids) * size > r.input_tokens:
        yield "hit what it has generated itself"
    for other in i.prefilling:
        if any(id in other.hash_ids[other.prefilled // size : other.registered] for id in ids):
            yield "hit a block that is yet to be computed"


def _register_copy(self: cache.BlockCache, request: int, id: int) -> Names:
    if id in self.references:
        yield "known block enters next to another"


def _take_copy(self: cache.BlockCache, request: int, blocks: int) -> Names:
    if blocks > self.free:
        yield "block evicted"
        if len(self.copies[self.idle[0].name]) > 1:
            yield "one of several blocks of a name evicted"


def _with_loads_s(s: Simulation, i: Instance, duration_s: float) -> Names:
    if i.load_s > duration_s:
        yield "load longer than its step"


def _arrive_with_kv(s: Simulation, r: Request) -> Names:
    if r.first_token_recomputed:
        yield "sent without its token"
        if r.output_tokens == 1:
            yield "single token that comes from elsewhere"
        if r.split > 0:
            yield "split on its way without its token"


def _schedule(s: Simulation, i: Instance) -> Names:
    if s.options.first_token == "join" and any(r.first_token_pending and r.emitted == 1 for r in i.joining):
        yield "first token that comes with the KV"


def _end_fetch(s: Simulation, r: Request) -> Names:
    assert r.fetch is not None
    i = r.fetch[0]
    yield "prefix fetched" if i.role & PREFILL else "prefix fetched to one that prefills no more"
    if len(r.fetch[1]) > i.stores[0].capacity:
        yield "prefix fetched that its store cannot hold"


def _start_step(s: Simulation, i: Instance, decodes: list[Request], chunks: list[Any]) -> Names:
    if i.spec.ranks > 1:
        yield "step with ranks"
    if i.spec.stages > 1:
        yield "step of a pipeline"
        if chunks and decodes:
            yield "pipelined chunks concurrent with decodes"
        if not chunks and len(decodes) > i.spec.stages:
            yield "more decodes than stages"
        if not chunks and len(decodes) < i.spec.stages:
            yield "fewer decodes than stages"
    if i.prefill_step is not None:
        yield "decodes concurrent with a prefill step"
    if chunks and decodes:
        yield "chunks and decodes in one step"
        if s.options.attention_overlap > 0:
            yield "attentions that overlap"
        if s.timing.joint_kernel(i.spec.pool).decode_rows > 0:
            yield "decodes in tiles"
    if chunks and i.mode == "chunks_first" and i.running:
        yield "decodes that wait for chunks"
    if len(chunks) > 1:
        yield "several chunks in one step"
    if i.swap_bytes > 0:
        yield "step that swaps"
    if decodes and i.depth > 0:
        yield "step that verifies drafts"
    if i.spec.chunk_sizes and chunks:
        yield "chunk by a schedule"
    yield from _any_step(s, i, decodes, chunks)


def _any_step(s: Simulation, i: Instance, decodes: list[Request], chunks: list[Any]) -> Names:
    if len(i.group) > 1:
        yield "step of a group"
    if i.slowness > 1:
        yield "step of a slow instance"
    if s.options.chosen_share > 0:
        yield "step of experts"
    if i.spec.reserve_blocks is not None:
        yield "step where requests reserve"
    drafted = len(decodes) * (1 + (i.depth if decodes else 0))
    least_s = s.timing.host_s(i.spec.pool, drafted + sum(tokens for _, _, tokens in chunks), len(decodes))
    if i.spec.ranks == 1 and least_s > duration.like_rank_s(s, i, decodes, chunks):
        yield "step that waits for its host"
    longest = max((prefix + tokens for _, prefix, tokens in chunks), default=0)
    if duration.beyond_measured(s, i, decodes, chunks, longest) > 1:
        yield "step beyond what was measured"


def _begin_together(s: Simulation, ranks: list[Instance]) -> Names:
    ends = [i.step.end_s for i in ranks if i.step is not None]
    if len(set(ends)) > 1:
        yield "step that waits for another rank's"
    if 0 < len(ends) < len(ranks):
        yield "rank without work with others"
    if not ends:
        yield "group that finds nothing to do"


def _wake(s: Simulation, i: Instance) -> Names:
    if not i.busy and i.group_steps:
        yield "woken at an idle rank of a group in a step"


def _call_back(s: Simulation, r: Request) -> Names:
    if r.sent_ahead and r.destination is not None:
        yield "copy ahead called back"
        if r in r.destination.incoming:
            yield "waits no more for who would fetch it"


def _start_copy(
    s: Simulation, r: Request, source: Instance, target: Instance, tokens: int, computed_s: float = 0.0
) -> Names:
    yield "sent ahead, layer by layer" if computed_s > 0 else "copied"
    if computed_s > 0 and target.spec.pulls:
        yield "fetched while it is computed"


def _begin_copy(s: Simulation, r: Request, source: Instance, target: Instance, *others: Any) -> Names:
    if max(source.egress_free_s, target.ingress_free_s) > s.now_s:
        yield "copy that waits for its turn"


def _reserve(s: Simulation, d: Instance, r: Request, tokens: int, kv: int, kept: int = 0) -> Names:
    ids, _, has_room = transfers.room_there(s, d, r, tokens, kv, kept)
    if ids and has_room:
        yield "copied without what is cached there"
        if not s.blocks_for(kv - s.hash_tokens * len(ids)):
            yield "not copied, for all is cached there"
        if d.cache.idle_blocks(ids):
            yield "prefix referenced there that nobody used"


def _share_links(s: Simulation) -> Names:
    channels = list(s.channels.values())
    if not s.links_changed and not any(channel.changed for channel in channels):
        return
    if any(len(channel.copies) > 1 for channel in channels):
        yield "copies between the same two instances"
    if len({channel.source for channel in channels}) < len(channels):
        yield "copies that share a sender"
    if len({channel.target for channel in channels}) < len(channels):
        yield "copies that share a receiver"
    rates = links.fair_rates(s)
    if any(not channel.changed and rates[channel] != channel.rate_bytes_s for channel in channels):
        yield "copy that another slows or speeds up"
    carried = sum(rate * len(channel.copies) for channel, rate in rates.items())
    if len(channels) > 1 and s.options.fabric_bytes_s is not None and carried > 0.99 * s.options.fabric_bytes_s:
        yield "copies that a fabric limits"


def _has_ended(s: Simulation, r: Request) -> Names:
    assert r.copy is not None
    if r.copy.channel is not None and max(s.now_s, r.copy.complete_s) + r.copy.landing_s > s.now_s:
        yield "copy that ends after its last byte"


def _withdraw_copy(s: Simulation, r: Request) -> Names:
    assert r.copy is not None
    yield "copy withdrawn while it flows" if r.copy.channel is not None else "copy withdrawn"
    target = r.destination if r.migration is None else r.migration.target
    if target is not None and target.cache.held.get(r.id):
        yield "copy withdrawn with a prefix there"


def _start_transfers(s: Simulation, d: Instance) -> Names:
    if not d.incoming:
        return
    r = d.incoming[0]
    if not transfers.room_there(s, d, r, transfers.kv_there(s, d, r), r.coming_kv)[2]:
        yield "transfer that waits for room"
    if s.gives_way(d) and d.has_room(s.blocks_of(d, transfers.kv_there(s, d, r))):
        yield "transfer that waits for one preempted there"


def _pull(s: Simulation, d: Instance) -> Names:
    if d.joining:
        yield "KV that waits for a seat"
    if d.incoming:
        r = d.incoming[0]
        if transfers.room_there(s, d, r, transfers.kv_there(s, d, r), r.coming_kv)[2]:
            yield "KV that is pulled"
            if s.options.drafts.depth > 0:
                yield "KV that is pulled where tokens are drafted"


def _ask_batching(s: Simulation, i: Instance) -> Names:
    if i.changed and s.hooks.dynamic_keys and len(i.waiting) > 1:
        yield "queue read by new keys"


def _set_admission(s: Simulation, i: Instance) -> Names:
    if i.admission_opens > i.totals["decode_steps"]:
        yield "admission that waits for others"


def _prepare_decodes(s: Simulation, i: Instance) -> Names:
    if i.inbox:
        yield "came while a step ran"
        yield "came while a prefill step ran concurrent with decodes"
    yield from _known_later(s, i)


def _prepare_next(s: Simulation, i: Instance) -> Names:
    if i.inbox:
        yield "came while a step ran"
    yield from _known_later(s, i)


def _known_later(s: Simulation, i: Instance) -> Names:
    if i.known < len(i.computed):
        yield "prompt computed concurrent with a step that was formed before"
    if (i.late_seats or i.late_blocks) and i.waiting:
        yield "room that came free a step late"
        if i.prefill_ended_s == s.now_s:
            yield "room that came free since a prefill step began"


def _take(self: cache.Cache, request: int, blocks: int) -> Names:
    if blocks > self.free:
        yield "prefix evicted"


def _between_steps(s: Simulation, i: Instance) -> bool:
    """Whether i has ended a step at this time, and is still to form the next one."""
    return i.woken and not i.busy and bool(i.steps) and i.steps[-1][1] == s.now_s


def _enqueue(s: Simulation, r: Request, i: Instance) -> Names:
    if _between_steps(s, i):
        yield "queued between two steps"


def _finish_copy(s: Simulation, r: Request) -> Names:
    there = s.instances[r.decode_instance] if r.migration is not None else r.destination
    if there is not None and _between_steps(s, there):
        yield "copy ended between two steps"


def _tick(s: Simulation, number: int) -> Names:
    if any(_between_steps(s, i) for i in s.instances):
        yield "tick between two steps"


def _take_turn(s: Simulation, i: Instance) -> Names:
    if any(other.woken for other in s.instances if other is not i):
        yield "several schedule at one time"
    if i.woken and i.busy and not i.may_prefill and i.prefill_ended_s == s.now_s:
        yield "prefill step that ends with nothing to follow"
    if i.woken and not i.busy and i.group_steps:
        yield "turn of a rank whose group is in a step"


def _pause_others(s: Simulation, i: Instance, decodes: list[Request]) -> Names:
    for r in i.running:
        if r not in decodes:
            yield "decode left out by the policy" if r.skips else "decode that waits for tokens"


def _take_blocks(self: running_list.InOrder, r: Request, blocks: int) -> Names:
    if "victim" in self.s.hooks.overrides:  # to ask it here would be one question more
        return
    if blocks > self.i.cache.available and r in self.i.prefilling and kv.victim(self.s, self.i) in self.i.running:
        yield "decode preempted for a chunk"


def _take_back(self: running_list.InOrder, r: Request) -> Names:
    if r in self.decodes or any(chunk[0] is r for chunk in self.chunks):
        yield "tokens given to another are taken back"


def _first_chunk(s: Simulation, i: Instance, r: Request, cached: int, spent: int, chunks: list[Any]) -> Names:
    left = forming.tokens_left(i, i.token_budget // i.spec.ranks, spent, i.coming_rank, chunks)
    if not s.options.engine.chunked_prefill and 0 < left < r.goal - cached:
        yield "prompt longer than what is left of the budget"
    yield from _cut(s, left, r.goal - cached)


def _longest_chunk(s: Simulation, r: Request) -> Names:
    yield from _cut(s, 1 << 40, r.prefill_until - r.prefilled)


def _cut(s: Simulation, left: int, wanted: int) -> Names:
    longest = s.options.engine.longest_chunk
    if longest is not None and longest < min(left, wanted):
        yield "chunk as long as one may be"


def _end_in_order(s: Simulation, i: Instance, step: Any) -> Names:
    ending = [r for r, _, _ in step.chunks if r.prefilled == r.prefill_until and r.emitted + 1 == r.output_tokens]
    for r in step.decodes:
        if r.emitted == r.output_tokens and any(other.admission < r.admission for other in ending):
            yield "prefill ended before a decode"


def _give_up(s: Simulation, r: Request) -> Names:
    yield "KV given up in a circle"
    if len(circles.find_circle(s)) > 2:
        yield "KV given up in a circle of three"
    if r.first_token_recomputed:
        yield "KV given up in a circle without its token"
    assert r.destination is not None
    if s.gives_way(r.destination):
        yield "KV given up for one that is computed again"


def _preempt_by_policy(s: Simulation, i: Instance, r: Request, keep: str) -> Names:
    if r in i.running and keep != "drop":
        yield "suspended with its KV" if keep == "kv" else "suspended with its KV in host memory"
    if r in i.kept or r.swapped_out:
        yield "suspended request that gives up KV"
    if r in i.running or r in i.prefilling:
        yield "suspended while it decodes" if r in i.running else "suspended while it prefills"
        yield from ["suspended while it migrates"] * (r.migration is not None)
    elif decisions.waits_on(i, r):
        yield "suspended while it waits"
    elif r in i.swapped:
        yield "suspended while it is swapped out"
    else:
        yield "preemption by the policy that cannot be"


def _resume(s: Simulation, i: Instance, r: Request) -> Names:
    if r in i.kept:
        yield "resumed without a seat" if i.seats >= i.max_batch else "resumed with its KV"
    elif r.swapped_out:
        yield "resumed from host memory"
    elif r.suspended and i.role & PREFILL and not s.fits(i, r):
        yield "resumed where it no longer fits"
    elif r.suspended:
        yield "resumed" if i.role & PREFILL or s.recomputes_here(r) else "resumed elsewhere"


def _cancelled(s: Simulation, i: Instance, r: Request) -> Names:
    if r.fetch is not None:
        yield "cancelled while its prefix is fetched"
    elif r in i.running or r in i.prefilling:
        yield "cancelled while it decodes" if r in i.running else "cancelled while it prefills"
    elif decisions.waits_on(i, r):
        yield "cancelled while it waits"
    elif r in i.swapped:
        yield "cancelled while it is swapped out"
    elif r in i.joining or r in i.computed:
        yield "cancelled before it joins" if r in i.joining else "cancelled once it is computed"
    elif r.destination is not None:
        yield "cancelled before its copy" if r in r.destination.incoming else "cancelled during its copy"
    elif r.suspended:
        yield "cancelled while it is suspended"
        yield from ["cancelled while it is suspended with its KV"] * (r in i.kept)


def _cancel(s: Simulation, i: Instance, r: Request, reason: str) -> Names:
    for name in _cancelled(s, i, r):
        yield name.replace("cancelled", "given up") if reason == GAVE_UP else name


def _lose_patience(s: Simulation, r: Request) -> Names:
    if r.id not in s.present:
        yield "patience that outlived its request"
    elif not math.isnan(r.prefill_end_s):
        yield "patience that was rewarded"
    elif r in s.parked:
        yield "given up while it is parked"


def _end_cancelled(s: Simulation, r: Request, reason: str) -> Names:
    if reason == GAVE_UP:
        yield "sent again" if r.attempts <= s.options.retries else "given up for good"


def _end_request(s: Simulation, r: Request, state: int, reason: str = "") -> Names:
    followers = [later for later in s.followers.get(r.id, ()) if s.options.horizon_s > s.now_s]
    joined = [later for later in followers if sum(later in others for others in s.followers.values()) > 1]
    yield from ["call that several wait for"] * (len(followers) > 1)
    yield from ["call that waits for another"] * any(s.awaits[later] > 1 for later in joined)
    if any(s.awaits[later] == 1 for later in joined):
        yield "call that has waited for several"
        yield from ["call that waited for one that was not served"] * (state != FINISHED)
    if s.sessions and not followers and len(s.programs[s.opener[r.id]]) > 1:
        yield "client whose program goes on elsewhere"


def _announce_next_beside(s: Simulation, r: Request) -> Names:
    first = s.opener[r.id]
    if s.options.clients is not None and r.id != first and s.waits_for_none(r.id):
        yield "further first call of a client's program"


def _requeue(s: Simulation, i: Instance, r: Request, target: Instance) -> Names:
    if not decisions.waits_on(i, r):
        yield "requeued though it does not wait"
    elif target is not i and target.role & PREFILL and not s.recomputes_here(r) and s.fits(target, r):
        yield "requeued"
        yield from ["requeued from an inbox"] * any(entry[2] is r for entry in i.inbox)
        yield from ["requeued though it was preempted"] * (r.preemptions > 0)
    elif target is not i:
        yield "requeued where it cannot be"


def _revise(s: Simulation, postponed: Any, r: Request, action: Any) -> Names:
    yield f"{action[0]} after {postponed.action[0]}"


def _decide(s: Simulation, i: Instance) -> Names:
    if any(entry.instance in i.group for entry in s.postponed):
        yield "decision that waited for a turn"
    if i.prefill_step is not None:
        yield "decision concurrent with a prefill step"
    if len(i.group) > 1:
        yield "decision for a group"


def _fail(s: Simulation, i: Instance) -> Names:
    this = s.options.faults[s.faults]
    if this.what == "link":
        flowing = [channel for channel in s.channels.values() if i.id in (channel.source, channel.target)]
        yield from ["network parted with copies under way"] * (this.value == 0 and bool(flowing))
        yield from ["network limited with copies under way"] * (0 < this.value < 1 and bool(flowing))
        yield from ["network healed with copies that wait"] * (i.link_share == 0 and bool(flowing))
    if this.what == "slowdown":
        yield "slowed down" if this.value > 1 else "fast again"
        yield from ["slowed down in a step"] * (i.step is not None)
        yield from ["slowed down in a prefill step concurrent with decodes"] * (i.prefill_step is not None)


def _hang(s: Simulation, i: Instance) -> Names:
    if i.down or i.off_since_s is not None:
        yield "hang of an instance that is off"
        return
    yield "hung"
    yield from ["hung in a step of decodes"] * any(rank.step is not None and rank.step.decodes for rank in i.group)
    yield from ["hung with paused decodes"] * any(r.paused for rank in i.group for r in rank.running)
    yield from ["hung with KV that waits to come"] * any(rank.incoming for rank in i.group)


def _crash(s: Simulation, i: Instance, this: Any) -> Names:
    if i.down or i.off_since_s is not None:
        yield "crash of an instance that is off"
        return
    yield "crashed"
    yield from ["crash that is noticed later"] * (this.what == "detection")
    for rank in i.group:
        yield from _crash_of(s, rank)
    if len(i.group) > 1:
        yield "crash of a group"


def _crash_of(s: Simulation, i: Instance) -> Names:
    there = {
        "crashed in a step": i.step is not None,
        "crashed in a prefill step concurrent with decodes": i.prefill_step is not None and i.step is not None,
        "crashed between two steps": _between_steps(s, i),
        "crashed with requests that wait": i.waiting,
        "crashed with requests that came while a step ran": i.inbox,
        "crashed in the midst of a prefill": i.prefilling,
        "crashed with decodes": i.running,
        "crashed with requests that join": i.joining,
        "crashed with swapped requests": i.swapped,
        "crashed with suspended requests that keep KV": i.kept,
        "crashed with KV leaving": i.leaving,
        "crashed with KV on its way there": i.reserved,
        "crashed with KV that waits to come": i.incoming,
        "crashed with KV of those that have ended": i.deferred_frees,
        "crashed with cached prefixes": i.cache.references,
        "crashed while it changes role": i.draining_role != i.next_role,
        "crashed with a prefix on its way there": any(r.fetch is not None and r.fetch[0] is i for r in s.requests),
        "crashed while a request migrates there": any(
            r.migration is not None and r.migration.target is i for r in s.requests
        ),
        "crashed while a request migrates away": any(r.migration is not None for r in i.running),
    }
    yield from (name for name, is_so in there.items() if is_so)


def _lose_gpus(s: Simulation, i: Instance, this: Any) -> Names:
    if this.gpus == 0:
        return
    yield "lost GPUs"
    yield from ["lost GPUs that were back before"] * (i.spec is not i.whole)
    if not s.options.narrow[i.spec.pool, this.gpus].total_blocks:
        yield "too few GPUs left for the model"


def _repair(s: Simulation, i: Instance, this: Any) -> Names:
    if i.spec is i.whole:
        return
    yield "GPUs repaired of an instance that is off" if i.off_since_s is not None else "GPUs repaired"


def _reconfigures(s: Simulation, i: Instance) -> Names:
    yield from ["asked whether to reconfigure"] * ("reconfigure" in s.hooks.overrides)


def _take_spec(s: Simulation, i: Instance, spec: Spec) -> Names:
    if spec is not i.spec:
        yield "goes on with fewer GPUs" if spec is not i.whole else "goes on with all GPUs again"


def _settle(s: Simulation, r: Request, lost_tokens: int) -> Names:
    yield "dropped by a crash"
    yield from ["dropped with tokens that it has emitted"] * (r.emitted > 0)
    restores = s.options.engine.faults.recovery == "restore"
    yield from ["dropped again before it was restored"] * (restores and not lost_tokens and r.backed_up > 0)
    yield from ["dropped where a decision awaits it"] * any(entry.action[1] == r.id for entry in s.postponed)


def _recover(s: Simulation, r: Request, lost_tokens: int, recovery: str | None) -> Names:
    if recovery is not None:
        yield f"policy answers {recovery} for a dropped request"


def _read_backup(s: Simulation, i: Instance, r: Request, cached: int) -> Names:
    if r.prefilled > cached:
        yield "restored from a backup"
        yield from ["restored behind a cached prefix"] * (cached > 0)
        yield from ["restored but for its last token"] * (r.prefilled == r.goal - 1)
        yield from ["restored up to its split"] * (r.split > 0)
        yield from ["restored where prefills have a stream"] * (i.mode == "concurrent")


def _route_parked(s: Simulation) -> Names:
    if s.parked and not s.unserved:
        yield "routed once each phase has an instance"


def _report(s: Simulation, number: int) -> Names:
    yield "reported"
    yield from ["reported between two steps"] * any(_between_steps(s, i) for i in s.instances)
    yield from ["reported in a step of decodes"] * any(i.step is not None and i.step.decodes for i in s.instances)
    yield from ["reported while an instance is down"] * any(i.down for i in s.instances)


def _look(s: Simulation) -> Names:
    gate = s.gate
    assert gate is not None
    there, waiting = [r for flow in gate.flows for r in flow.requests], gate.waiting
    yield "look"
    if there and len(waiting) == len(there):
        yield "look after a turn or a report" if gate.goes_by_reports else "look after a turn"
    if len({flow.band for flow in gate.flows if flow.requests}) > 1:
        yield "look with several bands"
    if waiting and s.unserved:
        yield "look while a phase has no instance"


def _release(s: Simulation, flow: Flow) -> Names:
    gate = s.gate
    assert gate is not None
    since_s = s.now_s - gate.since_s(flow.requests[0])
    yield "released" if since_s > 0 else "released at once"
    others = [one for one in gate.flows if one.band == flow.band and one.requests and one is not flow]
    if others and gate.config.fairness != "arrival":
        yield f"released by {gate.config.fairness}"
    if any(one.band > flow.band and one.requests for one in gate.flows):
        yield "released before another band"


def _refuse_waiting(s: Simulation, r: Request, reason: str) -> Names:
    yield reason
    if s.now_s + s.options.backoff_s < s.options.horizon_s < math.inf:
        yield "refused at the gateway and sent again"


def _cancel_at_gateway(s: Simulation, r: Request, reason: str) -> Names:
    yield "given up at the gateway" if reason == GAVE_UP else "cancelled at the gateway"


def _arrived(self: Reports[Any], now_s: float) -> Names:
    come = [number for number in self.taken if self.arrives_s(number) <= now_s]
    yield "asked by a report" if max(come) > 0 else "asked before a report has come"
    yield from ["asked while a report is on its way"] * (len(come) < len(self.taken))


def _always(name: str) -> Callable[..., Iterable[str]]:
    return lambda *arguments, **named: (name,)


PROBES: dict[str, Callable[..., Iterable[str]]] = {
    "preempt": _preempt,
    "preempt_prefill": _preempt_prefill,
    "give_way": _give_way,
    "free_deferred": _free_deferred,
    "forget_last": _forget_last,
    "victim": _victim,
    "asked_for": _asked_for,
    "tell": _tell,
    "finds_room": _finds_room,
    "ask_about": _ask_about,
    "release_pin": _release_pin,
    "break_pin": _break_pin,
    "prefetch": _prefetch,
    "pass_time": _pass_time,
    "finish_load": _finish_load,
    "end_move": _end_move,
    "end_pins": _end_pins,
    "may_come": _may_come,
    "settle_reserve": _settle_reserve,
    "swap_in": _swap_in,
    "migrate": _migrate,
    "cancel_migration": _cancel_migration,
    "switch_over": _switch_over,
    "set_role": _set_role,
    "scale": _scale,
    "take_role": _take_role,
    "has_drained": _has_drained,
    "proceed": _proceed,
    "note_trend": _note_trend,
    "complete_prefill": _complete_prefill,
    "reroute": _always("queued elsewhere by a change of role"),
    "admit": _admit,
    "register_prefix": _register_prefix,
    "with_loads_s": _with_loads_s,
    "end_fetch": _end_fetch,
    "arrive_with_kv": _arrive_with_kv,
    "schedule": _schedule,
    "start_step": _start_step,
    "start_prefill_step": _always("prefill step concurrent with decodes"),
    "decode_elsewhere": _always("cut in its output"),
    "prefill_elsewhere": _always("cut in its prompt"),
    "turn_away": _always("turned away after its prefill"),
    "call_back": _call_back,
    "start_copy": _start_copy,
    "begin_copy": _begin_copy,
    "reserve": _reserve,
    "share_links": _share_links,
    "begin_together": _begin_together,
    "has_ended": _has_ended,
    "withdraw_copy": _withdraw_copy,
    "start_transfers": _start_transfers,
    "pull": _pull,
    "ask_batching": _ask_batching,
    "set_admission": _set_admission,
    "enqueue": _enqueue,
    "finish_copy": _finish_copy,
    "tick": _tick,
    "take_turn": _take_turn,
    "prepare_decodes": _prepare_decodes,
    "prepare_next": _prepare_next,
    "pause_others": _pause_others,
    "first_chunk": _first_chunk,
    "longest_chunk": _longest_chunk,
    "end_in_order": _end_in_order,
    "form_batch": _always("static batch"),
    "give_up": _give_up,
    "fail_rest": _always("run that stalls"),
    "preempt_by_policy": _preempt_by_policy,
    "resume_by_policy": _resume,
    "cancel": _cancel,
    "lose_patience": _lose_patience,
    "end_cancelled": _end_cancelled,
    "revise": _revise,
    "requeue": _requeue,
    "decide": _decide,
    "fail": _fail,
    "hang": _hang,
    "crash": _crash,
    "lose_gpus": _lose_gpus,
    "repair": _repair,
    "reconfigures": _reconfigures,
    "take_spec": _take_spec,
    "settle": _settle,
    "recover": _recover,
    "read_backup": _read_backup,
    "come_back": _always("back after a crash"),
    "lose_kv": _always("prefilled where nobody decodes"),
    "park": _always("parked"),
    "route_parked": _route_parked,
    "report": _report,
    "look": _look,
    "release": _release,
    "refuse_waiting": _refuse_waiting,
    "claim_instances": _claim_instances,
    "begin_span": _begin_span,
    "lose_steps_of_span": _lose_steps_of_span,
    "cancel_at_gateway": _cancel_at_gateway,
}


@contextmanager
def watched(counts: Counter[str]) -> Iterator[None]:
    """A context in which the reference engine counts what happens."""
    before: list[tuple[Any, str, Any]] = []

    def watch(owner: Any, name: str, probe: Callable[..., Iterable[str]]) -> None:
        plain = getattr(owner, name)

        def probed(*arguments: Any, **named: Any) -> Any:
            for event in probe(*arguments, **named):  # not `update`, which takes longer over so few
                counts[event] += 1
            return plain(*arguments, **named)

        before.append((owner, name, plain))
        setattr(owner, name, probed)

    try:
        for name, probe in PROBES.items():
            owners = [module for module in MODULES if hasattr(module, name)]
            assert owners, f"the reference engine has no {name}"
            for owner in owners:
                watch(owner, name, probe)
        watch(running_list.InOrder, "take_blocks", _take_blocks)
        watch(running_list.InOrder, "take_back", _take_back)
        watch(Simulation, "wake", _wake)
        watch(Simulation, "end_request", _end_request)
        watch(Simulation, "announce_next_beside", _announce_next_beside)
        watch(Reports, "arrived", _arrived)
        watch(cache.Cache, "take", _take)
        watch(cache.Cache, "pop_first", _pop_first)
        watch(cache.BlockCache, "take", _take_copy)
        watch(cache.BlockCache, "register", _register_copy)
        yield
    finally:
        for owner, name, plain in reversed(before):
            setattr(owner, name, plain)


# --- mechanisms, by what happens when they are at work ----------------------------------------------------------------

MECHANISMS = {
    "recompute": "admitted again",
    "swap": "swapped out",
    "migration": "migrated",
    "roles": "role changed",
    "cut": "cut",
    "prefix cache": "admitted with a cached prefix",
    "stores": "loaded from a store",
    "fetch": "prefix fetched",
    "transfers": "copied",
    "shared links": "copies that share a link",
    "layers ahead": "sent ahead, layer by layer",
    "drafts": "step that verifies drafts",
    "ranks": "step with ranks",
    "pipeline": "step of a pipeline",
    "concurrent": "prefill step concurrent with decodes",
    "overlap": "attentions that overlap",
    "tiles": "decodes in tiles",
    "schedule": "chunk by a schedule",
    "reserve": "step where requests reserve",
    "dynamic keys": "queue read by new keys",
    "admission": "admission that waits for others",
    "experts": "step of experts",
    "asynchronous": "came while a step ran",
    "host": "step that waits for its host",
    "beyond": "step beyond what was measured",
    "lockstep": "step of a group",
    "suspension": "resumed",
    "cancellation": "cancelled",
    "crashes": "dropped by a crash",
    "fewer GPUs": "goes on with fewer GPUs",
    "slow-downs": "step of a slow instance",
    "patience": "sent again",
    "reports": "asked by a report",
    "scaling": "scaled up",
    "gateway": "released",
    "programs": "call that has waited for several",
    "states": "admitted with its states",
    "pins": "pin used",
    "spans": "step of several instances",
    "prefetches": "prefetched",
}
_SHARED = ("copies between the same two instances", "copies that share a sender", "copies that share a receiver")
# Pairs that exclude each other, by the rules of the engine or by what they are.
EXCLUDED = frozenset({("ranks", "concurrent"), ("pipeline", "concurrent"), ("ranks", "pipeline")})
EXCLUDED |= {("lockstep", "concurrent"), ("lockstep", "roles"), ("lockstep", "scaling")}
EXCLUDED |= {
    (other, "spans")
    for other in (
        *("swap", "roles", "cut", "prefix cache", "stores", "fetch", "layers ahead", "drafts", "ranks", "pipeline"),
        *("concurrent", "reserve", "asynchronous", "lockstep", "scaling", "states", "pins", "prefetches"),
    )
}
EXCLUDED |= {(other, "fewer GPUs") for other in ("ranks", "pipeline", "lockstep")} | {("fewer GPUs", "spans")}
EXCLUDED |= {(shared, "states") for shared in ("prefix cache", "stores", "fetch", "pins", "prefetches")}


# Of 500 runs, so many of each family: chosen such that what is rarest happens often enough.
_SHARES = {"scenarios": 10, "crowded": 44, "severed": 67, "sharing": 53, "shared": 25, "pressed": 28, "staged": 8}
_SHARES |= {"doubled": 48, "fetching": 53, "moving": 89, "early": 52, "returning": 45}
_SHARES |= {
    "reserving": 50,
    "grouped": 125,
    "ending": 100,
    "pulled": 75,
    "ahead": 75,
    "crossing": 50,
    "decided": 202,
    "crashing": 300,
    "impatient": 40,
    "stale": 40,
    "scaling": 40,
    "gateway": 82,
    "programs": 40,
    "stateful": 40,
    "pinned": 40,
    "spanning": 40,
    "narrowed": 16,
    "prefetched": 60,
}
_OFTEN = {
    "impatient": 160,
    "stale": 160,
    "scaling": 240,
    "gateway": 300,
    "programs": 240,
    "stateful": 240,
    "pinned": 600,
    "tiered": 200,
    "late": 40,
    "spanning": 600,
    "narrowed": 120,
    "prefetched": 600,
}  # the same of more than `_FEW` runs: what is rarest there, and meets most seldom
_FEW = 500
_WHOLE = 508  # what the shares are parts of; all of them are more
# First seeds, where what is rarest happens soon.
_BEGIN = {
    "ahead": 20,
    "pulled": 15,
    "decided": 267,
    "crashing": 237,
    "stale": 21,
    "gateway": 140,
    "programs": 34,
    "pinned": 75,
    "narrowed": 40,
}


_APART, _TOGETHER = 150, 2000  # of `together`: the runs that `seeds_of` gives, and all

Counts = Callable[[str, int], Counter[str]]


def first_seed(family: str) -> int:
    """Of the runs of a family."""
    return _BEGIN.get(family, 0)


def seeds_of(runs: int) -> Iterator[tuple[str, int]]:
    """The family and the seed of each of so many runs."""
    for family, share in (_SHARES | (_OFTEN if runs > _FEW else {})).items():
        begin = first_seed(family)
        for seed in range(begin, begin - (-share * runs // _WHOLE)):
            yield family, seed


def together() -> list[tuple[str, int]]:
    """The family and the seed of each of 2,000 runs in which mechanisms meet: some of the families that are counted,
    and the rest of the one in which most are at work.
    """
    seeds = list(seeds_of(_APART))
    return [*seeds, *(("meeting", seed) for seed in range(_TOGETHER - len(seeds)))]


def counted(scenario: Scenario, counts: Counter[str]) -> tuple[Simulation, list[Note]]:
    """The run in the reference engine, as `run_reference` gives it; `counts` gains how often each thing happened."""
    with watched(counts):
        simulation, notes = run_reference(scenario)
    counts["arrived together"] += _together(simulation)
    counts["copies that share a link"] = sum(counts[name] for name in _SHARED)
    counts["cancelled"] = sum(count for name, count in counts.items() if name.startswith("cancelled "))
    counts["cut"] = counts["cut in its prompt"] + counts["cut in its output"]
    return simulation, notes


def counts_of(family: str, seed: int) -> Counter[str]:
    """How often each thing happened in one run."""
    counts: Counter[str] = Counter()
    counted(drawn(family, seed), counts)
    return counts


def reached(
    seeds: Iterable[tuple[str, int]], counts_of: Counts = counts_of
) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """How often each thing happened over these runs, and in how many each two mechanisms were at work."""
    total: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for family, seed in seeds:
        counts = counts_of(family, seed)
        total.update(counts)
        pairs.update(itertools.combinations(at_work(counts), 2))
    return total, pairs


def at_work(counts: Counter[str]) -> list[str]:
    """The mechanisms that were at work in a run, by what happened in it."""
    return [name for name, event in MECHANISMS.items() if counts[event]]


def _together(simulation: Simulation) -> int:
    times = [time_s for time_s, kind, _ in simulation.order if kind == ARRIVAL]
    return sum(a == b for a, b in itertools.pairwise(times))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.reach", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=500, help="random runs (default 500)")
    parser.add_argument("--together", action="store_true", help="the 2,000 runs in which mechanisms meet instead")
    chosen = parser.parse_args(arguments)
    total, pairs = reached(together() if chosen.together else seeds_of(chosen.runs))
    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table("what happened", "times", box=None)
    for name, count in sorted(total.items(), key=lambda entry: (-entry[1], entry[0])):
        table.add_row(name, f"{count:,}")
    console.print(table)
    matrix = Table("runs with both", *(str(k) for k in range(1, len(MECHANISMS))), box=None, padding=(0, 0, 0, 1))
    names = list(MECHANISMS)
    for k, name in enumerate(names[1:], start=1):
        cells = ["-" if is_excluded(name, other) else str(pairs[other, name]) for other in names[:k]]
        matrix.add_row(f"{k + 1} {name}", *cells)
    console.print(f"1 {names[0]}", highlight=False)
    console.print(matrix)
    return 0


def is_excluded(one: str, other: str) -> bool:
    """Whether two mechanisms cannot both be at work in one run."""
    return (one, other) in EXCLUDED or (other, one) in EXCLUDED


if __name__ == "__main__":
    sys.exit(main())
