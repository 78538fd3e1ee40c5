"""Micro-batches of an instance with pipeline stages: what each holds of a step, and the step's duration.

With S stages a step is one round of S micro-batches, and none of them may start again before it has left the last
stage. Stages are equal, so the round lasts as long as its slowest micro-batch takes through all stages (a cyclic flow
shop with proportionate times). A step time is that of S equal micro-batches, so the round takes as long as with S
copies of the slowest one. Unequal ones leave bubbles (Agrawal et al., OSDI 2024, section 3.3).
"""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.memory.state import State
from framework.timing.table import StepTables, base_s, chunk_s, decode_with_chunks_s


@inner
def begin_step(s: State, i: int) -> None:
    """Begin a step: no chunk has a micro-batch yet."""
    if unlikely(s.instances[i].stages > 0):
        _clear(s, i)


@inner
def share(s: State, i: int, tokens: int) -> int:
    """The share of one micro-batch when the step may have `tokens` tokens."""
    stages = s.instances[i].stages
    if unlikely(stages > 0):
        return -(-tokens // stages)
    return tokens


@inner
def load_after(s: State, i: int, load: int, chunk: int) -> int:
    """Deal out a chunk; return the prefill tokens of the next chunk's micro-batch, which were `load` before."""
    if unlikely(s.instances[i].stages > 0):
        return _deal(s, i, chunk)
    return load + chunk


@inner
def _clear(s: State, i: int) -> None:
    inst = s.instances[i]
    for m in range(inst.stages):
        s.lists[inst.loads_at + m] = 0


@inner
def _deal(s: State, i: int, chunk: int) -> int:
    s.lists[s.instances[i].loads_at + _lightest(s, i)] += chunk
    return s.lists[s.instances[i].loads_at + _lightest(s, i)]


@inner
def _lightest(s: State, i: int) -> int:
    """The micro-batch with the fewest prefill tokens, the first of equal ones."""
    inst = s.instances[i]
    lightest = 0
    for m in range(1, inst.stages):
        if s.lists[inst.loads_at + m] < s.lists[inst.loads_at + lightest]:
            lightest = m
    return lightest


@inner
def slowest_s(s: State, i: int, decodes: int, context: int, decode_s: float) -> float:
    """Seconds of the step with chunks being formed; its decodes, whose attention takes `decode_s`, are dealt evenly.

    Notes the step's bubbles, and the size that the check against measured ranges sees: as if all micro-batches were the
    slowest.
    """
    inst, step = s.instances[i], s.step[i]
    _note_micro_batches(s, i)
    slowest, sum_s, filled = 0.0, 0.0, 0
    tables = StepTables(s.timing_rows, s.timing_data)
    joint_s = decode_with_chunks_s(tables, inst.row, decodes, context, decode_s) if decodes > 0 else 0.0
    for m in range(inst.stages):
        if decodes == 0 and s.lists[inst.loads_at + m] == 0:
            continue
        attention_s = joint_s if s.lists[inst.loads_at + m] > 0 else decode_s
        time_s, sampled = _like_micro_batch(s, i, m, decodes, attention_s)
        sum_s += time_s
        filled += 1
        if time_s > slowest:
            slowest = time_s
            step.sampled = sampled
            step.widest_tokens = inst.stages * s.lists[inst.loads_at + m]
    step.bubble_s = inst.stages * slowest - sum_s
    step.micro_batches = filled
    return slowest


@inner
def _note_micro_batches(s: State, i: int) -> None:
    """Deal the chunks out again, in the same order, and note the micro-batch of each."""
    inst = s.instances[i]
    _clear(s, i)
    for j in range(inst.prefilling):
        if s.lists[inst.chunk_at + j] > 0:
            s.lists[inst.dealt_at + j] = _lightest(s, i)
            _deal(s, i, s.lists[inst.chunk_at + j])


@inner
def _like_micro_batch(s: State, i: int, m: int, decodes: int, decode_s: float) -> tuple[float, int]:
    """Seconds of the step, and sequences that emit, if all micro-batches had the chunks of number m."""
    inst = s.instances[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    sampled = tokens = decodes * (1 + s.step[i].depth)
    chunks_s = 0.0
    for j in range(inst.prefilling):
        q = s.requests[s.lists[inst.prefilling_at + j]]
        chunk = s.lists[inst.chunk_at + j]
        if chunk > 0 and s.lists[inst.dealt_at + j] == m:
            chunks_s += inst.stages * chunk_s(tables, inst.row, q.prefilled, chunk)
            if q.prefilled + chunk == q.prefill_until and q.prefill_until != q.split:
                sampled += inst.stages
    time_s = base_s(tables, inst.row, inst.stages * s.lists[inst.loads_at + m], tokens, sampled, tokens - decodes)
    time_s += chunks_s + decode_s
    if s.lists[inst.loads_at + m] > 0 and decodes > 0:
        time_s -= s.options.attention_overlap * min(chunks_s, decode_s)
    return time_s, sampled


@inner
def count_bubbles(s: State, i: int, duration_s: float) -> None:
    """Add the time that stages waited in an ended step, or leap, of i, summed over stages."""
    inst, step = s.instances[i], s.step[i]
    if step.prefill_tokens > 0:
        inst.bubble_s += step.bubble_s
    elif step.decodes < inst.stages:
        inst.bubble_s += (inst.stages - step.decodes) * duration_s


@inner
def count_reads(s: State, i: int) -> None:
    """Count the reads of i's ended step or leap: each micro-batch reads the weights, and experts for its tokens."""
    inst, step = s.instances[i], s.step[i]
    batches = 1
    if unlikely(inst.stages > 0):
        batches = step.micro_batches if step.prefill_tokens > 0 else min(inst.stages, step.decodes)
    inst.weight_passes += step.steps * batches
    if s.options.chosen_share > 0.0:
        ranks = max(1, inst.group)  # each rank has a part of the experts, and all parts count as equal
        tokens = ranks * (step.decodes * (1 + step.depth) + step.prefill_tokens)
        each, larger = tokens // batches, tokens % batches
        unchosen = 1.0 - s.options.chosen_share
        reads = (batches - larger) * (1.0 - unchosen**each) + larger * (1.0 - unchosen ** (each + 1))
        inst.expert_reads += step.steps * reads / ranks
