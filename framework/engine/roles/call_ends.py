"""KV between calls: the policy says what becomes of the blocks of a call that has ended; pins and their ends.

The loop returns to Python for this, so that a run whose policy does not answer `on_call_end` compiles nothing of it.
"""

from __future__ import annotations

from framework.codes import BAD_INSTANCE, NO_RANK, OFF
from framework.compiler.decorators import inner
from framework.engine.copies.transfers import start_copy, start_transfers
from framework.engine.durations.leap import catch_up_one, keep_room
from framework.engine.events.ask import ask, fail, is_asked
from framework.engine.events.order import wake
from framework.engine.kv.kv_cache import allocate
from framework.engine.kv.pins import (
    awaits_prefetch,
    begin_load,
    blocks_under_way,
    cached_blocks,
    end_load,
    end_pin,
    end_pins,
    is_loading,
    is_pinned,
    loadable_run,
    moved_run,
    note_next_pin_end,
    pin,
    rank_blocks,
)
from framework.engine.kv.prefix_cache import enter_read
from framework.engine.memory.queues import pin_end_pop, pin_end_push
from framework.engine.memory.state import State
from framework.engine.roles.changes import note_next_change
from framework.policy.hooks import NO_INSTANCE, ON_CALL_END, PREFETCH, RAISED

_USED = -2  # in place of the index in a heap: a call that waited for this one has been admitted


@inner
def deal_with_notices(s: State) -> None:
    """Ask about calls that have ended, end pins whose next call has been admitted, and moves, in order."""
    while s.sim.noticed < s.sim.notices and s.error.status == 0:
        notice = s.lists[s.options.notices_at + s.sim.noticed]
        s.sim.noticed += 1
        if notice >= s.options.requests:
            _end_move(s, notice - s.options.requests)
        elif notice >= 0:
            _ask_about(s, notice)
        else:
            _end_pins_of(s, -1 - notice)


@inner
def _ask_about(s: State, r: int) -> None:
    """Ask what becomes of the blocks of r, which has ended: by which rank they are kept, with which TTL, and where.

    The answer leaves the TTL in `event_s`, the seconds until the prefetch, -1: there is none, in `landing_s`, and the
    instance to which they move, plus 1, 0: they stay, in `shared_there`.
    """
    rank = ask(s, ON_CALL_END, r)
    if rank in (RAISED, NO_RANK):
        return
    q = s.requests[r]
    i, ttl_s, wait_s, target = q.instance, q.event_s, q.landing_s, q.shared_there - 1
    q.shared_there = 0
    inst = s.instances[i]
    catch_up_one(s, i)
    run = cached_blocks(s, i, r)
    rank_blocks(s, i, r, run, rank)
    if q.heap_index == _USED:
        return
    if wait_s >= 0.0:
        q.landing_s = ttl_s
        _announce(s, r, s.sim.now_s + wait_s)
    elif target >= 0 and target != i:
        _move(s, r, target, run, ttl_s)
    elif ttl_s > 0.0 and run > 0 and inst.next_role != OFF:
        evictable = inst.evictable_blocks
        pin(s, i, r, run)
        keep_room(s, i, evictable)
        _announce(s, r, s.sim.now_s + ttl_s)
        start_transfers(s, i)


@inner
def _announce(s: State, r: int, time_s: float) -> None:
    """Announce the end of r's TTL or load, or its prefetch."""
    pin_end_push(s, r, time_s)
    note_next_pin_end(s)


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
    elif s.requests[r].shared_there > 0:
        s.requests[r].key = 0.0
    elif awaits_prefetch(s, r):
        s.requests[r].landing_s = -1.0
    elif s.requests[r].heap_index == -1:
        s.requests[r].heap_index = _USED


@inner
def release(s: State, r: int) -> None:
    """End the pin of r, and let those use its room that wait for it."""
    i = s.requests[r].instance
    catch_up_one(s, i)
    end_pin(s, r)
    _use_room(s, i)


@inner
def _use_room(s: State, i: int) -> None:
    """Let those use room on i, or blocks, that wait for it."""
    inst = s.instances[i]
    start_transfers(s, i)
    if inst.queued + inst.swapped + inst.joining > 0:
        wake(s, i)


@inner
def end_ttl(s: State) -> None:
    """The first TTL is over, and its pin, if it is still there, ends; or the first load is, or a prefetch is due."""
    first = s.lists[s.options.pin_ends_at]
    was_pinned, is_due = is_pinned(s, first), awaits_prefetch(s, first)
    r = pin_end_pop(s)
    note_next_change(s)
    if is_due:
        _prefetch(s, r)
    elif was_pinned and is_loading(s, r):
        _finish_load(s, r)
    elif was_pinned:
        release(s, r)


@inner
def _prefetch(s: State, r: int) -> None:
    """Load the blocks of r, which has ended, where the policy says, and pin them."""
    q = s.requests[r]
    ttl_s, q.landing_s = q.landing_s, -1.0
    i = ask(s, PREFETCH, r) if is_asked(s, PREFETCH) else int(q.instance)
    if i in (RAISED, NO_INSTANCE):
        return
    if i < 0 or i >= s.options.instances:
        fail(s, BAD_INSTANCE, PREFETCH, r, i)
        return
    inst = s.instances[i]
    if inst.down or inst.next_role == OFF:
        return
    catch_up_one(s, i)
    run = loadable_run(s, i, r)
    if run == 0:
        return
    q.instance = i
    evictable = inst.evictable_blocks
    pin(s, i, r, run)
    if is_loading(s, r):
        q.landing_s = ttl_s
        _announce(s, r, begin_load(s, i, r))
    else:
        _begin_ttl(s, r, ttl_s)
    keep_room(s, i, evictable)
    start_transfers(s, i)


@inner
def _finish_load(s: State, r: int) -> None:
    """The blocks of r have been loaded: its TTL begins."""
    q = s.requests[r]
    i, ttl_s = q.instance, q.landing_s
    catch_up_one(s, i)
    end_load(s, i, r)
    _begin_ttl(s, r, ttl_s)
    _use_room(s, i)


@inner
def _begin_ttl(s: State, r: int, ttl_s: float) -> None:
    """Let the TTL of r's pin begin; with none the pin ends."""
    if ttl_s > 0.0:
        _announce(s, r, s.sim.now_s + ttl_s)
    else:
        end_pin(s, r)


# --- KV that goes to another instance ---------------------------------------------------------------------------------


@inner
def _move(s: State, r: int, i: int, run: int, ttl_s: float) -> None:
    """Copy to i what it lacks of the first `run` blocks of r, which has ended."""
    q, inst = s.requests[r], s.instances[i]
    if run == 0 or inst.down or inst.next_role == OFF:
        return
    catch_up_one(s, i)
    q.shared_there = 1 + i
    q.key = ttl_s
    q.fetched_from = min(run, cached_blocks(s, i, r))
    q.fetched_to = run
    if q.fetched_from < run:
        blocks = run - q.fetched_from
        start_copy(s, r, q.instance, i, blocks * s.options.hash_blocks * s.options.block_tokens)
    else:
        _end_move(s, r)


@inner
def _end_move(s: State, r: int) -> None:
    """Pin the blocks of r on the instance to which they have come, as far as there is room."""
    q = s.requests[r]
    i, ttl_s = q.shared_there - 1, q.key
    q.shared_there = 0
    q.landing_s = -1.0
    inst = s.instances[i]
    if inst.down or inst.next_role == OFF:
        return
    catch_up_one(s, i)
    run = moved_run(s, i, r)
    if run == 0:
        return
    q.instance = i
    evictable = inst.evictable_blocks
    pin(s, i, r, run)
    allocate(s, i, blocks_under_way(s, r))
    enter_read(s, i, r)
    _begin_ttl(s, r, ttl_s)
    keep_room(s, i, evictable)
    _use_room(s, i)


@inner
def end_all_pins(s: State) -> None:
    """End all pins, as the run is over."""
    for i in range(s.options.instances):
        end_pins(s, i)
