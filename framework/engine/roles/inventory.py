"""All that an instance holds or expects: a change of role waits for it, and a failed instance loses it.

1. Its own requests wait in its queue, prefill, decode, join at its next boundary, are swapped out, or have just reached
   their splits.
2. Others are on their way to it: they wait for room, or a copy is under way.
3. Others are on their way from it: their KV stays until the copy has ended.
4. A migration has a seat and blocks at its target while its request still decodes at its source.
"""

from __future__ import annotations

from framework.codes import (
    DECODE,
    DECODING,
    FETCHING,
    FUTURE,
    NOT_MIGRATING,
    PARKED,
    PREFILL,
    PREFILLING,
    SUSPENDED,
    SUSPENDED_HERE,
    SUSPENDED_OUT,
    WAITING,
)
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.link_sharing import withdraw_copy
from framework.engine.copies.migration import withdraw_migration
from framework.engine.copies.transfers import drop_reservation, free_ahead, room_for, sent_kv
from framework.engine.kv.kv_cache import free_kv
from framework.engine.kv.spans import is_marked, span_of
from framework.engine.memory.kv_blocks import available
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import load_changed
from framework.engine.parallel.sm_sharing import streaming
from framework.engine.requests.asynchronous import free_deferred
from framework.engine.requests.lifecycle import remove_prefilling, remove_running
from framework.engine.requests.parking import forget_place
from framework.engine.requests.pausing import resume
from framework.engine.requests.queueing import recomputes_here
from framework.engine.roles.leaving import leave_incoming, leave_on_the_way


@inner
def is_drained(s: State, i: int, phases: int, keeps_no_kv: bool) -> bool:
    """Whether i has no work of these phases, here or on its way, and no KV either if `keeps_no_kv`."""
    inst = s.instances[i]
    again = _tokens_again(s, i)
    if phases & PREFILL and (inst.queued_tokens > again or streaming(s, i)):
        return False
    if phases & DECODE and inst.running + inst.joining + inst.incoming + inst.swapped + inst.suspended + again > 0:
        return False
    return not keeps_no_kv or available(s, i) == inst.total_blocks


@inner
def _tokens_again(s: State, i: int) -> int:
    """Tokens that requests recomputed on i must still prefill."""
    inst = s.instances[i]
    tokens = inst.recompute_tokens
    for j in range(inst.prefilling):
        r = s.lists[inst.prefilling_at + j]
        if recomputes_here(s, r):
            tokens += s.requests[r].prefill_until - s.requests[r].prefilled
    return tokens


@inner
def drop_marked(s: State) -> int:
    """Take off the marked instances, none of which is in a step, all requests that they hold or expect.

    Frees everything that these requests hold on any instance. No other request takes that room yet: the instance is
    marked `frees_memory`. Requests that decode or prefill elsewhere continue, and suspended ones stay suspended.
    Returns the number of the other requests. They lie in the list at `dropped_at`, in order of their numbers, with the
    tokens that they lose; their states stay as they are.
    """
    count, at = 0, s.options.dropped_at
    for i in range(s.options.instances):
        s.instances[i].frees_memory = False
        if s.instances[i].marked:
            resume(s, i)
    for r in range(s.options.requests):
        if FUTURE < s.requests[r].state < PARKED:
            lost = _computed_tokens(s, r)
            if _drop(s, r):
                s.lists[at + count] = r
                s.lists[at + s.options.requests + count] = lost
                count += 1
    for i in range(s.options.instances):
        if s.instances[i].marked:
            _drop_own(s, i)
    return count


@inner
def _computed_tokens(s: State, r: int) -> int:
    """KV tokens of r that have been computed or found in a cache."""
    q = s.requests[r]
    if q.state == DECODING:
        return int(q.offset + s.instances[q.instance].decode_steps)
    if q.state == FETCHING or q.state == WAITING:
        return 0
    return int(q.prefilled if q.emitted == 0 or q.state == PREFILLING else q.input_tokens + q.emitted - 1)


@inner
def _drop(s: State, r: int) -> bool:
    """Withdraw what r holds elsewhere, if r is on a marked instance or on its way there; whether r is dropped."""
    q = s.requests[r]
    here = s.instances[q.instance].marked
    there = q.destination >= 0 and s.instances[q.destination].marked
    if unlikely(s.options.spans) and not here and is_marked(s, span_of(s, r)):
        _drop_spanned(s, r)
        return True
    if not here and not there:
        return False
    if SUSPENDED <= q.state <= SUSPENDED_OUT:
        if q.state == SUSPENDED_HERE:
            free_kv(s, q.instance, r)
        q.state = SUSPENDED
        forget_place(s, r)
        return False
    if q.state == FETCHING:
        withdraw_copy(s, r)
    elif q.migration != NOT_MIGRATING:
        s.instances[withdraw_migration(s, r)].frees_memory = True
        return here
    elif q.destination >= 0:
        _drop_transfer(s, r)
        return here or q.state != PREFILLING
    return True


@inner
def _drop_spanned(s: State, r: int) -> None:
    """Take r, another instance of whose span is marked, off the one that leads, which is in no step."""
    q = s.requests[r]
    i = q.instance
    s.instances[i].frees_memory = True
    if q.state == PREFILLING:
        remove_prefilling(s, i, r)
    else:
        remove_running(s, i, r)
    free_kv(s, i, r)


@inner
def _drop_transfer(s: State, r: int) -> None:
    """End r's wait for room elsewhere, or its copy there; its KV is freed if it is all computed."""
    q = s.requests[r]
    source, target, prefills = q.instance, q.destination, q.state == PREFILLING
    s.instances[target].frees_memory = True
    s.instances[source].frees_memory |= not prefills
    load_changed(s, target)
    if not prefills:
        leave_on_the_way(s, r)
    elif q.heap_index < 0:
        leave_incoming(s, r)
    else:
        withdraw_copy(s, r)
        q.destination = -1
        drop_reservation(s, target, r, room_for(s, r), sent_kv(s, r))


@inner
def _drop_own(s: State, i: int) -> None:
    """Drop i's requests: waiting, prefilling, decoding, joining, swapped out, with a deferred free, at their splits."""
    inst = s.instances[i]
    free_deferred(s, i)
    while inst.prefilling > 0:
        r = s.lists[inst.prefilling_at]
        remove_prefilling(s, i, r)
        free_kv(s, i, r)
    while inst.running > 0:
        r = s.lists[inst.running_at]
        remove_running(s, i, r)
        free_kv(s, i, r)
    while inst.computed_head >= 0:
        r = inst.computed_head
        inst.computed_head = s.requests[r].next
        free_kv(s, i, r)
    while inst.joining_head >= 0:
        r = inst.joining_head
        inst.joining_head = s.requests[r].next
        if unlikely(s.options.pulls) and s.requests[r].prefilled == s.requests[r].prefill_until:
            free_ahead(s, i, r)
        free_kv(s, i, r)
    while inst.split_head >= 0:
        r = inst.split_head
        inst.split_head = s.requests[r].next
        free_kv(s, i, r)
    inst.waiting_root = inst.inbox_head = inst.swapped_head = -1
    inst.queued = inst.queued_tokens = inst.recompute_tokens = 0
    inst.joining = inst.computed = inst.computed_known = inst.swapped = inst.suspended = 0
    load_changed(s, i)
