"""Seconds of a step, and their growth over the following steps. Each optional mechanism adds one line."""

from __future__ import annotations

import math

import numpy as np

from framework.codes import CONCURRENT
from framework.compiler.decorators import inner, unlikely
from framework.engine.durations.speculation import draft_after_s, draft_s, even_s
from framework.engine.kv.spans import kv_elsewhere
from framework.engine.memory.state import State
from framework.engine.parallel.data_parallel import slowest_rank
from framework.engine.parallel.pipeline_parallel import slowest_s
from framework.engine.parallel.sm_sharing import WHOLE, contention_s, decode_slowdown, streaming, with_loads_s
from framework.timing.table import (
    StepTables,
    base_s,
    chunk_s,
    decode_limit,
    decode_s,
    decode_with_chunks_s,
    extrapolation,
    host_s,
    uneven_s,
)

_NEVER = np.iinfo(np.int64).max


@inner
def step_duration(s: State, i: int, decodes: int, prefill_tokens: int) -> tuple[float, float, int]:
    """Seconds of the step just formed, seconds added by each further step, and for how many steps this holds.

    The step has `decodes` running requests (all or none) and the chunks listed in the prefilling order.
    """
    inst, step = s.instances[i], s.step[i]
    value_s, slope_s, straight = _decode_attention(s, i, decodes)
    first_s = _of_even_parts(s, i, decodes, prefill_tokens, value_s)
    increment_s = slope_s * decodes
    if unlikely(inst.ranks > 0):
        first_s, increment_s, straight = slowest_rank(s, i, decodes, prefill_tokens)
    if unlikely(inst.stages > 0) and prefill_tokens > 0:
        first_s = slowest_s(s, i, decodes, step.context, value_s)
    tokens = decodes * (1 + step.depth) + prefill_tokens
    least_s = host_s(StepTables(s.timing_rows, s.timing_data), inst.row, tokens, decodes)
    if unlikely(first_s < least_s):
        hidden = (least_s - first_s) / increment_s if increment_s > 0.0 else np.inf
        if hidden < straight:
            straight = int(hidden) + 1
        first_s, increment_s = least_s, 0.0
    elif unlikely(increment_s < 0.0):  # Beyond the measured range, attention may seem to fall with the context.
        straight = min(straight, int((first_s - least_s) / -increment_s) + 1)
    slowdown = inst.slowness
    if unlikely(inst.mode == CONCURRENT or streaming(s, i)):
        slowdown *= _slowdown(s, i)
        first_s += contention_s(s, i, step.context)
    if unlikely(slowdown != 1.0):
        first_s *= slowdown
        increment_s *= slowdown
    first_s += inst.swap_bytes / inst.host_bytes_s
    if unlikely(s.options.speculates):
        first_s += slowdown * (step.depth * draft_s(s, i, decodes, step.context - decodes * (1 + step.depth)))
    if unlikely(inst.load_s > 0.0):
        first_s = with_loads_s(s, i, first_s)
    if unlikely(inst.lending > 0) and decodes > 0:
        first_s += s.options.exchange_s
    return first_s, increment_s, straight


@inner
def note_even_parts(s: State, i: int) -> None:
    """Store the parts of the time that all decode-only steps of i share, independent of contexts."""
    inst, step = s.instances[i], s.step[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    decodes, tokens = step.decodes, step.decodes * (1 + step.depth)
    step.sampled = tokens
    step.even_s = even_s(s, i, decodes, step.depth)
    step.draft_even_s = even_s(s, i, decodes, 0)
    step.least_s = host_s(tables, inst.row, tokens, decodes)
    step.measured_ratio = extrapolation(tables, inst.row, tokens, tokens, decodes, 0.0, 0)
    step.measured_context = decode_limit(tables, inst.row, decodes)
    step.ahead_s = -1.0


@inner
def look_ahead(s: State, i: int, context: int) -> None:
    """Note the first two results of `step_duration` for a step whose even parts `note_even_parts` has noted."""
    inst, step = s.instances[i], s.step[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    decodes, tokens = step.decodes, step.decodes * (1 + step.depth)
    value_s, slope_s, _ = decode_s(tables, inst.row, decodes, context)
    if unlikely(s.timing_rows[inst.row]["skew_s"] > 0.0):
        # These are the same for all contexts.
        value_s += uneven_s(tables, inst.row, decodes, step.context, _longest_context(s, i))
    first_s, increment_s = step.even_s + value_s, slope_s * decodes
    if unlikely(first_s < step.least_s):
        first_s, increment_s = step.least_s, 0.0
    slowdown = 1.0
    if inst.mode == CONCURRENT or streaming(s, i):
        slowdown = _slowdown(s, i)
        first_s = slowdown * (first_s + contention_s(s, i, context))
        increment_s *= slowdown
    if s.options.speculates:
        first_s += slowdown * (step.depth * draft_after_s(s, i, decodes, context - tokens, step.draft_even_s))
    step.ahead_s = first_s
    step.ahead_increment_s = increment_s


@inner
def _slowdown(s: State, i: int) -> float:
    """Slowdown of i's decodes on their share of the SMs, relative to all SMs."""
    return decode_slowdown(s, WHOLE - s.instances[i].prefill_percent)


@inner
def _decode_attention(s: State, i: int, decodes: int) -> tuple[float, float, int]:
    """Seconds of the decodes' attention, seconds for each further token of context, and steps for which this holds."""
    if decodes == 0:
        return 0.0, 0.0, _NEVER
    inst, step = s.instances[i], s.step[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    value_s, slope_s, knot = decode_s(tables, inst.row, decodes, step.context)
    if s.timing_rows[inst.row]["skew_s"] > 0.0:
        value_s += uneven_s(tables, inst.row, decodes, step.context - inst.guests, _longest_context(s, i))
    straight = _NEVER
    if knot < np.inf:
        straight = max(1, math.ceil((knot - step.context) / decodes))
    return value_s, slope_s, straight


@inner
def _longest_context(s: State, i: int) -> int:
    """The longest context that the step being formed reads."""
    inst = s.instances[i]
    ahead = inst.decode_steps + 1 + s.step[i].depth
    longest = 0
    for j in range(inst.running - inst.paused):
        r = s.lists[inst.running_at + j]
        elsewhere = kv_elsewhere(s, r) if unlikely(s.options.spans) else 0
        longest = max(longest, s.requests[r].offset + ahead - elsewhere)
    return longest


@inner
def _of_even_parts(s: State, i: int, decodes: int, prefill_tokens: int, decode_attention_s: float) -> float:
    """Seconds of the step if all ranks and stages have equal parts of it; also notes the sums over its chunks."""
    inst, step = s.instances[i], s.step[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    decode_tokens = decodes * (1 + step.depth)
    step.sampled = decode_tokens + (_completing(s, i) if prefill_tokens > 0 else 0)
    step.longest_prompt = 0
    time_s = base_s(tables, inst.row, prefill_tokens, decode_tokens, step.sampled, decode_tokens - decodes)
    if prefill_tokens == 0:
        return time_s + decode_attention_s
    chunks_s, step.square = 0.0, 0.0
    for j in range(inst.prefilling):
        q = s.requests[s.lists[inst.prefilling_at + j]]
        chunk = s.lists[inst.chunk_at + j]
        if chunk > 0:
            attention_s = chunk_s(tables, inst.row, q.prefilled, chunk)
            time_s += attention_s
            chunks_s += attention_s
            step.square += float((2 * q.prefilled + chunk) * chunk)
            step.longest_prompt = max(step.longest_prompt, q.prefilled + chunk)
    if decodes == 0:
        return time_s
    joint_s = decode_with_chunks_s(tables, inst.row, decodes, step.context, decode_attention_s)
    return time_s + joint_s - s.options.attention_overlap * min(chunks_s, joint_s)


@inner
def _completing(s: State, i: int) -> int:
    """The number of prompts that the step being formed completes; the step samples one token for each."""
    inst = s.instances[i]
    count = 0
    for j in range(inst.prefilling):
        q = s.requests[s.lists[inst.prefilling_at + j]]
        done = q.prefilled + s.lists[inst.chunk_at + j] == q.prefill_until
        if done and q.prefill_until != q.split:
            count += 1
    return count
