"""All that an instance holds or expects: what a change of role waits for, and what a failed instance would lose.

1. Its own requests wait in its queue, prefill, decode, join at its next boundary, are swapped out, or have just reached
   their splits.
2. Others are on their way to it: they wait for room, or a copy is under way.
3. Others are on their way from it: their KV stays until the copy has ended.
4. A migration has a seat and blocks at its target while its request still decodes at its source.
"""

from __future__ import annotations

from framework.codes import DECODE, FETCHING, NOT_MIGRATING, PREFILL, PREFILLING
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.link_sharing import withdraw_copy
from framework.engine.copies.migration import cancel_migration
from framework.engine.copies.transfers import call_back, free_ahead, left_there, sent_kv, withdraw_transfer
from framework.engine.durations.leap import catch_up_one
from framework.engine.durations.speculation import blocks_of_next_step
from framework.engine.kv.held_kv import wait_no_more
from framework.engine.kv.kv_cache import free, free_kv
from framework.engine.memory.kv_blocks import available
from framework.engine.memory.queues import queue_pop
from framework.engine.memory.state import State
from framework.engine.parallel.sm_sharing import streaming
from framework.engine.requests.asynchronous import free_deferred, take_in
from framework.engine.requests.lifecycle import recomputes_here, remove_prefilling, remove_running
from framework.engine.requests.pausing import resume


@inner
def is_drained(s: State, i: int, phases: int, keeps_no_kv: bool) -> bool:
    """Whether i has no work of these phases, on its way or here, and no KV if `keeps_no_kv`."""
    inst = s.instances[i]
    again = _tokens_again(s, i)
    if phases & PREFILL and (inst.queued_tokens > again or streaming(s, i)):
        return False
    if phases & DECODE and inst.running + inst.joining + inst.incoming + inst.swapped + inst.suspended + again > 0:
        return False
    return not keeps_no_kv or available(s, i) == inst.total_blocks


@inner
def _tokens_again(s: State, i: int) -> int:
    """Tokens still to be prefilled of requests that are recomputed on i."""
    inst = s.instances[i]
    tokens = inst.recompute_tokens
    for j in range(inst.prefilling):
        r = s.lists[inst.prefilling_at + j]
        if recomputes_here(s, r):
            tokens += s.requests[r].prefill_until - s.requests[r].prefilled
    return tokens


@inner
def drop_all(s: State, i: int) -> None:
    """Take off i all requests that it holds or expects; what they hold anywhere is free again.

    A step under way is lost. The states of the requests stay as they are: the caller decides what becomes of them and
    of the end of that step.
    """
    catch_up_one(s, i)
    if s.instances[i].busy and s.step[i].decodes > 0 and s.step[i].grown > s.step[i].done:
        free(s, i, blocks_of_next_step(s, i))  # of the step under way
    resume(s, i)
    for j in range(s.options.instances):  # first, so that room that comes free does not start their copies
        _drop_incoming(s, i, j)
    _drop_copies(s, i)
    _drop_migrations_to(s, i)
    _drop_own(s, i)


@inner
def _drop_copies(s: State, i: int) -> None:
    """Copies under way from i or to it: what they brought or reserved is free."""
    k = 0
    while k < s.sim.heap_size:
        r = s.lists[s.options.heap_at + k]
        q = s.requests[r]
        if q.instance != i and q.destination != i:
            k += 1
            continue
        if q.state == FETCHING:
            withdraw_copy(s, r)
        elif q.migration != NOT_MIGRATING:
            cancel_migration(s, r)
        elif q.state == PREFILLING:  # its KV leaves layer by layer while its prompt is computed
            call_back(s, r)
        else:
            withdraw_transfer(s, r)
        k = 0  # the heap has been ordered anew


@inner
def _drop_migrations_to(s: State, i: int) -> None:
    """Migrations whose copy is done and whose switch is due."""
    for j in range(s.options.instances):
        inst = s.instances[j]
        for k in range(inst.running):
            r = s.lists[inst.running_at + k]
            if s.requests[r].migration != NOT_MIGRATING and s.requests[r].destination == i:
                cancel_migration(s, r)


@inner
def _drop_incoming(s: State, i: int, j: int) -> None:
    """Of those that wait for room on j: all where j is i, else those whose KV is on i."""
    inst = s.instances[j]
    before, r = -1, inst.incoming_head
    while r >= 0:
        following = s.requests[r].next
        q = s.requests[r]
        if j == i or q.instance == i:
            wait_no_more(s, j, before)
            inst.incoming -= 1
            inst.incoming_kv_tokens -= sent_kv(s, r)
            inst.queued_tokens -= left_there(s, r)
            q.destination = -1
            if q.state != PREFILLING:  # else it is computed where it is, and its KV is that of a prompt there
                catch_up_one(s, q.instance)
                free_kv(s, q.instance, r)
        else:
            before = r
        r = following


@inner
def _drop_own(s: State, i: int) -> None:
    """Those that wait, prefill, decode, join, are swapped out, have a deferred free, or are at their splits."""
    inst = s.instances[i]
    free_deferred(s, i)
    take_in(s, i)
    while inst.waiting_root >= 0:
        r = queue_pop(s, i)
        inst.queued -= 1
        inst.queued_tokens -= s.requests[r].prefill_until
    inst.recompute_tokens = 0
    while inst.prefilling > 0:
        r = s.lists[inst.prefilling_at]
        remove_prefilling(s, i, r)
        free_kv(s, i, r)
    while inst.running > 0:
        r = s.lists[inst.running_at]
        if unlikely(s.requests[r].migration != NOT_MIGRATING):
            cancel_migration(s, r)
        remove_running(s, i, r)
        free_kv(s, i, r)
    while inst.computed_head >= 0:
        r = inst.computed_head
        inst.computed_head = s.requests[r].next
        inst.joining -= 1
        free_kv(s, i, r)
    inst.computed = inst.computed_known = 0
    while inst.joining_head >= 0:
        r = inst.joining_head
        inst.joining_head = s.requests[r].next
        inst.joining -= 1
        inst.queued_tokens -= s.requests[r].prefill_until - s.requests[r].prefilled
        if unlikely(s.options.pulls) and s.requests[r].prefilled == s.requests[r].prefill_until:
            free_ahead(s, i, r)
        free_kv(s, i, r)
    while inst.swapped_head >= 0:
        inst.swapped_head = s.requests[inst.swapped_head].next
        inst.swapped -= 1
    while inst.split_head >= 0:
        r = inst.split_head
        inst.split_head = s.requests[r].next
        free_kv(s, i, r)
