"""Runs of fixed-depth drafted steps: the single steps (`single_steps`) that cost no more than their arithmetic.

Such a step drafts a fixed number of tokens, and differs from the step before it in its context alone.

1. Its time is linear in its context between two knots of the step times; the coefficients are noted.
2. A request needs at most one block more or less.
3. Branches follow the order of step ends. The processor predicts them, so it begins the next step while the time of
   this one is still being computed.
"""

from __future__ import annotations

import numpy as np

from framework.codes import CONCURRENT, STEP_END
from framework.compiler.decorators import inner, unlikely
from framework.engine.durations.draws import MOST_AT_ONCE, right_of_few
from framework.engine.durations.duration import look_ahead
from framework.engine.durations.leap import end_leap
from framework.engine.durations.totals import count_fixed_depth, write_row
from framework.engine.kv.kv_cache import allocate
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import first_time_of_others, move_time
from framework.engine.parallel.sm_sharing import count_busy, streaming
from framework.timing.table import StepTables, decode_line

_NEVER = np.iinfo(np.int64).max


@inner
def note_fixed_depth(s: State, i: int) -> None:
    """Note whether the steps of i, which repeat, are fixed-depth drafted steps."""
    inst, step, block = s.instances[i], s.step[i], s.options.block_tokens
    step.fixed_depth = False
    if not s.options.speculates or s.options.adaptive_depth or s.options.chosen_share > 0.0:
        return
    if inst.mode == CONCURRENT or streaming(s, i) or inst.reserve_blocks > 0 or block & (block - 1) != 0:
        return
    if s.timing_rows[inst.row]["skew_s"] > 0.0 or step.depth > min(block - 1, MOST_AT_ONCE):
        return
    for j in range(step.decodes):
        if s.requests[s.lists[inst.running_at + j]].split > 0:
            return
    step.fixed_depth = True
    step.fixed_from = inst.decode_steps
    step.fixed_kv = inst.decode_kv
    step.fixed_context = inst.context_tokens
    _note_line(s, i, step.context)


@inner
def _note_line(s: State, i: int, context: int) -> None:
    """Note the line by which the attention of i's decodes grows with the context, around this context."""
    step = s.step[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    line = decode_line(tables, s.instances[i].row, step.decodes, context)
    step.line_from, step.line_to, step.line_knot, step.line_s, step.line_slope_s = line


@inner
def pass_fixed_depth_steps(s: State, i: int, others_s: float, stop: int) -> int:
    """Let fixed-depth steps end and start again, beginning with i's.

    Returns the instance whose step ended and which needs another kind of step, or does not continue at once; -1: none.

    `others_s`: time of the next event that is not the end of a step.
    """
    sim = s.sim
    now_s = sim.now_s
    while s.step[i].fixed_depth and not s.instances[i].changed:
        if now_s >= first_time_of_others(s, STEP_END, i):
            break
        growth = _end(s, i, now_s)
        if growth < 0:
            count_fixed_depth(s, i)
            s.instances[i].busy = False
            end_leap(s, i)
            break
        first, end_s = _start_again(s, i, growth, now_s)
        sim.scheduled = max(sim.scheduled, i)
        if end_s >= others_s or sim.events >= stop or sim.step_rows + 2 > s.options.step_log_rows:
            return -1
        if end_s > now_s:
            sim.scheduled = -1
        i, now_s = first, end_s
        sim.now_s = now_s
        sim.kind, sim.id = STEP_END, i
        sim.events += 1
        sim.quiet_ticks = 0
    return i


@inner
def _end(s: State, i: int, now_s: float) -> int:
    """End i's step: log it, emit its tokens, count both. Returns the next step's blocks, -1: of another kind."""
    inst, step = s.instances[i], s.step[i]
    decodes, context = step.decodes, float(step.context)
    write_row(s, i)
    inst.context_tokens += context
    inst.batch_s += decodes * (now_s - step.start_s)
    if unlikely(context > step.measured_context or step.measured_ratio > 1.0):
        count_busy(s, i, max(step.measured_ratio, context / step.measured_context))
    else:
        inst.busy_s += now_s - inst.counted_s
        inst.counted_s = now_s
    inst.last_decode_end_s = now_s
    steps = inst.decode_steps + 1
    inst.decode_steps = steps
    accepted, unused, growth = _emit(s, i, steps)
    emitted = decodes + accepted
    inst.kv_token_s = inst.kv_token_s - decodes * now_s - accepted * now_s
    inst.kv_tokens += emitted
    inst.decode_kv += emitted
    inst.kv_block_s += unused * now_s
    inst.free_blocks += unused
    if steps >= step.next_finish or growth > inst.free_blocks + inst.evictable_blocks:
        return -1
    return growth


@inner
def _emit(s: State, i: int, steps: int) -> tuple[int, int, int]:
    """Emit the accepted drafts of i's decodes; return their number, the blocks that the others free, the next step's.

    This is `speculation.emit_accepted` for fixed-depth steps.
    """
    inst, step = s.instances[i], s.step[i]
    depth, room_of = step.depth, s.options.block_tokens - 1
    fewest = _NEVER - steps
    total = unused = growth = 0
    for j in range(step.decodes):
        r = s.lists[inst.running_at + j]
        q = s.requests[r]
        kv = q.offset + steps
        left = s.lists[inst.finish_at + j] - steps
        accepted = min(right_of_few(s, r, kv - q.input_tokens, depth), left)
        kept = kv + accepted
        room = ((kept + room_of) & ~room_of) - kept  # The rest of its last block is room.
        unused += min(depth, left) - accepted > room
        growth += min(1 + depth, left - accepted) > room
        q.offset += accepted
        q.accepted = accepted
        left -= accepted
        s.lists[inst.finish_at + j] = steps + left
        fewest = min(fewest, left)
        total += accepted
    step.next_finish = steps + fewest
    return total, unused, growth


@inner
def _start_again(s: State, i: int, growth: int, now_s: float) -> tuple[int, float]:
    """Start i's next step, of the same requests, with `growth` blocks; return whose step ends first, and when."""
    inst, step = s.instances[i], s.step[i]
    if unlikely(inst.free_blocks < growth):
        allocate(s, i, growth)
    else:
        inst.free_blocks -= growth
        inst.kv_block_s -= growth * now_s
    decodes, depth = step.decodes, step.depth
    read = inst.decode_kv + decodes  # A step without drafts reads this.
    context = read + decodes * depth
    step.context = context
    step.start_s = now_s
    if unlikely(read < step.line_from or context >= step.line_to):
        look_ahead(s, i, context)
        _note_line(s, i, context)
        first_s, increment_s = step.ahead_s, step.ahead_increment_s
    else:
        per_token_s = s.timing_rows[inst.row]["per_context_token_s"]
        slope_s = step.line_slope_s
        first_s = step.even_s + (per_token_s * context + (step.line_s + slope_s * (context - step.line_knot)))
        increment_s = (per_token_s + slope_s) * decodes
        if unlikely(first_s < step.least_s):
            first_s, increment_s = step.least_s, 0.0
        alone_s = per_token_s * read + (step.line_s + slope_s * (read - step.line_knot))
        first_s += depth * (s.options.draft_cost * (step.draft_even_s + alone_s))
    step.first_s = first_s
    step.increment_s = increment_s
    return move_time(s, STEP_END, i, now_s + first_s)
