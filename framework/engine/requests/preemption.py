"""Preemption: which request gives up its KV blocks, what it loses, and how swapped requests return."""

from __future__ import annotations

from framework.codes import (
    DECODING,
    FAILED,
    FINISHED,
    HOOK_RAISED,
    NOT_MIGRATING,
    PREFILL,
    PREFILLING,
    REASON_KV,
    SWAP,
    SWAPPED,
    WAITING,
)
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.migration import cancel_migration
from framework.engine.durations.speculation import kv_of_next_step
from framework.engine.events.ask import ask, ask_route, fail, is_asked
from framework.engine.kv.kv_cache import allocate, free_kv
from framework.engine.kv.spans import is_spanned
from framework.engine.memory.kv_blocks import (
    add_kv_tokens,
    available,
    blocks_of,
    fits,
    seats,
    swapped_bytes,
    watermark_of,
)
from framework.engine.memory.queues import append, is_before
from framework.engine.memory.state import State
from framework.engine.parallel.data_parallel import put_on_rank
from framework.engine.requests.asynchronous import forget_last, free_deferred_early, last_deferred
from framework.engine.requests.lifecycle import end_request, remove_prefilling, remove_running, start_decoding
from framework.engine.requests.parking import park
from framework.engine.requests.queueing import queue_again, recomputes_here
from framework.engine.requests.spanning import await_span_first
from framework.policy.hooks import ROUTE_PREFILL, VICTIM


@inner
def preemption_victim(s: State, i: int) -> int:
    """The request of i to preempt next, by the policy or `engine.victim`: it decodes, prefills or has a deferred free.

    A request with a deferred free has ended, so the policy is not asked about it.
    """
    ended = last_deferred(s, i)
    if unlikely(is_asked(s, VICTIM)):
        return ended if ended >= 0 else _asked_for(s, i)
    if unlikely(s.options.least_urgent):
        return _least_urgent(s, i)
    if unlikely(s.options.fewest_tokens):
        return _of_fewest_tokens(s, i)
    latest = _latest(s, i)
    if ended >= 0 and (latest < 0 or s.requests[ended].admission > s.requests[latest].admission):
        return ended
    return latest


@inner
def _asked_for(s: State, i: int) -> int:
    """The request of i that the policy gives up; if the answer is invalid, which stops the run, some other request."""
    r = ask(s, VICTIM, i)
    is_one = r >= 0 and r < s.options.requests and s.requests[r].instance == i
    if is_one and (s.requests[r].state == DECODING or s.requests[r].state == PREFILLING):
        return r
    fail(s, HOOK_RAISED, VICTIM, i, r)
    return _latest(s, i)


@inner
def _latest(s: State, i: int) -> int:
    """The request that decodes or prefills on i and was admitted last; -1: there is none."""
    inst = s.instances[i]
    chosen, latest = -1, -1
    for j in range(inst.running):
        r = s.lists[inst.running_at + j]
        if s.requests[r].admission > latest:
            chosen, latest = r, s.requests[r].admission
    for j in range(inst.prefilling):
        r = s.lists[inst.prefilling_at + j]
        if s.requests[r].state == PREFILLING and s.requests[r].admission > latest:
            chosen, latest = r, s.requests[r].admission
    return chosen


@inner
def _least_urgent(s: State, i: int) -> int:
    """The request of i (decoding, prefilling or with a deferred free) that would be last in a queue."""
    inst = s.instances[i]
    chosen = -1
    for j in range(inst.running):
        r = s.lists[inst.running_at + j]
        if chosen < 0 or is_before(s, chosen, r):
            chosen = r
    for j in range(inst.prefilling):
        r = s.lists[inst.prefilling_at + j]
        if chosen < 0 or is_before(s, chosen, r):
            chosen = r
    r = inst.deferred_head
    while r >= 0:
        if chosen < 0 or is_before(s, chosen, r):
            chosen = r
        r = s.requests[r].next
    return chosen


@inner
def _of_fewest_tokens(s: State, i: int) -> int:
    """The request of i (decoding, prefilling or with a deferred free) with the fewest emitted tokens.

    Ties go to the longest prompt, then to the last admission.
    """
    inst = s.instances[i]
    chosen, fewest = -1, 0
    for j in range(inst.running + inst.prefilling):
        if j < inst.running:
            r = s.lists[inst.running_at + j]
            emitted = s.requests[r].offset + inst.decode_steps - s.requests[r].input_tokens + 1
        else:
            r = s.lists[inst.prefilling_at + j - inst.running]
            emitted = s.requests[r].emitted
        if chosen < 0 or emitted < fewest or (emitted == fewest and _is_longer(s, r, chosen)):
            chosen, fewest = r, emitted
    r = inst.deferred_head
    while r >= 0:
        emitted = s.requests[r].emitted
        if chosen < 0 or emitted < fewest or (emitted == fewest and _is_longer(s, r, chosen)):
            chosen, fewest = r, emitted
        r = s.requests[r].next
    return chosen


@inner
def _is_longer(s: State, a: int, b: int) -> bool:
    """Whether a has a longer prompt than b, or an equally long one and a later admission."""
    x, y = s.requests[a], s.requests[b]
    return x.input_tokens > y.input_tokens or (x.input_tokens == y.input_tokens and x.admission > y.admission)


@inner
def preempt(s: State, i: int, r: int) -> None:
    """Preempt r: drop or swap out its KV, and keep its emitted tokens. A deferred free happens at once."""
    q, inst, sim = s.requests[r], s.instances[i], s.sim
    if unlikely(q.state == FINISHED):
        free_deferred_early(s, i, r)
        return
    prefills = q.state == PREFILLING
    q.preemptions += 1
    sim.preemptions += 1
    evict(s, i, r)
    if s.options.preemption == SWAP and not prefills:
        inst.swap_bytes += swapped_bytes(s, r)
        await_swap_in(s, i, r)
        return
    queue_preempted(s, i, r)


@inner
def await_swap_in(s: State, i: int, r: int) -> None:
    """Let r, whose KV is in host memory, return to i once there is room."""
    inst = s.instances[i]
    s.requests[r].state = SWAPPED
    inst.swapped_head = append(s, inst.swapped_head, inst.swapped_tail, r)
    inst.swapped_tail = r
    inst.swapped += 1


@inner
def evict(s: State, i: int, r: int) -> None:
    """Take r, which decodes or prefills on i, out of its list and free its KV."""
    q = s.requests[r]
    s.instances[i].changed = True
    if q.migration != NOT_MIGRATING:
        cancel_migration(s, r)
    if q.state == PREFILLING:
        remove_prefilling(s, i, r)
    else:
        remove_running(s, i, r)
        forget_last(s, i, r)
    free_kv(s, i, r)


@inner
def set_aside(s: State, i: int, r: int) -> None:
    """Take r, which decodes on i, out of its list; its KV stays."""
    s.instances[i].changed = True
    if s.requests[r].migration != NOT_MIGRATING:
        cancel_migration(s, r)
    remove_running(s, i, r)


@inner
def queue_preempted(s: State, i: int, r: int) -> None:
    """Queue r, whose KV is dropped, on i again if i prefills or recomputes r; else route it anew."""
    q, target = s.requests[r], i
    if unlikely(s.options.spans) and is_spanned(s, r):
        await_span_first(s, r)
        return
    if s.instances[i].role & PREFILL == 0 and not recomputes_here(s, r):
        if unlikely(s.sim.unserved > 0):
            park(s, r)
            return
        q.state = WAITING
        target = ask_route(s, ROUTE_PREFILL, r)
        if target < 0:
            return
        if not fits(s, target, r):
            end_request(s, r, FAILED, REASON_KV)
            return
    queue_again(s, target, r)


@inner
def preempt_prefill(s: State, i: int, r: int) -> None:
    """Drop what r has prefilled here, and queue r here again."""
    inst = s.instances[i]
    inst.preempted = True
    inst.changed = True
    s.requests[r].preemptions += 1
    s.sim.preemptions += 1
    remove_prefilling(s, i, r)
    free_kv(s, i, r)
    queue_again(s, i, r)


@inner
def swap_in(s: State, i: int) -> None:
    """Bring back swapped-out requests in order, while seats and blocks allow."""
    inst, sim = s.instances[i], s.sim
    while inst.swapped_head >= 0:
        r = inst.swapped_head
        q = s.requests[r]
        blocks = blocks_of(s, i, kv_of_next_step(s, i, r, q.kv))  # The blocks of its next tokens count too.
        if seats(s, i) >= inst.max_batch or available(s, i) - blocks < watermark_of(s, i):
            break
        inst.swapped_head = q.next
        inst.swapped -= 1
        allocate(s, i, blocks)
        inst.swap_bytes += swapped_bytes(s, r)
        add_kv_tokens(s, i, q.kv, sim.now_s)
        sim.admissions += 1
        q.admission = sim.admissions
        if unlikely(inst.ranks > 0):
            put_on_rank(s, i, r)
        start_decoding(s, i, r, q.kv)
