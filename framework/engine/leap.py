"""The present step, or run of equal steps, of an instance: launched, looked into while it lasts, cut short, completed.

A leap is a run of decode steps without a decision between them. The context grows by the batch each step and the step
time is affine in it, so step j (from 0) lasts `first + j * increment` and boundaries are sums with a closed form.
"""

from __future__ import annotations

import math

import numpy as np

from framework.codes import CONCURRENT, STEP_END
from framework.compiler.decorators import kernel, unlikely
from framework.engine.kv_cache import available, hold, take, take_at
from framework.engine.mechanisms.attention_overlap import beside_chunks_s
from framework.engine.mechanisms.data_parallel import slowest_rank
from framework.engine.mechanisms.pipeline_parallel import count_bubbles, slowest_s
from framework.engine.mechanisms.sm_sharing import (
    WHOLE,
    contention_s,
    count_busy,
    decode_slowdown,
    streaming,
    with_loads_s,
)
from framework.engine.mechanisms.speculation import draft_s
from framework.engine.queues import tree_update
from framework.engine.state import State
from framework.timing.table import StepTables, base_s, beyond, chunk_s, decode_s, uneven_s

_NEVER = np.iinfo(np.int64).max


@kernel
def boundary_s(s: State, i: int, steps: int) -> float:
    """End of the leap's step number `steps` (from 1)."""
    leap = s.progress[i]
    return leap.start_s + (steps * leap.first_s + leap.increment_s * (steps * (steps - 1) // 2))


@kernel
def steps_passed(s: State, i: int) -> int:
    """Steps of the running leap whose end comes before the present event, or is it."""
    sim, leap = s.sim[0], s.progress[i]
    elapsed_s = sim.now_s - leap.start_s
    slope = 0.5 * leap.increment_s
    linear = leap.first_s - slope
    denominator = linear + math.sqrt(linear * linear + 4.0 * slope * elapsed_s)
    steps = leap.steps
    if 2.0 * elapsed_s < steps * denominator:
        steps = int(2.0 * elapsed_s / denominator)
    included = sim.kind > STEP_END or i <= sim.id
    while steps < leap.steps and _passed(boundary_s(s, i, steps + 1), sim.now_s, included):
        steps += 1
    while steps > 0 and not _passed(boundary_s(s, i, steps), sim.now_s, included):
        steps -= 1
    return steps


@kernel
def _passed(boundary: float, now_s: float, included: bool) -> bool:
    return boundary < now_s or (included and boundary == now_s)


@kernel
def growth(s: State, i: int, from_step: int, steps: int) -> int:
    """New blocks that the running requests need in `steps` decode steps from i's step number `from_step` on."""
    inst, block = s.instances[i], s.sim[0].block_tokens
    if inst.reserve_blocks > 0:
        return 0
    rounds = steps // block
    count = rounds * inst.running
    phase = from_step % block
    for _ in range(steps - rounds * block):
        count += s.arena[inst.growth_at + phase]
        phase += 1
        if phase == block:
            phase = 0
    return count


@kernel
def advance(s: State, i: int, steps: int) -> None:
    """Bring i's counters to where `steps` steps of its leap have ended (and the next, if any, is under way)."""
    inst, leap = s.instances[i], s.progress[i]
    fresh = steps - leap.done
    begun = min(steps + 1, leap.steps)
    if begun > leap.grown:
        step0 = inst.decode_steps - leap.done
        middle_s = 0.5 * (boundary_s(s, i, leap.grown) + boundary_s(s, i, begun - 1))
        take_at(s, i, growth(s, i, step0 + leap.grown, begun - leap.grown), middle_s)
        leap.grown = begun
    if fresh > 0:
        middle_s = 0.5 * (boundary_s(s, i, leap.done + 1) + boundary_s(s, i, steps))
        hold(s, i, fresh * leap.decodes, middle_s)
        leap.done = steps
        inst.decode_steps += fresh
        inst.decode_kv += fresh * leap.decodes


@kernel
def catch_up(s: State) -> None:
    """Make every instance's record show what has passed before the present event: called before a hook looks."""
    for i in range(s.sim[0].instances):
        catch_up_one(s, i)


@kernel
def catch_up_one(s: State, i: int) -> None:
    """Make i's record show what has passed before the present event."""
    inst, leap = s.instances[i], s.progress[i]
    if inst.busy and leap.steps > 1:
        advance(s, i, steps_passed(s, i))


@kernel
def cut_short(s: State, i: int) -> None:
    """End i's leap at its first boundary that has not passed yet."""
    leap = s.progress[i]
    if leap.steps > 1:
        passed = steps_passed(s, i)
        if passed + 1 < leap.steps:
            leap.steps = passed + 1
            leap.event_s = boundary_s(s, i, leap.steps)
            tree_update(s, i)


@kernel
def reserve(s: State, i: int, blocks: int) -> None:
    """Take available blocks for KV that comes from elsewhere; a leap that counted on them ends earlier."""
    leap = s.progress[i]
    take(s, i, blocks)
    inst = s.instances[i]
    if inst.busy and leap.steps > 1:
        ungrown = leap.steps - leap.grown
        if growth(s, i, inst.decode_steps - leap.done + leap.grown, ungrown) > available(s, i):
            cut_short(s, i)


@kernel
def launch(s: State, i: int, decodes: int, prefill_tokens: int) -> None:
    """Start the step that has been formed: `decodes` running requests (all or none) and the chunks noted in the arena.

    If nothing but decoding is going on, the leap goes on to the first decision: a finish, another segment of the step
    time, or the end of the KV memory.
    """
    sim, inst, leap = s.sim[0], s.instances[i], s.progress[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    if decodes == 0:
        leap.depth = 0
    decode_tokens = decodes * (1 + leap.depth)
    context = inst.decode_kv + decode_tokens if decodes > 0 else 0
    leap.sampled = decode_tokens + (_completing(s, i) if prefill_tokens > 0 else 0)
    first_s = base_s(tables, inst.pool, prefill_tokens, decode_tokens, leap.sampled)
    leap.longest_prompt = 0
    chunks_s = 0.0
    if prefill_tokens > 0:
        for j in range(inst.prefilling):
            q = s.requests[s.arena[inst.prefilling_at + j]]
            chunk = s.arena[inst.chunk_at + j]
            if chunk > 0:
                attention_s = chunk_s(tables, inst.pool, q.done, chunk)
                first_s += attention_s
                chunks_s += attention_s
                inst.prefill_square += float((2 * q.done + chunk) * chunk)
                leap.longest_prompt = max(leap.longest_prompt, q.done + chunk)
    value_s, slope_s, knot = 0.0, 0.0, np.inf
    if decodes > 0:
        value_s, slope_s, knot = decode_s(tables, inst.pool, decodes, context)
        if s.timing_rows[inst.pool]["skew_s"] > 0.0:
            value_s += uneven_s(tables, inst.pool, decodes, context, _longest_context(s, i))
    if prefill_tokens > 0 and decodes > 0:
        beside_s = beside_chunks_s(s, i, decodes, context, value_s)
        first_s += beside_s
        first_s -= sim.attention_overlap * min(chunks_s, beside_s)
    else:
        first_s += value_s
    increment_s, most = slope_s * decodes, _NEVER
    if unlikely(inst.ranks > 0):
        first_s, increment_s, most = slowest_rank(s, i, decodes, prefill_tokens)
        knot = np.inf
    leap.widest_tokens = prefill_tokens
    if unlikely(inst.stages > 0) and prefill_tokens > 0:
        first_s = slowest_s(s, i, decodes, context, value_s)
    slowdown = 1.0
    if unlikely(inst.mode == CONCURRENT or streaming(s, i)):
        slowdown = decode_slowdown(s, WHOLE - inst.prefill_percent)
        first_s = slowdown * (first_s + contention_s(s, i, context))
        increment_s *= slowdown
    first_s += inst.swap_bytes / inst.host_bytes_s
    if unlikely(sim.speculates):
        first_s += slowdown * (leap.depth * draft_s(s, i))
    if unlikely(inst.load_s > 0.0):
        first_s = with_loads_s(s, i, first_s)

    leap.steps = 1
    alone = not inst.preempted and not sim.speculates and not streaming(s, i)
    if prefill_tokens == 0 and inst.swap_bytes == 0.0 and alone:
        leap.steps = min(_steps_until_decision(s, i, decodes, context, knot), most)
    inst.swap_bytes = 0.0
    leap.start_s = sim.now_s
    leap.first_s = first_s
    leap.increment_s = increment_s
    leap.done = 0
    leap.grown = 1
    leap.decodes = decodes
    leap.prefill_tokens = prefill_tokens
    leap.context = context
    inst.busy = True
    inst.counted_s = inst.counted_s if streaming(s, i) else sim.now_s
    leap.event_s = boundary_s(s, i, leap.steps)
    if inst.unstamped > 0 and decodes > 0:
        _stamp_first_tokens(s, i, sim.now_s + first_s)
    tree_update(s, i)


@kernel
def _completing(s: State, i: int) -> int:
    """Prompts that the step being formed completes, and so samples a token of."""
    inst = s.instances[i]
    count = 0
    for j in range(inst.prefilling):
        q = s.requests[s.arena[inst.prefilling_at + j]]
        if q.done + s.arena[inst.chunk_at + j] == q.target and q.target != q.cut:
            count += 1
    return count


@kernel
def _longest_context(s: State, i: int) -> int:
    """The longest context that the step being formed reads."""
    inst = s.instances[i]
    ahead = inst.decode_steps + 1 + s.progress[i].depth
    longest = 0
    for j in range(inst.running):
        longest = max(longest, s.requests[s.arena[inst.running_at + j]].offset + ahead)
    return longest


@kernel
def _steps_until_decision(s: State, i: int, decodes: int, context: int, knot: float) -> int:
    inst, leap = s.instances[i], s.progress[i]
    steps = leap.next_finish - inst.decode_steps
    if inst.gate > inst.decode_steps:
        steps = min(steps, inst.gate - inst.decode_steps)
    if knot <= context + float(steps - 1) * decodes:  # the last steps read another segment
        steps = max(1, math.ceil((knot - context) / decodes))
    room = available(s, i)
    if ((steps - 1) // s.sim[0].block_tokens + 1) * decodes > room:
        low, high = 1, steps  # the first step's blocks have been taken
        while low < high:
            middle = (low + high + 1) // 2
            if growth(s, i, inst.decode_steps + 1, middle - 1) <= room:
                low = middle
            else:
                high = middle - 1
        steps = low
    return steps


@kernel
def _stamp_first_tokens(s: State, i: int, time_s: float) -> None:
    inst = s.instances[i]
    for j in range(inst.running):
        q = s.requests[s.arena[inst.running_at + j]]
        if q.unstamped:
            q.unstamped = False
            q.first_token_s = time_s
            q.previous_token_s = time_s
    inst.unstamped = 0


@kernel
def complete(s: State, i: int) -> None:
    """The leap has ended: log it, bring the counters up to its end, add to the totals."""
    sim, inst, leap = s.sim[0], s.instances[i], s.progress[i]
    steps, decodes = leap.steps, leap.decodes
    duration_s = sim.now_s - leap.start_s
    row = s.leaps[sim.leaps]
    row.start_s = leap.start_s
    row.first_s = leap.first_s
    row.increment_s = leap.increment_s
    row.step0 = inst.decode_steps - leap.done
    row.context = leap.context
    row.instance = i
    row.steps = steps
    row.batch = decodes
    row.prefill_tokens = leap.prefill_tokens
    row.depth = leap.depth
    row.stream = 0
    sim.leaps += 1
    if decodes > 0:
        advance(s, i, steps)
        inst.last_decode_end_s = sim.now_s
        inst.decode_tokens += steps * decodes
        inst.context_tokens += float(steps) * leap.context + 0.5 * float(steps) * (steps - 1) * decodes
        inst.batch_s += decodes * duration_s
    if unlikely(inst.stages > 0):
        count_bubbles(s, i, duration_s)
    count_busy(s, i, _beyond_measured(s, i))
    inst.steps += steps
    inst.prefill_tokens += leap.prefill_tokens
    if sim.chosen_share > 0.0:
        tokens = decodes * (1 + leap.depth) + leap.prefill_tokens
        inst.expert_reads += steps * (1.0 - (1.0 - sim.chosen_share) ** tokens)
    sim.steps += steps
    inst.busy = False
    leap.event_s = np.inf


@kernel
def _beyond_measured(s: State, i: int) -> float:
    """How far the last step of the leap that has ended lies past what was measured, as `beyond`."""
    inst, leap = s.instances[i], s.progress[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    context = leap.context + (leap.steps - 1) * leap.decodes
    tokens = leap.widest_tokens + leap.decodes * (1 + leap.depth)
    return beyond(tables, inst.pool, tokens, leap.sampled, leap.decodes, context, leap.longest_prompt)
