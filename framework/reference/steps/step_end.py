"""The end of a step (SEMANTICS.md: End of a step, Splits, Speculation)."""

from __future__ import annotations

import bisect
import math

from framework.codes import DECODE
from framework.reference.faults.parking import lose_kv
from framework.reference.prefixes import free_kv, register_prefix
from framework.reference.simulation import Simulation
from framework.reference.state import FAILED, FINISHED, PENDING, REJECTED, Instance, Request, Step
from framework.reference.transfers import (
    asks_where_to_decode,
    call_back,
    cancel_migration,
    hand_over,
    start_decoding,
    start_transfers,
    stop_decoding,
    turn_away,
)


def finish_step(s: Simulation, i: Instance) -> None:
    """i's step has ended: tokens are emitted, requests finish or move on, and i is to schedule its next step."""
    step, i.step, i.busy = i.step, None, False
    assert step is not None
    count_step(s, i, step)
    for r in step.decodes:
        if r.emitted == 1 and not r.decoded and r.transferred and s.options.first_token == "decode":
            r.first_token_s = r.token_s[0] = s.now_s
        r.decoded = True
        i.totals["decode_tokens"] += emit_accepted(s, i, r, step.depth)
    resume(i)
    free_blocks, taken_seats = i.cache.available, i.seats
    for r, _, tokens in step.chunks:
        r.prefilled += tokens
        register_prefix(s, i, r, r.prefilled)
        i.changed = True
    frees_memory = s.options.engine.step_order == "admission" and end_in_order(s, i, step)
    stopping = [r for r in step.decodes if r.state == PENDING and (r.emitted == r.output_tokens or r.is_at_split)]
    for r in stopping:
        stop_decoding(s, i, r)
        i.leaving.append(r)
    for r in stopping:
        if r.emitted == r.output_tokens:
            i.leaving.remove(r)
            frees_memory = finish_request(s, i, r) or frees_memory
        else:
            cancel_migration(s, r)
    for r in step.decodes:
        if r in i.leaving:
            frees_memory = i.changed = True
            decode_elsewhere(s, i, r)
    computed = [r for r, _, _ in step.chunks if r.state == PENDING and r.prefilled == r.prefill_until]
    frees_memory = complete_prefills(s, i, computed) or frees_memory
    if s.options.asynchronous:
        i.late_blocks = max(0, i.cache.available - free_blocks)
        i.late_seats = max(0, taken_seats - i.seats)
    if frees_memory:
        start_transfers(s, i)
    i.between = True
    s.await_turn(i)


def resume(i: Instance) -> None:
    """Let paused decodes take part again."""
    for r in [r for r in i.running if r.paused]:
        r.paused, r.join_step, r.joined_with = False, int(i.totals["decode_steps"]), r.emitted


def end_in_order(s: Simulation, i: Instance, step: Step) -> bool:
    """End those whose chunk gave the last token, each behind the decodes that end and were admitted before it.

    True: KV was freed.
    """
    found = False
    computed = [r for r, _, _ in step.chunks if r.prefilled == r.prefill_until != r.split]
    ending = [r for r in computed if r.emitted + 1 == r.output_tokens and not may_leave_before_token(s, i, r)]
    set_aside(i, ending)
    for r in ending:
        for other in step.decodes:
            if other.state == PENDING and other.emitted == other.output_tokens and other.admission < r.admission:
                stop_decoding(s, i, other)
                finish_request(s, i, other)
        found = complete_prefill(s, i, r) or found
    return found


def set_aside(i: Instance, leaving: list[Request]) -> None:
    """Take those out of i's prefilling order whose prompt, or the part of it before their split, is computed."""
    for r in leaving:
        i.prefilling.remove(r)
    i.prefilled += leaving


def complete_prefills(s: Simulation, i: Instance, computed: list[Request], concurrent: bool = False) -> bool:
    """Prefills have ended, in chunk order. True: a seat or KV was freed."""
    set_aside(i, computed)
    found = False
    for r in computed:
        if r.prefilled == r.split:
            found = prefill_elsewhere(s, i, r) or found
        else:
            found = complete_prefill(s, i, r, concurrent) or found
    return found


def finish_prefill_step(s: Simulation, i: Instance) -> None:
    """Of a prefill step concurrent with the decodes, which those join that decode here."""
    step, i.prefill_step = i.prefill_step, None
    assert step is not None
    count_step(s, i, step)
    s.wake(i)
    chunks = [chunk for chunk in step.chunks if chunk[0] not in step.dropped]
    for r, _, tokens in chunks:
        r.prefilled += tokens
        register_prefix(s, i, r, r.prefilled)
    computed = [r for r, _, _ in chunks if r.prefilled == r.prefill_until]
    frees_memory = complete_prefills(s, i, computed, concurrent=True)
    if s.options.asynchronous:
        seats, available = i.known_room
        i.late_seats = max(i.late_seats, seats - i.seats)
        i.late_blocks = max(i.late_blocks, i.cache.available - available)
        i.prefill_ended_s = s.now_s
        s.await_turn(i)
    else:
        i.known = len(i.computed)
    if frees_memory:
        start_transfers(s, i)


def expert_reads(unchosen: float, tokens: int, micro_batches: int) -> float:
    """How often all experts are read for so many tokens, dealt evenly to micro-batches that each read their own."""
    each, larger = divmod(tokens, micro_batches)
    return (micro_batches - larger) * (1.0 - unchosen**each) + larger * (1.0 - unchosen ** (each + 1))


def count_step(s: Simulation, i: Instance, step: Step) -> None:
    """Write a step that has ended to the step log and add it to the totals."""
    decodes, step0, stream = len(step.decodes), int(i.totals["decode_steps"]), int(step.is_concurrent)
    prefill_tokens = step.prefill_tokens
    i.steps.append((step.start_s, step.end_s, decodes, prefill_tokens, step.context))
    duration_s = step.end_s - step.start_s
    s.step_log.append(
        (step.start_s, duration_s, step0, step.context, i.id, decodes, prefill_tokens, step.depth, stream)
    )
    fresh_s, computed = s.now_s - i.counted_s, decodes * (1 + step.depth) + prefill_tokens
    unchosen = 1.0 - s.options.chosen_share
    added = {
        "busy_s": fresh_s,
        "steps": 1,
        "decode_steps": decodes > 0,
        "prefill_tokens": prefill_tokens,
        "drafted_tokens": decodes * step.depth,
        "context_tokens": step.context,
        "decode_pairs": step.context * (1 + step.depth),
        "prefill_square": sum([(prefix + tokens) ** 2 - prefix**2 for _, prefix, tokens in step.chunks]),
        "bubble_s": step.bubble_s,
        "batch_s": decodes * duration_s,
        "weight_passes": step.micro_batches,
        "expert_reads": expert_reads(unchosen, len(i.group) * computed, step.micro_batches) / len(i.group),
        "extrapolated_s": fresh_s if step.beyond > 1 else 0.0,
    }
    for name, value in added.items():
        i.totals[name] += value
    i.counted_s = s.now_s
    if step.beyond > 1:
        i.extrapolation = max(i.extrapolation, step.beyond)


def emit_accepted(s: Simulation, i: Instance, r: Request, depth: int) -> int:
    """The token of a decode step and the drafts that it accepts; the KV of the others is dropped."""
    taken, drafts = s.blocks_of(i, min(r.kv + 1 + depth, r.input_tokens + r.output_tokens - 1)), s.options.drafts
    count = drafts.emitted(r.id, r.emitted, r.output_tokens - r.emitted, depth)
    for _ in range(count):
        emit(s, r)
    i.cache.take(r.id, s.blocks_of(i, r.kv) - taken)
    i.totals["accepted_tokens"] += count - 1
    r.accepted = count - 1
    return count


def emit(s: Simulation, r: Request) -> None:
    """r emits a token now."""
    r.emitted += 1
    r.token_s.append(s.now_s)
    if r.emitted == 1:
        r.first_token_s, r.first_token_pending = s.now_s, False
        note_prefill_end(s, r)


def note_prefill_end(s: Simulation, r: Request) -> None:
    """The prompt of r is computed; if not for the first time, the first counts."""
    if math.isnan(r.prefill_end_s):
        r.prefill_end_s = s.now_s


def finish_request(s: Simulation, i: Instance, r: Request) -> bool:
    """r has emitted all its tokens on i. True: its KV was freed; else its free is deferred."""
    i.changed = True
    if s.options.asynchronous:
        i.deferred_frees.append(r)
    else:
        free_kv(s, i, r)
    cancel_migration(s, r)
    s.end_request(r, FINISHED)
    return not s.options.asynchronous


def end_with_prompt(s: Simulation, i: Instance, r: Request) -> bool:
    """End r, whose last token came with its prompt. True: its KV was freed.

    It was never among the decodes of a synchronous server, so admission opens at once.
    """
    opens_after = list(i.opens_after)
    r.join_step = int(i.totals["decode_steps"])
    freed = finish_request(s, i, r)
    if not s.options.asynchronous:
        i.closed, i.opens_after = False, opens_after
    return freed


def complete_prefill(s: Simulation, i: Instance, r: Request, concurrent: bool = False) -> bool:
    """A prefill has ended: emit, then finish, stay or leave. True: its seat or its KV was freed.

    `concurrent`: decodes here are a stream of their own, which r joins at a boundary.
    """
    i.prefilled.remove(r)
    stays = s.recomputes_here(r)
    if s.options.first_token == "recomputed" and r.emitted == 0:
        return complete_before_token(s, i, r, concurrent)
    if r.emitted > 0:
        s.token_log.append((0, 0, s.now_s - r.token_s[-1], r.id, -1, 0))
    emit(s, r)
    if r.emitted == r.output_tokens:
        call_back(s, r)
        return end_with_prompt(s, i, r)
    i.leaving.append(r)
    d = i
    at_split = r.is_at_split
    if at_split and not r.sent_ahead:
        r.split = 0
    if r.sent_ahead:
        assert r.destination is not None
        d = r.destination
        if not s.fits(d, r):
            return turn_away(s, i, r, FAILED, "kv")
        r.sent_ahead = False  # from here on it is a transfer like any other
        return True
    if at_split or (not stays and asks_where_to_decode(s, i)):
        if s.unserved & DECODE:
            return lose_kv(s, i, r)
        answer = s.ask_route_decode(r)
        if isinstance(answer, str):
            return turn_away(s, i, r, REJECTED, answer)
        d = answer
        if not s.fits(d, r):
            return turn_away(s, i, r, FAILED, "kv")
    if d is i:
        i.leaving.remove(r)
        if concurrent:
            i.computed.append(r)
        else:
            start_decoding(s, i, r)
    else:
        r.source, r.destination = i, d
        d.incoming.append(r)
        start_transfers(s, d)
    return d is not i


def may_leave_before_token(s: Simulation, i: Instance, r: Request) -> bool:
    """Whether r, whose prompt is computed on i, may leave before it emits token 1."""
    first = s.options.first_token == "recomputed" and r.emitted == 0 and not s.recomputes_here(r)
    return first and asks_where_to_decode(s, i)


def complete_before_token(s: Simulation, i: Instance, r: Request, concurrent: bool) -> bool:
    """A first prefill has ended: emit and stay, or leave before token 1. True: a seat was freed."""
    note_prefill_end(s, r)
    i.leaving.append(r)
    if r.sent_ahead:
        d = r.destination
        assert d is not None
        if s.fits(d, r):
            r.sent_ahead = False  # from here on it is a transfer like any other
            return True
        return turn_away(s, i, r, FAILED, "kv")
    d, at_split = i, r.output_tokens > 1 and r.input_tokens < r.split <= r.input_tokens + 1
    if at_split:
        r.split = 0
    r.first_token_recomputed = True
    if at_split or may_leave_before_token(s, i, r):
        if s.unserved & DECODE:
            return lose_kv(s, i, r)
        answer = s.ask_route_decode(r)
        if isinstance(answer, str):
            return turn_away(s, i, r, REJECTED, answer)
        d = answer
    if d is not i:
        if not s.fits(d, r):
            return turn_away(s, i, r, FAILED, "kv")
        r.source, r.destination = i, d
        d.incoming.append(r)
        start_transfers(s, d)
        return True
    r.first_token_recomputed = False
    i.leaving.remove(r)
    emit(s, r)
    if r.emitted == r.output_tokens:
        return end_with_prompt(s, i, r)
    if concurrent:
        i.computed.append(r)
    else:
        start_decoding(s, i, r)
    return False


def decode_elsewhere(s: Simulation, i: Instance, r: Request) -> None:
    """r, held on i, has emitted all tokens before its split."""
    r.split = 0
    if s.unserved & DECODE:
        lose_kv(s, i, r)
        return
    d = s.ask_route_decode(r)
    if isinstance(d, str):
        turn_away(s, i, r, REJECTED, d)
        return
    if d is i:
        i.leaving.remove(r)
        start_decoding(s, i, r)
    else:
        hand_over(s, i, r, d)


def prefill_elsewhere(s: Simulation, i: Instance, r: Request) -> bool:
    """All tokens of r before the split in its prompt are prefilled. True: its seat or its KV was freed."""
    i.prefilled.remove(r)
    i.leaving.append(r)
    r.prefill_until, r.split = r.input_tokens, 0
    if s.unserved:
        return lose_kv(s, i, r)
    d = s.ask_route_prefill(r)
    if d is i:
        i.leaving.remove(r)
        bisect.insort(i.prefilling, r, key=lambda other: other.admission)
        return False
    return hand_over(s, i, r, d)
