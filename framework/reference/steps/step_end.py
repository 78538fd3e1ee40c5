"""The end of a step (SEMANTICS.md: End of a step, Splits, Speculation)."""

from __future__ import annotations

from framework.reference.copies.transfers import cancel_migration, start_decoding, start_transfers, stop_decoding
from framework.reference.prefixes import register_prefix
from framework.reference.simulation import Simulation
from framework.reference.state import PENDING, Instance, Request
from framework.reference.steps.prefill_end import (
    complete_prefills,
    decode_elsewhere,
    emit,
    end_in_order,
    finish_request,
    join_later,
)
from framework.reference.steps.totals import count_step


def finish_step(s: Simulation, i: Instance) -> None:
    """End i's step: emit tokens, let requests finish or move on, and let i schedule its next step."""
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
    i.changed |= step.prefill_tokens > 0
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
    computed = [r for r, _, _ in step.chunks if r in i.prefilling and r.prefilled == r.prefill_until]
    frees_memory = complete_prefills(s, i, computed, start_decoding) or frees_memory
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


def finish_prefill_step(s: Simulation, i: Instance) -> None:
    """End a prefill step concurrent with the decodes; requests that decode here join the decodes."""
    step, i.prefill_step = i.prefill_step, None
    assert step is not None
    count_step(s, i, step)
    s.wake(i)
    chunks = [chunk for chunk in step.chunks if chunk[0] not in step.dropped]
    for r, _, tokens in chunks:
        r.prefilled += tokens
        register_prefix(s, i, r, r.prefilled)
    computed = [r for r, _, _ in chunks if r.prefilled == r.prefill_until]
    frees_memory = complete_prefills(s, i, computed, join_later)
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


def emit_accepted(s: Simulation, i: Instance, r: Request, depth: int) -> int:
    """Emit the token of a decode step and its accepted drafts; the KV of the rejected ones is dropped."""
    taken, drafts = s.blocks_of(i, min(r.kv + 1 + depth, r.input_tokens + r.output_tokens - 1)), s.options.drafts
    count = drafts.emitted(r.id, r.emitted, r.output_tokens - r.emitted, depth)
    for _ in range(count):
        emit(s, r)
    i.cache.take(r.id, s.blocks_of(i, r.kv) - taken)
    i.totals["accepted_tokens"] += count - 1
    r.accepted = count - 1
    return count
