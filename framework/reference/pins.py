"""KV between calls: what the policy says of the blocks of a call that has ended (SEMANTICS.md: KV between calls)."""

from __future__ import annotations

import math

from framework.codes import NO_RANK, OFF, PIN_END
from framework.reference.copies.links import share_links
from framework.reference.copies.transfers import start_transfers
from framework.reference.prefixes import cached_run
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
    """Ask what becomes of the blocks of r, which has ended: by which rank they are kept, and with which TTL."""
    (ttl_s, rank), i = s.hooks.on_call_end(s, r), s.instances[r.instance]
    ids = cached_run(s, i, r, s.hash_tokens * len(r.hash_ids))
    if rank != NO_RANK:
        i.cache.rank(ids, rank)
    if ttl_s == 0.0 or not ids or r.has_next or i.next_role == OFF:
        return
    i.cache.reference(r.id, ids)
    i.pinned.append(r)
    if ttl_s < math.inf:
        s.push(s.now_s + ttl_s, PIN_END, r.id)
    start_transfers(s, i)


def release_pin(s: Simulation, r: Request) -> None:
    """End the pin of r, if it has one, and let those use its room that wait for it."""
    i = s.instances[r.instance]
    if r not in i.pinned:
        return
    end_pin(i, r)
    start_transfers(s, i)
    if i.waiting or i.inbox or i.swapped or i.joining or i.computed:
        s.wake(i)


def break_pin_if_needed(s: Simulation, i: Instance) -> None:
    """Break the oldest pin of i, which found nothing to do, if requests wait there; i then schedules again."""
    waits = i.swapped or i.incoming or (i.waiting and i.late_seats + i.late_blocks == 0)
    if i.pinned and waits and i.prefill_step is None:
        break_pin(i)
        start_transfers(s, i)
        s.wake(i)


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
    i.cache.free_kv(r.id)


def end_pins(i: Instance) -> None:
    """End all pins of i."""
    while i.pinned:
        end_pin(i, i.pinned[0])
