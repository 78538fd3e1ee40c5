"""Spans: who waits is asked about, instances stand ready for each other, a step of all of them computes the request.

The loop returns to Python for this, so that a run whose policy does not answer `span` compiles nothing of it.
"""

from __future__ import annotations

from typing import Any

import numba

from framework.codes import PREFILLING, REASON_KV, REJECTED, YIELDED
from framework.compiler.decorators import entry, inner, unlikely
from framework.engine.copies.link_sharing import share_links
from framework.engine.copies.transfers import start_transfers
from framework.engine.durations.leap import begin_leap, catch_up, catch_up_one
from framework.engine.durations.span_steps import part_of, span_step_s
from framework.engine.events.ask import ask
from framework.engine.events.order import drop_turn, wake
from framework.engine.kv.kv_cache import allocate, give_back
from framework.engine.kv.spans import (
    AWAY,
    BEGUN,
    CLAIMED,
    COUNT,
    GIVEN_UP,
    NEVER_SPANNED,
    OVER,
    OWNER,
    PHASE,
    UNUSED,
    at_span,
    has_instance,
    instance_of,
    kept_by,
    leave_claims,
    span_of,
    store_answer,
)
from framework.engine.memory.attach import HANDED, attach_at
from framework.engine.memory.kv_blocks import (
    add_kv_tokens,
    available,
    blocks_for,
    blocks_of,
    largest_request,
    seats,
    watermark_of,
)
from framework.engine.memory.queues import append
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import load_changed
from framework.engine.requests.arrivals import route_to_one
from framework.engine.requests.lifecycle import end_request
from framework.engine.requests.spanning import leave_spanless
from framework.policy.hooks import NO_SPAN, NOT_NOW, RAISED, SPAN


@entry(numba.types.int64(HANDED))
def pass_span(words: Any) -> int:
    """Free what spans kept that have ended, or deal with spans before an instance schedules.

    Returns YIELDED, or an error of a hook; the arguments are those of `engine.loop.run`.
    """
    s = attach_at(words)
    if s.sim.spans_over > 0:
        _release(s)
    else:
        _take_turn(s, s.sim.id)
    if unlikely(s.sim.changed_links > 0):
        share_links(s)
    return int(s.error.status) if s.error.status != 0 else YIELDED


@inner
def _take_turn(s: State, i: int) -> None:
    """Ask about who waits, as i, whose turn it is, has changed; then i stands ready if a span has claimed it."""
    inst = s.instances[i]
    inst.looked = True
    if inst.busy:
        return
    s.sim.scheduled = max(s.sim.scheduled, i - 1)  # the instances before it have too, if they leap
    catch_up(s)
    if inst.changed:
        _look(s)
    r = _claim_on(s, i)
    inst.ready = r >= 0
    if r < 0 or s.error.status != 0:
        return
    drop_turn(s, i)
    s.sim.scheduled = max(s.sim.scheduled, i)
    inst.looked = inst.asked = inst.between = False
    if _is_ready(s, r):
        _begin(s, r)


# --- who waits for a span ---------------------------------------------------------------------------------------------


@inner
def _look(s: State) -> None:
    """Ask about those that wait, in order, up to the first that goes on waiting."""
    while s.sim.spanless_head >= 0 and s.error.status == 0:
        r = s.sim.spanless_head
        answer = ask(s, SPAN, r)
        if answer in (RAISED, NOT_NOW):
            return
        if answer == NO_SPAN:
            leave_spanless(s, r)
            s.lists[s.options.span_of_at + r] = NEVER_SPANNED
            route_to_one(s, r)
        elif not _claim(s, r):
            return


@inner
def _claim(s: State, r: int) -> bool:
    """Let the span of the policy's answer claim its instances, if they have room; r is rejected if it could never end
    there. Whether r waits no more.
    """
    last, tokens = s.options.span_slots, s.requests[r].input_tokens + s.requests[r].emitted
    lead, away = instance_of(s, last, 0), s.lists[at_span(s, last) + AWAY]
    peak = blocks_for(s, s.requests[r].input_tokens + s.lists[s.options.output_at + r] - 1)
    if peak - away // s.options.block_tokens > largest_request(s, lead):
        leave_spanless(s, r)
        end_request(s, r, REJECTED, REASON_KV)
        return True
    if not _has_room(s, last, tokens):
        return False
    number = store_answer(s)
    if number < 0:
        return False
    leave_spanless(s, r)
    s.lists[s.options.span_of_at + r] = 1 + number
    _take_room(s, r, number, tokens)
    s.lists[at_span(s, number) + PHASE] = CLAIMED
    s.lists[at_span(s, number) + OWNER] = r
    s.sim.claim_head = append(s, s.sim.claim_head, s.sim.claim_tail, r)
    s.sim.claim_tail = r
    s.sim.spanning += 1
    for k in range(s.lists[at_span(s, number) + COUNT]):
        s.instances[instance_of(s, number, k)].looked = False  # it stands ready, even if its turn was looked at before
        wake(s, instance_of(s, number, k))
    return True


@inner
def _has_room(s: State, number: int, tokens: int) -> bool:
    """Whether the instances of a span have a seat and blocks for `tokens` tokens of KV."""
    lead = instance_of(s, number, 0)
    if seats(s, lead) >= s.instances[lead].max_batch:
        return False
    for k in range(s.lists[at_span(s, number) + COUNT]):
        i, blocks = instance_of(s, number, k), kept_by(s, number, k) // s.options.block_tokens
        if k == 0:
            blocks = blocks_of(s, i, tokens) - s.lists[at_span(s, number) + AWAY] // s.options.block_tokens
        if blocks > 0 and available(s, i) - blocks < watermark_of(s, i):
            return False
    return True


@inner
def _take_room(s: State, r: int, number: int, tokens: int) -> None:
    """Give r, whose `tokens` tokens are to be computed, its seat and its blocks on all instances of its span."""
    q, sim, away = s.requests[r], s.sim, s.lists[at_span(s, number) + AWAY]
    for k in range(s.lists[at_span(s, number) + COUNT]):
        i, kept = instance_of(s, number, k), kept_by(s, number, k)
        if k == 0:
            kept = tokens - away
            allocate(s, i, blocks_of(s, i, tokens) - away // s.options.block_tokens)
        else:
            allocate(s, i, kept // s.options.block_tokens)
        add_kv_tokens(s, i, kept, sim.now_s)
    lead = instance_of(s, number, 0)
    inst = s.instances[lead]
    sim.admissions += 1
    q.admission = sim.admissions
    q.state = PREFILLING
    q.instance = lead
    q.prefill_until, q.prefilled, q.kv = tokens, 0, tokens
    s.lists[inst.prefilling_at + inst.prefilling] = r
    s.lists[inst.chunk_at + inst.prefilling] = 0
    inst.prefilling += 1
    inst.queued_tokens += tokens
    load_changed(s, lead)
    if q.start_s != q.start_s:
        q.start_s = sim.now_s
        q.prefill_instance = lead
        q.cached_tokens = 0


# --- the step of all instances ----------------------------------------------------------------------------------------


@inner
def _claim_on(s: State, i: int) -> int:
    """The first request whose span has claimed i and whose step has not begun; -1: there is none."""
    r = s.sim.claim_head
    while r >= 0 and not has_instance(s, span_of(s, r), i):
        r = s.requests[r].next
    return int(r)


@inner
def _is_ready(s: State, r: int) -> bool:
    """Whether all instances of r's span stand ready, and none is claimed by another request before r."""
    number = span_of(s, r)
    for k in range(s.lists[at_span(s, number) + COUNT]):
        i = instance_of(s, number, k)
        if not s.instances[i].ready or _claim_on(s, i) != r:
            return False
    return True


@inner
def _begin(s: State, r: int) -> None:
    """Begin the step that computes r on all instances of its span."""
    leave_claims(s, r)
    number, tokens = span_of(s, r), s.requests[r].prefill_until
    row = at_span(s, number)
    s.lists[row + PHASE] = BEGUN
    count, time_s = s.lists[row + COUNT], span_step_s(s, number, tokens)
    others = tokens // count
    for k in range(count):
        i = instance_of(s, number, k)
        inst = s.instances[i]
        for j in range(inst.prefilling):
            s.lists[inst.chunk_at + j] = tokens * (s.lists[inst.prefilling_at + j] == r)
        inst.guests += kept_by(s, number, k)
        _begin_on(s, i, tokens - (count - 1) * others if k == 0 else others, tokens, count, time_s)
        s.step[i].sampled = k == 0


@inner
def _begin_on(s: State, i: int, own: int, tokens: int, count: int, time_s: float) -> None:
    """Begin the step of one of `count` instances, which computes `own` of `tokens` tokens."""
    inst, step = s.instances[i], s.step[i]
    step.depth = step.decodes = step.context = 0
    step.prefill_tokens, step.widest_tokens = own, part_of(tokens, count)
    step.longest_prompt = tokens
    step.square = float(tokens) * float(tokens) / (count if tokens >= count else 1)
    step.start_s, step.first_s, step.increment_s = s.sim.now_s, time_s, 0.0
    step.repeats = False
    inst.counted_s = s.sim.now_s
    inst.busy = True
    inst.ready = inst.between = False
    begin_leap(s, i, 1)


# --- the end ----------------------------------------------------------------------------------------------------------


@inner
def _release(s: State) -> None:
    """Free what others keep of requests whose KV has come free, and let all of their instances use the room."""
    for i in range(s.options.instances):
        s.instances[i].marked = False
    for number in range(s.options.span_slots):
        row = at_span(s, number)
        phase = s.lists[row + PHASE]
        if phase != GIVEN_UP and phase != OVER:
            continue
        for k in range(s.lists[row + COUNT]):
            i = instance_of(s, number, k)
            s.instances[i].marked = True
            s.instances[i].ready = False  # it may stand ready for this span, whose step has not begun
            catch_up_one(s, i)
            if k > 0:
                give_back(s, number, k)
        s.lists[row + PHASE] = UNUSED
    s.sim.spans_over = 0
    for i in range(s.options.instances):
        if s.instances[i].marked and not s.instances[i].down:
            start_transfers(s, i)
            wake(s, i)
