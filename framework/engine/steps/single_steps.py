"""Runs of single steps: decode steps that end and start again with nothing between them, each a row of the log.

A leap needs step durations that follow a known line. They do not if the steps draft tokens, or if a prefill step runs
concurrently. The end of such a step and its instance's turn to schedule are still processed together here, if they are
the next two events. For that, no event of another kind may be due up to that end, no other step may end at that time,
and neither event may take a decision.
"""

from __future__ import annotations

import numpy as np

from framework.codes import STEP_END
from framework.compiler.decorators import inner, unlikely
from framework.engine.durations.duration import look_ahead, note_even_parts
from framework.engine.durations.leap import end_leap
from framework.engine.durations.speculation import blocks_of_next_step, choose_depth, emit_accepted
from framework.engine.durations.totals import write_row
from framework.engine.events.order import next_arrival
from framework.engine.kv.kv_cache import allocate
from framework.engine.memory.kv_blocks import add_kv_tokens, available
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import first_due, first_time_of_others, set_time, time_of
from framework.engine.parallel.pipeline_parallel import count_reads
from framework.engine.parallel.sm_sharing import count_busy, streaming
from framework.engine.steps.drafted_steps import note_fixed_depth, pass_fixed_depth_steps
from framework.engine.steps.step_end import finish_step


@inner
def finish_steps(s: State, i: int, stop: int) -> None:
    """Process the end of i's step and the run of single steps that follows, up to `stop` events in all."""
    if unlikely(s.options.speculates or s.sim.prefill_end_s < np.inf) and s.sim.woken == 0:
        i = _pass_single_steps(s, i, stop)
    if i >= 0:
        finish_step(s, i)


@inner
def _pass_single_steps(s: State, i: int, stop: int) -> int:
    """Let steps end and start again, beginning with i's.

    Returns the instance whose step ended and which does not continue at once; -1: none.
    """
    sim = s.sim
    others_s = _next_other_s(s)
    while sim.now_s < min(others_s, first_time_of_others(s, STEP_END, i)) and _repeats(s, i):
        if s.step[i].fixed_depth:
            i = pass_fixed_depth_steps(s, i, others_s, stop)
            if i < 0 or s.step[i].fixed_depth or not s.instances[i].busy:
                break
            continue
        growth = 0 if s.options.speculates else _growth_without_drafts(s, i)
        if growth < 0:
            break
        _complete(s, i)
        if s.options.speculates:
            growth = _growth_with_drafts(s, i)
        if growth < 0:
            s.instances[i].busy = False
            end_leap(s, i)
            break
        _start_again(s, i, growth)
        i = first_due(s, STEP_END)
        end_s = time_of(s, STEP_END, i)
        if end_s >= others_s or sim.events >= stop or sim.step_rows + 2 > s.options.step_log_rows:
            return -1
        if end_s > sim.now_s:
            sim.scheduled = -1
        sim.now_s = end_s
        sim.kind, sim.id = STEP_END, i
        sim.events += 1
        sim.quiet_ticks = 0
    return i


@inner
def _next_other_s(s: State) -> float:
    """Time of the next event that is not the end of a step; no instance has yet to schedule."""
    sim = s.sim
    time_s = min(sim.prefill_end_s, sim.change_s, sim.mark_s)
    if sim.heap_size > 0:
        time_s = min(time_s, s.requests[s.lists[s.options.heap_at]].event_s)
    r = next_arrival(s)
    if r >= 0:
        time_s = min(time_s, s.requests[r].event_s)
    if s.options.tick_s > 0.0:
        time_s = min(time_s, sim.next_tick * s.options.tick_s)
    return time_s


@inner
def _repeats(s: State, i: int) -> bool:
    """Whether i's next step may have the same requests as the ended one, if none of them ends."""
    return not s.instances[i].changed and bool(s.step[i].repeats or _may_repeat(s, i))


@inner
def _growth_without_drafts(s: State, i: int) -> int:
    """Blocks that i takes for its next step if that has the same requests, -1: it does not."""
    inst, step = s.instances[i], s.step[i]
    ended = inst.decode_steps + 1
    growth = s.lists[inst.growth_at + ended % s.options.block_tokens]
    return growth if ended < step.next_finish and growth <= available(s, i) else -1


@inner
def _may_repeat(s: State, i: int) -> bool:
    """Whether i's ended step is a single step of decodes, and nothing else waits for the next one."""
    inst, step = s.instances[i], s.step[i]
    if s.options.asynchronous or s.options.by_admission or s.options.reserves or inst.ranks > 0 or inst.stages > 0:
        return False
    if inst.group > 0 or inst.slowness != 1.0:
        return False
    if step.steps != 1 or step.prefill_tokens > 0 or step.decodes != inst.running or inst.paused + inst.swapped > 0:
        return False
    if inst.computed > 0 or (s.options.pulls and inst.incoming_head >= 0):
        return False
    if (
        inst.switching
        or inst.joining_head >= 0
        or inst.draining_role != inst.next_role
        or inst.first_tokens_pending > 0
    ):
        return False
    if not streaming(s, i) and (not s.options.speculates or inst.waiting_root >= 0 or inst.prefilling > 0):
        return False
    note_even_parts(s, i)
    step.repeats = True
    note_fixed_depth(s, i)
    return True


@inner
def _growth_with_drafts(s: State, i: int) -> int:
    """Emit the accepted drafts of i's ended step; return the blocks of the next step, -1: it has other requests."""
    inst, step = s.instances[i], s.step[i]
    growth = emit_accepted(s, i)
    if inst.decode_steps >= step.next_finish:
        return -1
    depth = choose_depth(s, i)
    if unlikely(depth != step.depth):
        step.depth = depth
        note_even_parts(s, i)
        growth = blocks_of_next_step(s, i)
    return growth if growth <= available(s, i) else -1


@inner
def _complete(s: State, i: int) -> None:
    """Write i's single step of decodes alone to the log, and count it."""
    sim, inst, step = s.sim, s.instances[i], s.step[i]
    decodes, context = step.decodes, float(step.context)
    write_row(s, i)
    add_kv_tokens(s, i, decodes, sim.now_s)
    inst.decode_steps += 1
    inst.decode_kv += decodes
    inst.last_decode_end_s = sim.now_s
    inst.decode_tokens += decodes
    inst.context_tokens += context
    inst.decode_pairs += context * (1 + step.depth)
    inst.batch_s += decodes * (sim.now_s - step.start_s)
    count_busy(s, i, max(step.measured_ratio, context / step.measured_context))
    inst.steps += 1
    if unlikely(s.options.chosen_share > 0.0):
        count_reads(s, i)
    else:
        inst.weight_passes += 1
    sim.steps += 1


@inner
def _start_again(s: State, i: int, growth: int) -> None:
    """Start i's next step, of the same requests, with `growth` blocks."""
    sim, inst, step = s.sim, s.instances[i], s.step[i]
    sim.scheduled = max(sim.scheduled, i)
    allocate(s, i, growth)
    step.context = inst.decode_kv + step.decodes * (1 + step.depth)
    step.start_s = sim.now_s
    if s.options.speculates or step.ahead_s < 0.0:
        look_ahead(s, i, step.context)
    step.first_s = step.ahead_s
    step.increment_s = step.ahead_increment_s
    set_time(s, STEP_END, i, sim.now_s + step.first_s)
    if not s.options.speculates:
        look_ahead(s, i, step.context + step.decodes)
