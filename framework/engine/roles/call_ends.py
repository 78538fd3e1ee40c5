"""KV between calls: the policy says what becomes of the blocks of a call that has ended; pins and their ends.

The loop returns to Python for this, so that a run whose policy does not answer `on_call_end` compiles nothing of it.
"""

from __future__ import annotations

from framework.codes import NO_RANK, OFF
from framework.compiler.decorators import inner
from framework.engine.copies.transfers import start_transfers
from framework.engine.durations.leap import catch_up_one, keep_room
from framework.engine.events.ask import ask
from framework.engine.events.order import wake
from framework.engine.kv.pins import cached_blocks, end_pin, end_pins, is_pinned, note_next_pin_end, pin, rank_blocks
from framework.engine.memory.queues import pin_end_pop, pin_end_push
from framework.engine.memory.state import State
from framework.engine.roles.changes import note_next_change
from framework.policy.hooks import ON_CALL_END, RAISED

_USED = -2  # in place of the index in a heap: a call that waited for this one has been admitted


@inner
def deal_with_notices(s: State) -> None:
    """Ask about calls that have ended, and end pins whose next call has been admitted, in order."""
    while s.sim.noticed < s.sim.notices and s.error.status == 0:
        notice = s.lists[s.options.notices_at + s.sim.noticed]
        s.sim.noticed += 1
        if notice >= 0:
            _ask_about(s, notice)
        else:
            _end_pins_of(s, -1 - notice)


@inner
def _ask_about(s: State, r: int) -> None:
    """Ask what becomes of the blocks of r, which has ended: by which rank they are kept, and with which TTL.

    The answer leaves the TTL in `event_s`.
    """
    rank = ask(s, ON_CALL_END, r)
    if rank in (RAISED, NO_RANK):
        return
    q = s.requests[r]
    i, ttl_s = q.instance, q.event_s
    inst = s.instances[i]
    catch_up_one(s, i)
    run = cached_blocks(s, i, r)
    rank_blocks(s, i, r, run, rank)
    if ttl_s == 0.0 or run == 0 or q.heap_index == _USED or inst.next_role == OFF:
        return
    evictable = inst.evictable_blocks
    pin(s, i, r, run)
    keep_room(s, i, evictable)
    pin_end_push(s, r, s.sim.now_s + ttl_s)
    note_next_pin_end(s)
    start_transfers(s, i)


@inner
def _end_pins_of(s: State, r: int) -> None:
    """End the pins of those that r waited for."""
    before = s.lists[s.options.awaited_at + r]
    if before < 0:
        return
    _end_pin_of(s, before)
    if s.options.joins:
        for k in range(s.lists[s.options.joins_at + r], s.lists[s.options.joins_at + r + 1]):
            _end_pin_of(s, s.lists[k])


@inner
def _end_pin_of(s: State, r: int) -> None:
    """End the pin of r, or let it get none."""
    if is_pinned(s, r):
        release(s, r)
    elif s.requests[r].heap_index == -1:
        s.requests[r].heap_index = _USED


@inner
def release(s: State, r: int) -> None:
    """End the pin of r, and let those use its room that wait for it."""
    i = s.requests[r].instance
    inst = s.instances[i]
    catch_up_one(s, i)
    end_pin(s, r)
    start_transfers(s, i)
    if inst.queued + inst.swapped + inst.joining > 0:
        wake(s, i)


@inner
def end_ttl(s: State) -> None:
    """The first TTL is over: its pin, if it is still there, ends."""
    was_pinned = is_pinned(s, s.lists[s.options.pin_ends_at])
    r = pin_end_pop(s)
    note_next_change(s)
    if was_pinned:
        release(s, r)


@inner
def end_all_pins(s: State) -> None:
    """End all pins, as the run is over."""
    for i in range(s.options.instances):
        end_pins(s, i)
