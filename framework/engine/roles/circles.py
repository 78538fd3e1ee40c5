"""Deadlock of held KV: requests hold KV on each other's destinations. One is preempted; stalled runs end here."""

from __future__ import annotations

import numpy as np

from framework.codes import (
    DECODE_ONLY,
    FAILED,
    FINISHED,
    FUTURE,
    PREFILLING,
    REASON_STALLED,
    SCHEDULE,
    STUCK,
    SUSPENDED,
    SUSPENDED_HERE,
    SUSPENDED_OUT,
    UNSENT,
)
from framework.compiler.decorators import inner
from framework.engine.copies.transfers import room_for, sent_kv, start_transfers
from framework.engine.durations.leap import catch_up_one
from framework.engine.durations.speculation import kv_of_next_step
from framework.engine.events.order import nothing_is_due, wake
from framework.engine.kv.held_kv import wait_no_more
from framework.engine.kv.kv_cache import free_kv
from framework.engine.kv.prefix_cache import finds_marked, mark_prefix, unmark_prefix
from framework.engine.memory.kv_blocks import blocks_of
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import load_changed
from framework.engine.requests.preemption import queue_preempted
from framework.engine.roles.inventory import drop_marked


@inner
def break_circle(s: State) -> bool:
    """Preempt a request of a circle if nothing more is due now; whether there was one."""
    if not nothing_is_due(s):
        return False
    s.sim.kind = SCHEDULE  # all steps due now have ended, and all possible steps have started
    s.sim.scheduled = s.options.instances - 1
    if not _find_circle(s):
        return False
    last, target, behind = -1, -1, -1
    for i in range(s.options.instances):
        before, r = -1, s.instances[i].incoming_head
        while r >= 0:
            q = s.requests[r]
            is_held = s.instances[q.instance].marked and q.state != PREFILLING
            if is_held and (last < 0 or _gives_way(s, r, last)):
                last, target, behind = r, i, before
            before, r = r, q.next
    wait_no_more(s, target, behind)
    _give_up(s, last, target)
    return True


@inner
def _gives_way(s: State, r: int, other: int) -> bool:
    """Whether r gives way rather than another one: it was preempted less often, or as often and admitted later."""
    q, o = s.requests[r], s.requests[other]
    if q.preemptions != o.preemptions:
        return bool(q.preemptions < o.preemptions)
    return bool(q.admission > o.admission)


@inner
def _find_circle(s: State) -> bool:
    """Mark the largest set of blocked instances whose held requests all go to one another; whether there is any."""
    _count_held(s)
    found = False
    for i in range(s.options.instances):
        s.instances[i].marked = _is_blocked(s, i)
        found |= s.instances[i].marked
    _unmark_held(s)
    return found and _shrink(s)


@inner
def _shrink(s: State) -> bool:
    """Unmark instances that hold KV for an unmarked one, until none does; whether any is left."""
    changes = True
    while changes:
        changes, left = False, False
        for i in range(s.options.instances):
            left |= s.instances[i].marked
            r = -1 if s.instances[i].marked else s.instances[i].incoming_head
            while r >= 0:
                holder = s.instances[s.requests[r].instance]
                if s.requests[r].state != PREFILLING:
                    changes |= holder.marked
                    holder.marked = False
                r = s.requests[r].next
    return left


@inner
def _count_held(s: State) -> None:
    """Count the blocks of all KV that each instance holds for others, and mark the cached ones."""
    for i in range(s.options.instances):
        inst = s.instances[i]
        inst.held_blocks = 0
        if s.options.hash_blocks > 0 and inst.holding > 0 and inst.incoming_head >= 0:
            catch_up_one(s, i)  # blocks that its running leap has evicted by now cannot be found
    for i in range(s.options.instances):
        r = s.instances[i].incoming_head
        while r >= 0:
            q = s.requests[r]
            if q.state != PREFILLING:
                private = blocks_of(s, q.instance, q.kv) - q.shared * s.options.hash_blocks
                s.instances[q.instance].held_blocks += private + mark_prefix(s, q.instance, r)
            r = q.next


@inner
def _unmark_held(s: State) -> None:
    for i in range(s.options.instances):
        r = s.instances[i].incoming_head
        while r >= 0:
            if s.requests[r].state != PREFILLING:
                unmark_prefix(s, s.requests[r].instance, r)
            r = s.requests[r].next


@inner
def _is_blocked(s: State, i: int) -> bool:
    """Whether the KV held on i is enough to deny room to the first of its incoming list for ever."""
    inst = s.instances[i]
    r = inst.incoming_head
    if r < 0 or inst.holding == 0 or s.requests[r].state == PREFILLING:
        return False
    if _lacks(s, i, r, room_for(s, r), sent_kv(s, r)):
        return True
    if inst.recompute_tokens == 0:
        return False
    r = inst.swapped_head
    if r >= 0:
        return _lacks(s, i, r, kv_of_next_step(s, i, r, s.requests[r].kv), 0)
    r = inst.waiting_root
    return _lacks(s, i, r, s.requests[r].prefill_until, s.requests[r].prefill_until - 1)


@inner
def _lacks(s: State, i: int, r: int, tokens: int, known: int) -> bool:
    """Whether i lacks room for `tokens` tokens of r, given the KV that is held there.

    r shares the blocks of its first `known` tokens that held requests reference.
    """
    q, inst = s.requests[r], s.instances[i]
    shared = 0
    if s.options.hash_blocks > 0:
        most = min(q.hash_count, known // (s.options.hash_blocks * s.options.block_tokens))
        while shared < most and finds_marked(s, i, s.names[q.hash_at + shared]):
            shared += 1
    fresh = blocks_of(s, i, tokens) - shared * s.options.hash_blocks
    return inst.total_blocks - inst.held_blocks - fresh < (0 if s.options.spares_idle else inst.watermark)


@inner
def _give_up(s: State, r: int, target: int) -> None:
    """Drop the held KV of r, which waits for room on the target, and queue r to be recomputed."""
    q, dst = s.requests[r], s.instances[target]
    source, sent = q.instance, sent_kv(s, r)
    dst.incoming -= 1
    dst.incoming_kv_tokens -= sent
    dst.queued_tokens -= q.prefill_until - q.prefilled
    load_changed(s, target)
    q.first_token_pending |= sent < q.kv
    q.preemptions += 1
    s.sim.preemptions += 1
    catch_up_one(s, source)
    free_kv(s, source, r)
    q.destination = -1
    q.instance = target
    queue_preempted(s, target, r)
    start_transfers(s, source)
    wake(s, source)
    start_transfers(s, target)


# --- the end of a run in which nothing can happen any more ------------------------------------------------------------


@inner
def fail_rest(s: State) -> None:
    """Fail the requests that have not ended, since no event is left, and free what they hold.

    The run ends as STUCK unless a plan of the policy withholds one of them.
    """
    _find_withheld(s)
    for r in range(s.options.requests):
        q = s.requests[r]
        place = q.destination if q.destination >= 0 else q.instance
        if FUTURE < q.state < SUSPENDED and not s.instances[place].marked:
            s.error.status = STUCK
            return
    for r in range(s.options.requests):
        q = s.requests[r]
        if SUSPENDED <= q.state <= SUSPENDED_OUT:  # a crash would take more from it
            if q.state == SUSPENDED_HERE:
                free_kv(s, q.instance, r)
            _stall(s, r)
    for i in range(s.options.instances):
        s.instances[i].marked = True
    drop_marked(s)
    for r in range(s.options.requests):
        if s.requests[r].state < FINISHED:
            _stall(s, r)


@inner
def _stall(s: State, r: int) -> None:
    """End r, which holds nothing any more, as stalled, or as not sent at all."""
    q = s.requests[r]
    is_sent = q.taken_in or s.options.horizon_s == np.inf
    q.state = FAILED if is_sent else UNSENT
    q.reason = REASON_STALLED if is_sent else 0
    q.end_s = s.sim.now_s
    s.sim.remaining -= 1


@inner
def _find_withheld(s: State) -> None:
    """Mark instances whose plans compute no prompt, that keep KV of suspended requests, or hold KV for a marked one."""
    for i in range(s.options.instances):
        inst = s.instances[i]
        inst.marked = inst.mode == DECODE_ONLY or inst.token_budget < inst.ranks
    for r in range(s.options.requests):
        if s.requests[r].state == SUSPENDED_HERE:
            s.instances[s.requests[r].instance].marked = True
    changes = True
    while changes:
        changes = False
        for i in range(s.options.instances):
            r = s.instances[i].incoming_head if s.instances[i].marked else -1
            while r >= 0:
                holder = s.instances[s.requests[r].instance]
                changes |= not holder.marked
                holder.marked = True
                r = s.requests[r].next
