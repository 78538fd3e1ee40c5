"""Seconds of the step in which the instances of a span compute a request together."""

from __future__ import annotations

import math

from framework.compiler.decorators import inner
from framework.engine.kv.spans import CHUNK, COUNT, at_span, instance_of
from framework.engine.memory.state import State
from framework.timing.table import StepTables, base_s, chunk_s, host_s

_PER_SECOND = 2.0**30  # times are multiples of a part of a second, so that they remain short sums for any parts


@inner
def part_of(tokens: int, count: int) -> int:
    """The most tokens that one of `count` instances computes."""
    return -(-tokens // count)


@inner
def span_step_s(s: State, number: int, tokens: int) -> float:
    """Seconds in which a span computes `tokens` tokens, by the step times of its first instance."""
    row, lead = at_span(s, number), s.instances[instance_of(s, number, 0)]
    count, chunk = s.lists[row + COUNT], s.lists[row + CHUNK]
    slowness, bandwidth = lead.slowness, lead.bandwidth_bytes_s
    for k in range(1, count):
        other = s.instances[instance_of(s, number, k)]
        slowness, bandwidth = max(slowness, other.slowness), min(bandwidth, other.bandwidth_bytes_s)
    tables = StepTables(s.timing_rows, s.timing_data)
    if chunk > 0:
        time_s = _pipeline_s(s, lead.row, tokens, chunk, count)
    else:
        time_s = base_s(tables, lead.row, part_of(tokens, count), 0, 1)
        own_s = chunk_s(tables, lead.row, 0, tokens) / count
        time_s += max(own_s, _round_s(s, tokens, count, bandwidth))
    time_s = max(time_s, host_s(tables, lead.row, part_of(tokens, count), 0)) * slowness
    return math.floor(time_s * _PER_SECOND + 0.5) / _PER_SECOND


@inner
def _round_s(s: State, tokens: int, count: int, bandwidth_bytes_s: float) -> float:
    """Seconds in which the KV of each of `count` instances has been at all others, layer by layer."""
    part_s = tokens * s.options.copy_bytes_per_token / count / bandwidth_bytes_s
    return (count - 1) * (s.options.latency_s / s.options.layer_share + part_s)


@inner
def _pipeline_s(s: State, pool: int, tokens: int, chunk: int, count: int) -> float:
    """Seconds in which chunks have passed `count` instances, each with an equal part of the layers."""
    tables = StepTables(s.timing_rows, s.timing_data)
    sum_s, longest_s, done = 0.0, 0.0, 0
    while done < tokens:
        size = min(chunk, tokens - done)
        time_s = base_s(tables, pool, size, 0, 1 if done + size == tokens else 0) + chunk_s(tables, pool, done, size)
        sum_s += time_s
        longest_s = max(longest_s, time_s)
        done += size
    return (sum_s + (count - 1) * longest_s) / count + (count - 1) * s.options.latency_s
