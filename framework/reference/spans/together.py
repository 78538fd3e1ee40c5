"""Spans: requests that several instances compute together (SEMANTICS.md: Spans)."""

from __future__ import annotations

import math

from framework.codes import STEP_END
from framework.policy.spans import MOST_SPANS, SpanRow
from framework.reference.arrivals import route_to_one
from framework.reference.copies.transfers import start_transfers
from framework.reference.simulation import Simulation
from framework.reference.spans.span import Span
from framework.reference.state import REJECTED, Instance, Request
from framework.reference.steps.step import Step

_TICKS_S = 2**30  # the time of a step is rounded to a multiple of 1 / _TICKS_S seconds


def span_is_due(s: Simulation, i: Instance) -> bool:
    """Whether spans are to be dealt with before i, whose turn it is, schedules."""
    return bool(s.spans.waiting or s.spans.claims) and i.woken and not i.looked


def deal_with_spans(s: Simulation, i: Instance) -> bool:
    """Ask about who waits, as i, whose turn it is, has changed; then i stands ready if a span has claimed it.

    Returns whether that was its turn.
    """
    i.looked = True
    if i.busy:
        return False
    if i.changed:
        ask_who_waits(s)
    r = claim_on(s, i)
    i.ready = r is not None
    if r is None:
        return False
    i.woken = i.looked = i.asked = i.between = False
    if all(other.ready and claim_on(s, other) is r for other in instances_of(r)):
        begin_span(s, r)
    return True


def ask_who_waits(s: Simulation) -> None:
    """Ask about those that wait, in order, up to the first that goes on waiting."""
    while s.spans.waiting:
        r = s.spans.waiting[0]
        answer = s.hooks.span(s, r)
        if answer is None:
            s.spans.waiting.remove(r)
            r.spanned = False
            route_to_one(s, r)
        elif not answer.instances or not claim_instances(s, r, answer):
            return


def claim_instances(s: Simulation, r: Request, answer: SpanRow) -> bool:
    """Let a span claim its instances, if they have room; r is rejected if it could never end there. Whether r waits no
    more.
    """
    span = Span(r.id, [s.instances[i] for i in answer.instances], list(answer.kept[1:]), answer.chunk_tokens)
    lead, others, tokens = span.instances[0], span.instances[1:], r.input_tokens + r.emitted
    shares = [s.blocks_for(kept) for kept in span.kept]
    if s.blocks_for(r.input_tokens + r.output_tokens - 1) - sum(shares) > lead.largest_kv:
        s.spans.waiting.remove(r)
        s.end_request(r, REJECTED, "kv")
        return True
    own = s.blocks_of(lead, tokens) - sum(shares)
    there = [(lead, own), *((i, blocks) for i, blocks in zip(others, shares, strict=True) if blocks)]
    if lead.seats >= lead.max_batch or any(i.cache.available - blocks < i.present_watermark for i, blocks in there):
        return False
    if len({id(other) for i in s.instances for other in i.shares}) == min(len(s.requests), MOST_SPANS):
        return False
    s.spans.waiting.remove(r)
    s.spans.claims.append(r)
    r.span, r.instance = span, lead.id
    for i, blocks in there:
        i.cache.take(r.id, blocks)
    for i in span.instances:
        i.shares.append(span)
    s.give_admission_number(r)
    r.prefill_until, r.prefilled, r.covered, r.registered = tokens, 0, tokens, 0
    lead.prefilling.append(r)
    if math.isnan(r.start_s):
        r.start_s, r.prefill_instance, r.cached_tokens = s.now_s, lead.id, 0
    for i in span.instances:
        i.looked = False  # it stands ready, even if its turn was looked at before
        s.wake(i)
    return True


def claim_on(s: Simulation, i: Instance) -> Request | None:
    """The first request whose span has claimed i and whose step has not begun."""
    return next((r for r in s.spans.claims if i in instances_of(r)), None)


def instances_of(r: Request) -> list[Instance]:
    """The instances of r's span."""
    return [] if r.span is None else r.span.instances


def begin_span(s: Simulation, r: Request) -> None:
    """Begin the step that computes r on all instances of its span."""
    assert r.span is not None
    s.spans.claims.remove(r)
    r.span.begun = True
    together, tokens = r.span.instances, r.prefill_until
    end_s, others = s.now_s + step_s(s, r.span, tokens), tokens // len(together)
    for k, i in enumerate(together):
        own = others if k else tokens - (len(together) - 1) * others
        part = -(-tokens // len(together))
        beyond = s.timing.extrapolation(i.spec.row, part, int(k == 0), 0, 0, tokens)
        chunks = [(r, 0, tokens)] if k == 0 else []
        square = (tokens**2 / (len(together) if others else 1)) if own else 0.0
        i.step = Step(s.now_s, end_s, i.mode, [], chunks, 0, beyond=beyond, own=(own, square))
        i.busy, i.ready, i.between, i.counted_s = True, False, False, s.now_s
        s.push(end_s, STEP_END, i.id)


def step_s(s: Simulation, span: Span, tokens: int) -> float:
    """Seconds in which the instances of a span compute so many tokens."""
    lead, count = span.instances[0], len(span.instances)
    pool, part, latency_s = lead.spec.row, -(-tokens // count), s.options.latency_s
    if span.chunk_tokens:
        starts = range(0, tokens, span.chunk_tokens)
        ends = [min(start + span.chunk_tokens, tokens) for start in starts]
        chunks_s = [
            s.timing.base_s(pool, end - start, 0, int(end == tokens)) + s.timing.chunk_s(pool, start, end - start)
            for start, end in zip(starts, ends, strict=True)
        ]
        time_s = (sum(chunks_s) + (count - 1) * max(chunks_s)) / count + (count - 1) * latency_s
    else:
        size, bandwidth = copy_bytes(s, tokens), min(i.spec.bandwidth_bytes_s for i in span.instances)
        round_s = (count - 1) * (s.options.layers * latency_s + size / count / bandwidth)
        time_s = s.timing.base_s(pool, part, 0, 1) + max(s.timing.chunk_s(pool, 0, tokens) / count, round_s)
    time_s = max(time_s, s.timing.host_s(pool, part, 0)) * max(i.slowness for i in span.instances)
    return math.floor(time_s * _TICKS_S + 0.5) / _TICKS_S


def copy_bytes(s: Simulation, tokens: int) -> float:
    """Bytes of the KV of so many tokens on a link."""
    each = s.options.copy_bytes_per_token
    return tokens * (s.options.kv_bytes_per_token if each is None else each)


def give_back_shares(s: Simulation) -> None:
    """Free what others keep of requests whose KV has come free, and let all of their instances use the room."""
    over, s.spans.over = s.spans.over, []
    touched = [i for i in s.instances if any(span in i.shares for span in over)]
    for i in touched:
        for span in over:
            if span in i.shares:
                i.shares.remove(span)
                i.ready = False  # it may stand ready for this span, whose step has not begun
                if i is not span.instances[0]:
                    i.cache.free_kv(span.request)
    for i in touched:
        if not i.down:
            start_transfers(s, i)
            s.wake(i)
