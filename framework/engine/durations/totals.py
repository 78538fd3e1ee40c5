"""What steps that have ended add to the step log and to their instance's totals."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.durations.leap import advance
from framework.engine.memory.state import State
from framework.engine.parallel.pipeline_parallel import count_bubbles, count_reads
from framework.engine.parallel.sm_sharing import count_busy
from framework.timing.table import StepTables, extrapolation


@inner
def count_steps(s: State, i: int, end_s: float) -> None:
    """Add the steps of i's leap, the last of which ended at `end_s`, to the step log and to the totals."""
    sim, inst, step = s.sim, s.instances[i], s.step[i]
    steps, decodes = step.steps, step.decodes
    duration_s = end_s - step.start_s
    write_row(s, i)
    if decodes > 0:
        advance(s, i, steps, steps)
        inst.last_decode_end_s = end_s
        inst.decode_tokens += steps * decodes
        context = float(steps) * step.context + 0.5 * float(steps) * (steps - 1) * decodes
        inst.context_tokens += context
        inst.decode_pairs += context * (1 + step.depth)
        inst.batch_s += decodes * duration_s
    if unlikely(inst.group > 0):
        inst.bubble_s += steps * step.bubble_s + step.bubble_increment_s * (steps * (steps - 1) // 2)
    if unlikely(inst.stages > 0):
        count_bubbles(s, i, duration_s)
    count_busy(s, i, _extrapolation(s, i))
    inst.steps += steps
    if step.prefill_tokens > 0:
        inst.prefill_tokens += step.prefill_tokens
        inst.prefill_square += step.square
    count_reads(s, i)
    sim.steps += steps


@inner
def write_row(s: State, i: int) -> None:
    """The leap's row of the step log."""
    step, row = s.step[i], s.step_log[s.sim.step_rows]
    row.start_s = step.start_s
    row.first_s = step.first_s
    row.increment_s = step.increment_s
    row.step0 = s.instances[i].decode_steps - step.done
    row.context = step.context
    row.instance = i
    row.steps = step.steps
    row.batch = step.decodes
    row.prefill_tokens = step.prefill_tokens
    row.depth = step.depth
    row.stream = 0
    s.sim.step_rows += 1


@inner
def _extrapolation(s: State, i: int) -> float:
    """How far the last step of the ended leap lies past the measured range, as the ratio `extrapolation`."""
    inst, step = s.instances[i], s.step[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    context = step.context + (step.steps - 1) * step.decodes
    tokens = step.widest_tokens + step.decodes * (1 + step.depth)
    return extrapolation(tables, inst.row, tokens, step.sampled, step.decodes, context, step.longest_prompt)


@inner
def count_fixed_depth(s: State, i: int) -> None:
    """Add the totals of a run of fixed-depth steps of i, which is over; they follow from the number of steps."""
    sim, inst, step = s.sim, s.instances[i], s.step[i]
    steps = inst.decode_steps - step.fixed_from
    emitted = inst.decode_kv - step.fixed_kv
    inst.steps += steps
    inst.weight_passes += steps
    inst.decode_tokens += emitted
    inst.accepted_tokens += emitted - steps * step.decodes
    inst.drafted_tokens += steps * step.decodes * step.depth
    inst.decode_pairs += (inst.context_tokens - step.fixed_context) * (1 + step.depth)
    sim.steps += steps
    step.fixed_depth = False
