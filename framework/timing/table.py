"""The time of one step, from coefficients and curves that both engines read.

A step costs, in seconds,

    base_s + per_prefill_token_s * prefill tokens + per_sequence_s * decodes
    + between_sequence_s * (decodes - drafts) + per_sampled_s * sampled
    + prefill_step_s where there is a chunk + linear(prefill tokens + decodes) + logits(sampled)          `base_s`
    + sum over chunks of prefill_quadratic_s * ((prefix + chunk)^2 - prefix^2)
                         + attention(prefix + chunk) * (1 - prefix^2 / (prefix + chunk)^2)                `chunk_s`
      all of it times waste(chunk) / waste(prefix + chunk), + masked_s * sum over chunks of chunk^2
    + sum over chunks of bounded(prefix + chunk) - bounded(prefix)
    + per_context_token_s * context + decode(decodes, context)                                            `decode_s`
    + skew_s * (decodes * longest - context)                                                              `uneven_s`
      in one kernel with chunks: tiles of decode_rows rows, of decodes that fill the GPU          `decode_with_chunks_s`

but at least what the host needs, which runs concurrently with the kernels:

    host_s + host_sequence_s * decodes + eager_s where prefill tokens + decodes > graph_tokens            `host_s`

Here `context` is summed over the decodes, and `longest` is the longest context of a decode. The functions linear,
logits, attention and bounded (of a whole prompt) and decode are piecewise affine between knots: the last segment
continues beyond the last knot, and an absent one adds exactly 0. Products of dyadic coefficients and token counts are
exact in float64, and so are their sums.

The coefficients and curves are the fields of framework.timing.step_row.StepRow, from which the packed form is derived.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.timing.curves import Curve as Curve
from framework.timing.curves import Surface as Surface
from framework.timing.curves import curve_at, packed_axis, packed_lines, quotient_at, segment_at
from framework.timing.step_row import StepRow as StepRow
from framework.timing.step_row import Timing as Timing

_TYPES = get_type_hints(StepRow)
_NUMBERS = tuple(name for name, kind in _TYPES.items() if kind is float)
_CURVES = tuple(name for name, kind in _TYPES.items() if kind == Curve | None)
_SURFACES = tuple(name for name, kind in _TYPES.items() if kind == Surface | None)
# A packed StepRow: its numbers, and for each curve and surface its offset in `StepTables.data`; curves.py says how
# an axis and its values are stored. For a surface the two axes (batch, context) come first, then values and slopes over
# the context for each batch. A stride of 0: no such table.
ROW = np.dtype(
    [(name, np.float64) for name in _NUMBERS]
    + [(f"{name}_{what}", np.int64) for name in _CURVES for what in ("at", "stride")]
    + [
        (f"{name}_{what}", np.int64)
        for name in _SURFACES
        for what in ("at", "batches", "context_at", "lines_at", "stride")
    ]
)


class StepTables(NamedTuple):
    """Step times of K pools: `rows` of dtype ROW, shape (K,), which point into `data`, float64 of shape (D,)."""

    rows: NDArray[Any]
    data: NDArray[np.float64]


def stack(rows: Sequence[StepRow]) -> StepTables:
    """The tables of K pools, in the order of `rows`. The caller owns the arrays."""
    table, data = _stacked(tuple(rows))
    return StepTables(table.copy(), data.copy())


@functools.lru_cache(maxsize=16)  # runs of a sweep mostly have the same rows
def _stacked(rows: tuple[StepRow, ...]) -> StepTables:
    table = np.zeros(len(rows), ROW)
    data: list[NDArray[np.float64]] = []

    def append(part: NDArray[np.float64]) -> int:
        at = sum(map(len, data))
        data.append(part)
        return at

    for packed, row in zip(table, rows, strict=True):
        for name in _NUMBERS:
            packed[name] = getattr(row, name)
        for name in _CURVES:
            curve: Curve | None = getattr(row, name)
            if curve is not None:
                packed[f"{name}_at"] = append(packed_axis(curve.knots))
                packed[f"{name}_stride"] = len(curve.knots) + 1
                append(packed_lines(curve.knots, np.asarray(curve.values)))
        for name in _SURFACES:
            surface: Surface | None = getattr(row, name)
            if surface is not None:
                packed[f"{name}_at"] = append(packed_axis(surface.batches))
                packed[f"{name}_batches"] = len(surface.batches)
                packed[f"{name}_context_at"] = append(packed_axis(surface.contexts))
                packed[f"{name}_stride"] = len(surface.contexts) + 1
                packed[f"{name}_lines_at"] = append(packed_lines(surface.contexts, np.asarray(surface.values)))
    return StepTables(table, np.concatenate(data) if data else np.zeros(0))


@compiled
def _surface(data: NDArray[np.float64], row: Any, batch: float, context: float) -> tuple[float, float, float]:
    """The decode surface of a row as (value, slope, knot); zeros and inf if there is none."""
    _, next_knot, knot, value, slope = _surface_line(data, row, batch, context)
    return value + slope * (context - knot), slope, next_knot


@compiled
def _surface_line(
    data: NDArray[np.float64], row: Any, batch: float, context: float
) -> tuple[float, float, float, float, float]:
    """The line as (low, high, knot, value, slope): value + slope * (x - knot) at all x with low <= x < high."""
    stride = row["decode_stride"]
    if stride == 0 or batch == 0.0:
        return -np.inf, np.inf, 0.0, 0.0, 0.0
    i, contexts_at = segment_at(data, row["decode_context_at"], context)
    b, batches_at = segment_at(data, row["decode_at"], batch)
    b = min(b, row["decode_batches"] - 2)
    share = (batch - data[batches_at + b]) / (data[batches_at + b + 1] - data[batches_at + b])
    low = row["decode_lines_at"] + 2 * stride * b + i
    high = low + 2 * stride
    value = data[low] + share * (data[high] - data[low])
    slope = data[low + stride] + share * (data[high + stride] - data[low + stride])
    knot = data[contexts_at + i]
    return -np.inf if i == 0 else knot, data[contexts_at + i + 1], knot, value, slope


@compiled
def base_s(tables: StepTables, k: int, prefill_tokens: int, decodes: int, sampled: int, drafts: int = 0) -> float:
    """Seconds of a step in pool k that do not depend on any context.

    The step has `prefill_tokens` over all its chunks and `decodes` sequences that decode; `sampled` of its sequences
    emit a token. Drafted tokens count as sequences; `drafts` is their number.
    """
    row = tables.rows[k]
    time_s: float = row["base_s"] + row["per_prefill_token_s"] * prefill_tokens
    sequences_s: float = row["per_sequence_s"] * decodes + row["between_sequence_s"] * (decodes - drafts)
    time_s += sequences_s + row["per_sampled_s"] * sampled
    time_s += row["prefill_step_s"] * min(prefill_tokens, 1)
    time_s += curve_at(tables.data, row["linear_at"], row["linear_stride"], float(prefill_tokens + decodes))
    return time_s + curve_at(tables.data, row["logits_at"], row["logits_stride"], float(sampled))


@compiled
def chunk_s(tables: StepTables, k: int, prefix: int, chunk: int) -> float:
    """Seconds of prefill attention in pool k of one chunk of `chunk` >= 1 tokens after `prefix` tokens."""
    row = tables.rows[k]
    length = float(prefix + chunk)
    square = length * length - float(prefix) * float(prefix)
    whole_s = curve_at(tables.data, row["attention_at"], row["attention_stride"], length)
    time_s: float = row["prefill_quadratic_s"] * square + whole_s * (square / (length * length))
    masked_s: float = row["masked_s"] * (float(chunk) * float(chunk))
    masked_s += curve_at(tables.data, row["bounded_at"], row["bounded_stride"], length)
    masked_s -= curve_at(tables.data, row["bounded_at"], row["bounded_stride"], float(prefix))
    return time_s * quotient_at(tables.data, row["waste_at"], row["waste_stride"], float(chunk), length) + masked_s


@compiled
def decode_s(tables: StepTables, k: int, decodes: int, context: int) -> tuple[float, float, float]:
    """Decode attention in pool k of `decodes` sequences with that summed context, in tokens.

    Returns (value_s, slope_s, knot): it takes value_s + slope_s * more seconds at context + more, while context + more
    < knot.
    """
    row = tables.rows[k]
    value_s, slope_s, knot = _surface(tables.data, row, float(decodes), float(context))
    per_token_s: float = row["per_context_token_s"]
    return per_token_s * context + value_s, per_token_s + slope_s, knot


@compiled
def decode_line(tables: StepTables, k: int, decodes: int, context: int) -> tuple[float, float, float, float, float]:
    """The same time over all contexts x with low <= x < high; `context` is one of them.

    Returns (low, high, knot, value_s, slope_s): per_context_token_s * x + (value_s + slope_s * (x - knot)) seconds.
    """
    return _surface_line(tables.data, tables.rows[k], float(decodes), float(context))


@compiled
def uneven_s(tables: StepTables, k: int, decodes: int, context: int, longest: int) -> float:
    """Additional seconds in pool k of decodes with unequal contexts; the same for all steps of one batch.

    `context` is summed over the decodes, and `longest` is the longest of them, both in tokens.
    """
    time_s: float = tables.rows[k]["skew_s"] * (decodes * longest - context)
    return time_s


@compiled
def decode_with_chunks_s(tables: StepTables, k: int, decodes: int, context: int, alone_s: float) -> float:
    """Seconds in pool k of decode attention in a step with chunks; it takes `alone_s` in a step without them.

    `decodes` >= 1 sequences have the summed context `context`, in tokens. In one kernel with chunks each takes a whole
    tile for each query head. Of the heads that share keys, the first reads them from memory; the tiles of the others
    run concurrently with that unless those of one head fill the GPU. Half that many leave room for a second head.
    """
    row = tables.rows[k]
    rows = int(row["decode_rows"])
    if rows == 0:
        return alone_s
    tiles_s = tiles_of_decodes_s(tables, k, decodes, context)
    first_s = tiles_s / row["head_group"]  # heads that read from memory
    apart_s = max(alone_s, first_s) + (tiles_s - first_s)
    joint_s: float = max(alone_s, tiles_s)
    share: float = min(max(2.0 - row["decodes_at_once"] / decodes, 0.0), 1.0)
    return joint_s + share * (apart_s - joint_s)


@compiled
def tiles_of_decodes_s(tables: StepTables, k: int, decodes: int, context: int) -> float:
    """Seconds in pool k of the tiles of `decodes` >= 1 sequences with that summed context."""
    row = tables.rows[k]
    rows: float = row["decode_rows"]
    if row["tile_pair_s"] == 0.0:
        return decodes * chunk_s(tables, k, context // decodes, int(rows))
    time_s: float = rows * (row["tile_row_s"] * decodes + row["tile_pair_s"] * context)
    return time_s


@compiled
def host_s(tables: StepTables, k: int, tokens: int, decodes: int) -> float:
    """The least time in pool k of a step of `tokens` tokens, independent of its kernels; `decodes` sequences decode."""
    row = tables.rows[k]
    eager_s: float = row["eager_s"] if tokens > row["graph_tokens"] else 0.0
    time_s: float = row["host_s"] + row["host_sequence_s"] * decodes + eager_s
    return time_s


@compiled
def extrapolation(
    tables: StepTables, k: int, tokens: int, sampled: int, decodes: int, context: float, length: int
) -> float:
    """How far a step exceeds the measured range of pool k: the largest ratio to a limit, at most 1 within it.

    The step has `tokens` tokens, of which `sampled` sequences emit one, and `decodes` with that summed context; its
    longest prompt has `length` tokens up to the end of its chunk.
    """
    row = tables.rows[k]
    prefill: float = max(tokens / row["tokens_limit"], length / row["length_limit"])
    return max(prefill, sampled / row["sampled_limit"], context / decode_limit(tables, k, decodes))


@compiled
def decode_limit(tables: StepTables, k: int, decodes: int) -> float:
    """The largest measured summed context of `decodes` decodes in pool k, in tokens; inf: no limit."""
    row = tables.rows[k]
    limit: float = curve_at(tables.data, row["decode_limits_at"], row["decode_limits_stride"], float(decodes))
    return np.inf if limit == 0.0 else limit


def step_s(
    tables: StepTables,
    k: int,
    prefixes: Sequence[int],
    chunks: Sequence[int],
    decodes: int,
    context: int,
    sampled: int | None = None,
    longest: int | None = None,
) -> float:
    """Seconds of a whole step in pool k: chunk i of `chunks[i]` tokens after `prefixes[i]`, and `decodes` sequences.

    `context` is summed over the decodes, in tokens. `sampled` sequences emit a token; by default all decodes and all
    chunks do. `longest` is the longest context; by default all are equal.
    """
    emitting = decodes + len(chunks) if sampled is None else sampled
    time_s = base_s(tables, k, sum(chunks), decodes, emitting)
    for prefix, chunk in zip(prefixes, chunks, strict=True):
        time_s += chunk_s(tables, k, prefix, chunk)
    decoding_s = decode_s(tables, k, decodes, context)[0]
    if longest is not None:
        decoding_s += uneven_s(tables, k, decodes, context, longest)
    if decodes and chunks:
        decoding_s = decode_with_chunks_s(tables, k, decodes, context, decoding_s)
    return float(max(time_s + decoding_s, host_s(tables, k, sum(chunks) + decodes, decodes)))
