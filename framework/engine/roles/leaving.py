"""Requests that leave while they neither decode nor prefill: from a queue, a list, or on their way to an instance."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.transfers import free_ahead, left_there, sent_kv, withdraw_transfer
from framework.engine.durations.leap import catch_up_one
from framework.engine.kv.held_kv import wait_no_more
from framework.engine.kv.kv_cache import free_kv
from framework.engine.memory.queues import append, queue_drop
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import load_changed
from framework.engine.requests.queueing import recomputes_here


@inner
def _behind(s: State, head: int, r: int) -> int:
    """The request before r in the list that begins with `head`; -1: r is the first, -2: r is not there."""
    before, other = -1, head
    while other >= 0:
        if other == r:
            return before
        before, other = other, s.requests[other].next
    return -2


@inner
def _unlink(s: State, before: int, r: int, head: int) -> int:
    """Take r, which follows `before`, out of a list, and return the list's head."""
    if before < 0:
        return int(s.requests[r].next)
    s.requests[before].next = s.requests[r].next
    return head


@inner
def leave_queue(s: State, i: int, r: int) -> None:
    """Take r out of i's queue or inbox."""
    q, inst = s.requests[r], s.instances[i]
    before = _behind(s, inst.inbox_head, r)
    if before > -2:
        inst.inbox_head = _unlink(s, before, r, inst.inbox_head)
        if inst.inbox_tail == r:
            inst.inbox_tail = before
    else:
        queue_drop(s, i, r)
        if unlikely(inst.recompute_tokens > 0) and recomputes_here(s, r):
            inst.recompute_tokens -= q.prefill_until
    inst.queued -= 1
    inst.queued_tokens -= q.prefill_until
    load_changed(s, i)


@inner
def leave_swapped(s: State, i: int, r: int) -> None:
    """Take r out of the requests swapped out on i, and drop its KV in host memory."""
    inst = s.instances[i]
    before = _behind(s, inst.swapped_head, r)
    inst.swapped_head = _unlink(s, before, r, inst.swapped_head)
    if inst.swapped_tail == r:
        inst.swapped_tail = before
    inst.swapped -= 1


@inner
def leave_before_joining(s: State, i: int, r: int) -> None:
    """Free the KV of r, which was to decode on i from the next boundary on."""
    q, inst = s.requests[r], s.instances[i]
    before = _behind(s, inst.computed_head, r)
    if before > -2:
        _leave_computed(s, i, r)
    else:
        before = _behind(s, inst.joining_head, r)
        inst.joining_head = _unlink(s, before, r, inst.joining_head)
        if inst.joining_tail == r:
            inst.joining_tail = before
        inst.queued_tokens -= q.prefill_until - q.prefilled
        if unlikely(s.options.pulls) and q.prefilled == q.prefill_until:
            free_ahead(s, i, r)
    inst.joining -= 1
    load_changed(s, i)
    free_kv(s, i, r)


@inner
def _leave_computed(s: State, i: int, r: int) -> None:
    """Take r out of the requests that i's prefill stream has computed."""
    inst = s.instances[i]
    head, tail, place, other = -1, -1, 0, inst.computed_head
    while other >= 0:
        following = s.requests[other].next
        if other == r:
            inst.computed_known -= place < inst.computed_known
        else:
            head = append(s, head, tail, other)
            tail = other
        place += 1
        other = following
    inst.computed_head, inst.computed_tail = head, tail
    inst.computed -= 1


@inner
def leave_on_the_way(s: State, r: int) -> None:
    """Free what r, which waits for room on its destination or is being copied there, has on both instances."""
    q = s.requests[r]
    if q.heap_index >= 0:
        withdraw_transfer(s, r)
        return
    leave_incoming(s, r)
    catch_up_one(s, q.instance)
    free_kv(s, q.instance, r)


@inner
def leave_incoming(s: State, r: int) -> None:
    """End r's wait for room on its destination."""
    q = s.requests[r]
    target = q.destination
    inst = s.instances[target]
    wait_no_more(s, target, _behind(s, inst.incoming_head, r))
    inst.incoming -= 1
    inst.incoming_kv_tokens -= sent_kv(s, r)
    inst.queued_tokens -= left_there(s, r)
    q.destination = -1
    load_changed(s, target)
