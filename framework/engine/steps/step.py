"""The step of an instance: its start, once it has been formed, and what is written down when it ends."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.durations.duration import step_duration
from framework.engine.durations.leap import advance, begin_leap, end_leap, steps_until_decision
from framework.engine.memory.state import State
from framework.engine.parallel.pipeline_parallel import count_bubbles, count_reads
from framework.engine.parallel.sm_sharing import count_busy, streaming
from framework.engine.requests.pausing import paused_kv
from framework.timing.table import StepTables, extrapolation


@inner
def start_step(s: State, i: int, decodes: int, prefill_tokens: int) -> None:
    """Start the step that has been formed: `decodes` running requests, all that are not paused or none, and the chunks
    that are noted.

    If nothing but decoding is going on, its leap goes on to the first decision.
    """
    inst, step = s.instances[i], s.step[i]
    if decodes == 0:
        step.depth = 0
    step.decodes = decodes
    step.prefill_tokens = prefill_tokens
    step.widest_tokens = prefill_tokens
    step.context = inst.decode_kv - paused_kv(s, i) + decodes * (1 + step.depth) if decodes > 0 else 0
    step.start_s = s.sim.now_s
    step.repeats = False
    step.first_s, step.increment_s, straight = step_duration(s, i, decodes, prefill_tokens)
    steps = 1
    if prefill_tokens == 0 and _may_leap(s, i):
        steps = min(steps_until_decision(s, i), straight)
    if unlikely(inst.group > 0) and step.first_s == 0.0:  # which would have ended before those of its group are formed
        steps = 1
    inst.swap_bytes = 0.0
    inst.counted_s = inst.counted_s if streaming(s, i) else s.sim.now_s
    inst.busy = True
    begin_leap(s, i, steps)
    if inst.first_tokens_pending > 0 and decodes > 0 and inst.group == 0:  # of a group not before all ends are known
        stamp_first_tokens(s, i, step.start_s + step.first_s)


@inner
def _may_leap(s: State, i: int) -> bool:
    """Whether steps of decodes alone may follow each other without an event between them."""
    inst = s.instances[i]
    return inst.swap_bytes == 0.0 and not inst.preempted and not s.options.speculates and not streaming(s, i)


@inner
def stamp_first_tokens(s: State, i: int, time_s: float) -> None:
    """Stamp the first token of those that decode in the present step of i and have none."""
    inst = s.instances[i]
    for j in range(inst.running - inst.paused):
        q = s.requests[s.lists[inst.running_at + j]]
        if q.first_token_pending:
            stamp_first_token(s, s.lists[inst.running_at + j], time_s)
    inst.first_tokens_pending = 0


@inner
def stamp_first_token(s: State, r: int, time_s: float) -> None:
    """Token 1 of r, which was sent to where it decodes, reaches its client at that time."""
    q = s.requests[r]
    q.first_token_pending = False
    q.first_token_s = time_s
    q.previous_token_s = time_s


@inner
def complete_step(s: State, i: int) -> None:
    """The leap has ended: write it to the step log, bring the counters up to its end, add to the totals."""
    count_steps(s, i, s.sim.now_s)
    s.instances[i].busy = False
    end_leap(s, i)


@inner
def count_steps(s: State, i: int, end_s: float) -> None:
    """Write the steps of i's leap, the last of which ended at `end_s`, to the step log, and add them to the totals."""
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
    """How far the last step of the leap that has ended lies past what was measured, as `extrapolation`."""
    inst, step = s.instances[i], s.step[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    context = step.context + (step.steps - 1) * step.decodes
    tokens = step.widest_tokens + step.decodes * (1 + step.depth)
    return extrapolation(tables, inst.pool, tokens, step.sampled, step.decodes, context, step.longest_prompt)
