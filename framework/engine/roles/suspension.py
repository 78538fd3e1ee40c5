"""Suspension: the policy takes requests off their instances until it resumes them."""

from __future__ import annotations

from framework.codes import (
    DECODING,
    FAILED,
    KEEP_HERE,
    KEEP_NOTHING,
    KEEP_SWAPPED,
    PREFILL,
    PREFILLING,
    REASON_KV,
    SUSPENDED,
    SUSPENDED_HERE,
    SUSPENDED_OUT,
    SWAPPED,
    WAITING,
)
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.transfers import start_transfers
from framework.engine.events.ask import ask_route
from framework.engine.events.order import wake
from framework.engine.kv.kv_cache import free_kv
from framework.engine.kv.spans import is_spanned, span_of
from framework.engine.memory.kv_blocks import fits, seats, swapped_bytes
from framework.engine.memory.state import State
from framework.engine.parallel.data_parallel import put_on_rank
from framework.engine.requests.arrivals import take_place
from framework.engine.requests.lifecycle import end_request, start_decoding
from framework.engine.requests.parking import park
from framework.engine.requests.preemption import await_swap_in, evict, set_aside
from framework.engine.requests.queueing import join_queue, recomputes_here
from framework.engine.requests.spanning import await_span
from framework.engine.roles.leaving import leave_queue, leave_swapped
from framework.policy.hooks import ROUTE_PREFILL


@inner
def preempt_by_policy(s: State, r: int, keep: int) -> None:
    """Take r off its instance until it is resumed, unless it is on its way; if suspended already, give up more KV."""
    q = s.requests[r]
    i = q.instance
    if q.state == DECODING or q.state == PREFILLING:
        _take_off_step(s, i, r, keep)
    elif q.state == SWAPPED:
        leave_swapped(s, i, r)
        q.state = SUSPENDED if keep == KEEP_NOTHING else SUSPENDED_OUT
    elif q.state == WAITING:
        leave_queue(s, i, r)
        q.state = SUSPENDED
    elif (q.state == SUSPENDED_HERE and keep != KEEP_HERE) or (q.state == SUSPENDED_OUT and keep == KEEP_NOTHING):
        _give_up_kv(s, i, r, keep)
    else:
        return
    _list_suspended(s, r)
    s.instances[i].suspended += comes_back(s, r)
    start_transfers(s, i)
    wake(s, i)


@inner
def _place_in_list(s: State, r: int) -> int:
    """The place of r among the suspended requests, or the one where it belongs."""
    low, high = s.options.suspended_at, s.options.suspended_at + s.sim.suspended
    while low < high:
        middle = (low + high) // 2
        if s.lists[middle] < r:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _list_suspended(s: State, r: int) -> None:
    """Put r into the list of suspended requests, unless it is there."""
    at, k = _place_in_list(s, r), s.options.suspended_at + s.sim.suspended
    if at < k and s.lists[at] == r:
        return
    while k > at:
        s.lists[k] = s.lists[k - 1]
        k -= 1
    s.lists[at] = r
    s.sim.suspended += 1


@inner
def leave_suspended(s: State, r: int) -> None:
    """Take r out of the list of suspended requests."""
    for k in range(_place_in_list(s, r), s.options.suspended_at + s.sim.suspended - 1):
        s.lists[k] = s.lists[k + 1]
    s.sim.suspended -= 1


@inner
def _take_off_step(s: State, i: int, r: int, keep: int) -> None:
    """Suspend r, which decodes or prefills on i; an unfinished prefill keeps no KV."""
    q = s.requests[r]
    decodes = q.state == DECODING
    if unlikely(s.options.spans) and span_of(s, r) >= 0:
        keep = KEEP_NOTHING
    if decodes and keep == KEEP_HERE:
        set_aside(s, i, r)
        q.state = SUSPENDED_HERE
        return
    q.preemptions += 1
    s.sim.preemptions += 1
    evict(s, i, r)
    q.state = SUSPENDED
    if decodes and keep == KEEP_SWAPPED:
        _swap_out(s, i, r)


@inner
def _swap_out(s: State, i: int, r: int) -> None:
    """Move r's KV, freed on i, to host memory with i's next step."""
    s.instances[i].swap_bytes += swapped_bytes(s, r)
    s.requests[r].state = SUSPENDED_OUT


@inner
def _give_up_kv(s: State, i: int, r: int, keep: int) -> None:
    """Move the KV of r, which is suspended, to host memory, or drop it."""
    q = s.requests[r]
    s.instances[i].suspended -= comes_back(s, r)
    if q.state == SUSPENDED_HERE:
        q.preemptions += 1
        s.sim.preemptions += 1
        free_kv(s, i, r)
    q.state = SUSPENDED
    if keep == KEEP_SWAPPED:
        _swap_out(s, i, r)


@inner
def comes_back(s: State, r: int) -> bool:
    """Whether r, which is suspended, will decode on its instance: with its KV, or after recomputation."""
    return s.requests[r].state != SUSPENDED or recomputes_here(s, r)


@inner
def resume_by_policy(s: State, r: int) -> None:
    """Resume r: put it back into its list if its KV is here or in host memory, else into a queue."""
    q = s.requests[r]
    i = q.instance
    if q.state == SUSPENDED:
        s.instances[i].suspended -= comes_back(s, r)
        leave_suspended(s, r)
        _queue_anew(s, i, r)
    elif q.state == SUSPENDED_OUT:
        s.instances[i].suspended -= 1
        leave_suspended(s, r)
        await_swap_in(s, i, r)
        wake(s, i)
    elif q.state == SUSPENDED_HERE and seats(s, i) < s.instances[i].max_batch:
        s.instances[i].suspended -= 1
        leave_suspended(s, r)
        s.sim.admissions += 1
        q.admission = s.sim.admissions
        if unlikely(s.instances[i].ranks > 0):
            put_on_rank(s, i, r)
        start_decoding(s, i, r, q.kv)
        wake(s, i)


@inner
def _queue_anew(s: State, i: int, r: int) -> None:
    """Queue r by the policy's key on its instance, or on the routed one if its instance no longer prefills."""
    q, target = s.requests[r], i
    q.state = WAITING
    if unlikely(s.options.spans) and is_spanned(s, r):
        await_span(s, r)
        return
    if s.instances[i].role & PREFILL == 0 and not recomputes_here(s, r):
        if unlikely(s.sim.unserved > 0):
            park(s, r)
            return
        target = ask_route(s, ROUTE_PREFILL, r)
        if target < 0:
            return
    if not fits(s, target, r):  # elsewhere, or because its instance has lost GPUs
        end_request(s, r, FAILED, REASON_KV)
        return
    q.instance = target
    take_place(s, r)
    join_queue(s, target, r)
