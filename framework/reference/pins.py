"""KV between calls: what the policy says of the blocks of a call that has ended (SEMANTICS.md: KV between calls)."""

from __future__ import annotations

import math

from framework.codes import NO_RANK, OFF, PIN_END
from framework.policy.hooks import NO_INSTANCE
from framework.reference.asking import checked
from framework.reference.copies.links import share_links
from framework.reference.copies.transfers import start_transfers
from framework.reference.prefixes import cached_run, loadable_run, read_stores
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request


def deal_with_notices(s: Simulation) -> None:
    """Ask about calls that have ended, and end pins whose next call has been admitted, in order."""
    while s.notices:
        r, has_ended = s.notices.pop(0)
        if has_ended:
            ask_about(s, r)
        else:
            for before in s.awaited_by(r):
                before.has_next = True
                release_pin(s, before)
    share_links(s)


def ask_about(s: Simulation, r: Request) -> None:
    """Ask what becomes of the blocks of r, which has ended: their rank, and the TTL and the prefetch of r."""
    answer, i = s.hooks.on_call_end(s, r), s.instances[r.instance]
    ids = cached_run(s, i, r, s.hash_tokens * len(r.hash_ids))
    if answer.rank != NO_RANK:
        i.cache.rank(ids, answer.rank)
    if r.has_next:
        return
    if answer.prefetch_s is not None:
        r.prefetch_ttl_s = answer.ttl_s
        s.push(s.now_s + answer.prefetch_s, PIN_END, r.id)
    elif answer.ttl_s > 0.0 and ids and i.next_role != OFF:
        i.cache.reference(r.id, ids)
        i.pinned.append(r)
        push_ttl(s, r, answer.ttl_s)
        start_transfers(s, i)


def push_ttl(s: Simulation, r: Request, ttl_s: float) -> None:
    """Announce the end of a TTL that begins now."""
    if ttl_s < math.inf:
        s.push(s.now_s + ttl_s, PIN_END, r.id)


def pass_time(s: Simulation, r: Request) -> None:
    """The TTL of r is over, or a load for it, or its prefetch is due, unless that has been given up."""
    i = s.instances[r.instance]
    if r not in i.pinned and r.prefetch_ttl_s is not None and not r.has_next:
        prefetch(s, r, r.prefetch_ttl_s)
    elif r in i.pinned and r.loading:
        finish_load(s, i, r)
    else:
        release_pin(s, r)


def prefetch(s: Simulation, r: Request, ttl_s: float) -> None:
    """Load the blocks of r, which has ended, where the policy says, and pin them."""
    r.prefetch_ttl_s = None
    answer = s.hooks.prefetch(s, r) if "prefetch" in s.hooks.overrides else r.instance
    if answer == NO_INSTANCE:
        return
    i = checked(s, "prefetch", answer, f" for request {r.id}")
    ids = loadable_run(s, i, r)
    if not ids or i.down or i.next_role == OFF:
        return
    r.instance = i.id
    there = [id for id in ids if id in i.cache.references]
    r.loading = [id for id in ids if id not in there]
    i.cache.reference(r.id, there)
    if r.loading:
        before_s, i.load_s = i.load_s, 0.0
        read_stores(s, i, r, r.loading)
        i.load_s, load_s = before_s, i.load_s
        i.cache.take(r.id, len(r.loading) * i.cache.blocks_per_id)
        i.loads_end_s = max(i.loads_end_s, s.now_s) + load_s
        r.load_ttl_s = ttl_s
        s.push(i.loads_end_s, PIN_END, r.id)
    if r.loading or ttl_s > 0.0:
        i.pinned.append(r)
    else:
        i.cache.free_kv(r.id)
    if not r.loading:
        push_ttl(s, r, ttl_s)
    start_transfers(s, i)


def finish_load(s: Simulation, i: Instance, r: Request) -> None:
    """The blocks of r have been loaded: its TTL begins."""
    for id in r.loading:
        if id in i.cache.references:
            i.cache.reference(r.id, [id])
            i.cache.give_back(r.id, i.cache.blocks_per_id)
        else:
            i.cache.register(r.id, id)
    i.cache.sort_held(r.id, r.hash_ids)
    r.loading = []
    if r.load_ttl_s > 0.0:
        push_ttl(s, r, r.load_ttl_s)
    else:
        end_pin(i, r)
    use_room(s, i)


def release_pin(s: Simulation, r: Request) -> None:
    """End the pin of r, if it has one, and let those use its room that wait for it."""
    i = s.instances[r.instance]
    if r not in i.pinned:
        return
    end_pin(i, r)
    use_room(s, i)


def use_room(s: Simulation, i: Instance) -> None:
    """Let those use room on i, or blocks, that wait for it."""
    start_transfers(s, i)
    if i.waiting or i.inbox or i.swapped or i.joining or i.computed:
        s.wake(i)


def break_pin_if_needed(s: Simulation, i: Instance) -> None:
    """Break the oldest pin of i, which found nothing to do, if requests wait there; i then schedules again."""
    may_come = i.waiting and i.late_seats + i.late_blocks == 0 and not waits_for_load(s, i)
    waits = i.swapped or i.incoming or may_come
    if i.pinned and waits and i.prefill_step is None:
        break_pin(i)
        start_transfers(s, i)
        s.wake(i)


def waits_for_load(s: Simulation, i: Instance) -> bool:
    """Whether the first of the queue of i waits for blocks that are being loaded there."""
    loading = [r for r in i.pinned if r.loading]
    return bool(loading) and any(before in loading for before in s.awaited_by(min(i.waiting)[2]))


def break_pins(i: Instance, blocks: int) -> None:
    """Break pins of i, the oldest first, until that many blocks are available or no pin is left."""
    while i.pinned and blocks > i.cache.available:
        break_pin(i)


def break_pin(i: Instance) -> None:
    """End the oldest pin of i, because others need its room."""
    end_pin(i, i.pinned[0])
    i.pins_broken += 1


def end_pin(i: Instance, r: Request) -> None:
    """End the pin of r."""
    i.pinned.remove(r)
    r.loading = []
    i.cache.free_kv(r.id)


def end_pins(i: Instance) -> None:
    """End all pins of i."""
    while i.pinned:
        end_pin(i, i.pinned[0])
