"""KV between calls: what the policy says of the blocks of a call that has ended (SEMANTICS.md: KV between calls)."""

from __future__ import annotations

import itertools
import math

from framework.codes import NO_RANK, OFF, PIN_END
from framework.policy.hooks import NO_INSTANCE
from framework.reference.asking import checked
from framework.reference.copies.links import share_links
from framework.reference.copies.transfers import start_copy, start_transfers
from framework.reference.prefixes import cached_run, enter_read, loadable_run, read_stores, with_room
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request


def deal_with_notices(s: Simulation) -> None:
    """Ask about calls that have ended, and end pins whose next call has been admitted, in order."""
    while s.notices:
        r, has_ended = s.notices.pop(0)
        if has_ended and r.moves_to is not None:
            end_move(s, r, r.moves_to)
        elif has_ended:
            ask_about(s, r)
        else:
            for before in s.awaited_by(r):
                before.has_next = True
                if before.moves_to is not None:
                    before.load_ttl_s = 0.0
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
    elif answer.move_to not in (NO_INSTANCE, i.id):
        move(s, r, i, s.instances[answer.move_to], ids, answer.ttl_s)
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
    i.pinned.append(r)
    if not r.loading:
        begin_ttl(s, i, r, ttl_s)
    start_transfers(s, i)


def move(s: Simulation, r: Request, source: Instance, i: Instance, ids: list[int], ttl_s: float) -> None:
    """Copy to i what it lacks of these blocks of r, which has ended."""
    if not ids or i.down or i.next_role == OFF:
        return
    there = len(cached_run(s, i, r, s.hash_tokens * len(ids)))
    r.moves_to, r.load_ttl_s, r.moved = i, ttl_s, (ids[:there], ids[there:])
    if there < len(ids):
        start_copy(s, r, source, i, (len(ids) - there) * s.hash_tokens)
    else:
        end_move(s, r, i)


def end_move(s: Simulation, r: Request, i: Instance) -> None:
    """Pin the blocks of r on i, to which they have come, as far as there is room."""
    r.moves_to = None
    kept = list(itertools.takewhile(lambda id: id in i.cache.references, r.moved[0]))
    run = kept if len(kept) < len(r.moved[0]) else [*kept, *r.moved[1]]
    ids = with_room(i, run)
    if not ids or i.down or i.next_role == OFF:
        return
    r.instance = i.id
    there = [id for id in ids if id in i.cache.references]
    come = [id for id in ids if id not in there]
    i.cache.reference(r.id, there)
    i.cache.take(r.id, len(come) * i.cache.blocks_per_id)
    enter_read(i, r, come)
    i.pinned.append(r)
    begin_ttl(s, i, r, r.load_ttl_s)
    use_room(s, i)


def begin_ttl(s: Simulation, i: Instance, r: Request, ttl_s: float) -> None:
    """Let the TTL of r's pin begin; with none the pin ends."""
    if ttl_s > 0.0:
        push_ttl(s, r, ttl_s)
    else:
        end_pin(i, r)


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
    begin_ttl(s, i, r, r.load_ttl_s)
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
