"""The time of one step, from a table of coefficients and knots that engine and reference read alike.

A step costs

    base_s + per_prefill_token_s * prefill tokens + per_sequence_s * decodes + per_sampled_s * sampled
    + prefill_step_s where there is a chunk + linear(prefill tokens + decodes) + logits(sampled)          `base_s`
    + sum over chunks of prefill_quadratic_s * ((prefix + chunk)^2 - prefix^2)
                         + attention(prefix + chunk) * (1 - prefix^2 / (prefix + chunk)^2)                `chunk_s`
      all of it times waste(chunk) / waste(prefix + chunk), + masked_s * sum over chunks of chunk^2
    + per_context_token_s * context + decode(decodes, context)                                            `decode_s`
    + skew_s * (decodes * longest - context)                                                              `uneven_s`

where `context` is summed over the decodes and `longest` is the longest one's, and linear, logits, attention (of a whole
prompt) and decode are piecewise affine between knots: the last segment goes on beyond the last knot, and an absent
table adds exactly nothing. Products of dyadic coefficients and token counts are exact in float64, and so are their
sums.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism

_COEFFICIENTS = (
    *("base_s", "per_prefill_token_s", "prefill_quadratic_s"),
    *("per_sequence_s", "per_context_token_s", "per_sampled_s"),
    *("prefill_step_s", "skew_s", "masked_s"),
)
_LIMITS = ("tokens_limit", "length_limit", "sampled_limit")
_CURVES = ("linear", "attention", "logits", "decode_limits", "waste")
_SHIFT = 49  # a bucket of a lookup is an eighth of an octave: exponent and three bits of the mantissa
_FIRST_BUCKET = 1023 << 3  # of 1.0
# An axis of n knots lies in `data` as a count of buckets, for each bucket the segment that holds its lower edge, the
# knots, and an infinite one. `stride` = n + 1 values and as many slopes follow. For the decode surface the two axes
# (batch, context) come first, then values and slopes over context for each batch knot. A stride of 0: no such table.
ROW = np.dtype(
    [(name, np.float64) for name in (*_COEFFICIENTS, *_LIMITS)]
    + [(f"{name}_{what}", np.int64) for name in _CURVES for what in ("at", "stride")]
    + [(f"decode_{what}", np.int64) for what in ("at", "batches", "context_at", "lines_at", "stride")]
)


class StepTables(NamedTuple):
    """Step times of K pools: `rows` of dtype ROW, shape (K,), which point into `data`, float64 of shape (D,)."""

    rows: NDArray[Any]
    data: NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A piecewise affine function: `values[i]` seconds at `knots[i]`."""

    knots: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_knots(self.knots)
        if len(self.values) != len(self.knots):
            raise ValueError(f"{len(self.knots)} knots but {len(self.values)} values")
        if not all(np.isfinite(self.values)) or min(self.values) < 0 or self.values[-1] < self.values[-2]:
            raise ValueError("values must be finite, not negative, and not fall after the last knot")


@dataclass(frozen=True)
class Surface:
    """Seconds over (batch, summed context): affine in context between knots, linear in batch between knots.

    `values[i][j]` is the time at `batches[i]` and `contexts[j]`.
    """

    batches: tuple[float, ...]
    contexts: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        _check_knots(self.batches)
        if len(self.values) != len(self.batches):
            raise ValueError(f"{len(self.batches)} batch knots but {len(self.values)} rows of values")
        for row in self.values:
            Curve(self.contexts, row)


def _check_knots(knots: tuple[float, ...]) -> None:
    if len(knots) < 2 or not np.all(np.isfinite(knots)) or np.any(np.diff(knots) <= 0):
        raise ValueError(f"a table needs at least two increasing knots, got {knots}")
    if knots[0] > 1:
        raise ValueError(f"the first knot must be at most 1, got {knots[0]}: below it nothing is known")


@dataclass(frozen=True)
class StepRow:
    """Coefficients (seconds per unit) and tables of one pool; see the module. All default to nothing.

    `request_s`: from a client's sending a request to the front end, which takes in one after another, `intake_s` each,
    before the scheduler sees it. Limits say where measurement ends: tokens of a step, length of a prompt, sequences
    that emit, summed context by the number of decodes.
    """

    base_s: float = 0.0
    per_prefill_token_s: float = 0.0
    prefill_quadratic_s: float = 0.0
    per_sequence_s: float = 0.0
    per_context_token_s: float = 0.0
    per_sampled_s: float = 0.0
    linear: Curve | None = None  # over the tokens of a step
    attention: Curve | None = None  # over the tokens of a whole prompt
    logits: Curve | None = None  # over the sequences that emit a token
    decode: Surface | None = None
    prefill_step_s: float = 0.0
    skew_s: float = 0.0
    request_s: float = 0.0
    intake_s: float = 0.0
    tokens_limit: float = np.inf
    length_limit: float = np.inf
    sampled_limit: float = np.inf
    decode_limits: Curve | None = None
    waste: Curve | None = None  # over the tokens of a chunk: its time over that of a GPU which it fills, no seconds
    masked_s: float = 0.0  # of what kernels compute of a chunk's own square above its diagonal


class Timing(Protocol):
    """A source of step times. `source` names it in every result."""

    @property
    def source(self) -> str: ...

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """Step times of one instance; InputError where the source has none."""
        ...


def stack(rows: Sequence[StepRow]) -> StepTables:
    """The tables of K pools, in order; arrays of the caller's own."""
    table, data = _stacked(tuple(rows))
    return StepTables(table.copy(), data.copy())


@functools.lru_cache(maxsize=16)  # runs of a sweep mostly have the same
def _stacked(rows: tuple[StepRow, ...]) -> StepTables:
    table = np.zeros(len(rows), ROW)
    data: list[NDArray[np.float64]] = []

    def append(part: NDArray[np.float64]) -> int:
        at = sum(map(len, data))
        data.append(part)
        return at

    for k, row in enumerate(rows):
        for name in (*_COEFFICIENTS, *_LIMITS):
            table[name][k] = getattr(row, name)
        for name in _CURVES:
            curve = getattr(row, name)
            if curve is not None:
                table[f"{name}_at"][k] = append(_axis(curve.knots))
                table[f"{name}_stride"][k] = len(curve.knots) + 1
                append(_line(curve))
        if row.decode is not None:
            surface = row.decode
            table["decode_at"][k] = append(_axis(surface.batches))
            table["decode_batches"][k] = len(surface.batches)
            table["decode_context_at"][k] = append(_axis(surface.contexts))
            table["decode_stride"][k] = len(surface.contexts) + 1
            lines = [_line(Curve(surface.contexts, values)) for values in surface.values]
            table["decode_lines_at"][k] = append(np.concatenate(lines))
    return StepTables(table, np.concatenate(data) if data else np.zeros(0))


def _axis(knots: tuple[float, ...]) -> NDArray[np.float64]:
    last = int(np.float64(knots[-1]).view(np.int64) >> _SHIFT) - _FIRST_BUCKET
    edges = (np.arange(_FIRST_BUCKET, _FIRST_BUCKET + max(last, 0) + 1) << _SHIFT).view(np.float64)
    starts = np.maximum(np.searchsorted(knots, edges, side="right") - 1, 0)
    starts[0] = 0  # also holds what lies below 1
    return np.concatenate([[len(starts)], starts, knots, [np.inf]])


def _line(curve: Curve) -> NDArray[np.float64]:
    """Value at each knot and slope of the segment that starts there; the last segment goes on."""
    slopes = np.diff(curve.values) / np.diff(curve.knots)
    return np.concatenate([curve.values, [np.nan], slopes, slopes[-1:], [np.nan]])


# Branches stay inside the lookups, and the functions that call them are straight lines: numba then drops the reference
# counting of the arrays they pass on, which would cost several times the lookup itself.


@compiled
def _segment(data: NDArray[np.float64], at: int, x: float) -> tuple[int, int]:
    """Index of the last knot <= x (the first, for an x below all) of the axis at `at`, and where its knots begin."""
    buckets = int(data[at])
    bucket = int(np.float64(x).view(np.int64) >> _SHIFT) - _FIRST_BUCKET
    i = int(data[at + 1 + min(max(bucket, 0), buckets - 1)])
    knots_at = at + 1 + buckets
    while data[knots_at + i + 1] <= x:
        i += 1
    return i, knots_at


@compiled
def _curve(data: NDArray[np.float64], at: int, stride: int, x: float) -> float:
    """The curve at `at`; 0 where there is none, and at x = 0, where there is nothing to do."""
    if stride == 0 or x == 0.0:
        return 0.0
    i, knots_at = _segment(data, at, x)
    knot = knots_at + i
    return data[knot + stride] + data[knot + 2 * stride] * (x - data[knot])


@compiled
def _ratio(data: NDArray[np.float64], at: int, stride: int, x: float, y: float) -> float:
    """The curve at x over the curve at y; 1 where there is none."""
    if stride == 0:
        return 1.0
    return _curve(data, at, stride, x) / _curve(data, at, stride, y)


@compiled
def _surface(data: NDArray[np.float64], row: Any, batch: float, context: float) -> tuple[float, float, float]:
    """The decode surface of a row as (value, slope, knot); zeros and inf where there is none."""
    stride = row["decode_stride"]
    if stride == 0 or batch == 0.0:
        return 0.0, 0.0, np.inf
    i, contexts_at = _segment(data, row["decode_context_at"], context)
    b, batches_at = _segment(data, row["decode_at"], batch)
    b = min(b, row["decode_batches"] - 2)
    share = (batch - data[batches_at + b]) / (data[batches_at + b + 1] - data[batches_at + b])
    low = row["decode_lines_at"] + 2 * stride * b + i
    high = low + 2 * stride
    value = data[low] + share * (data[high] - data[low])
    slope = data[low + stride] + share * (data[high + stride] - data[low + stride])
    return value + slope * (context - data[contexts_at + i]), slope, data[contexts_at + i + 1]


@compiled
def base_s(tables: StepTables, k: int, prefill_tokens: int, decodes: int, sampled: int) -> float:
    """Seconds of a step that do not depend on any context, in pool k.

    `prefill_tokens` over all chunks, `decodes` sequences, of which (and of the chunks) `sampled` emit a token.
    """
    row = tables.rows[k]
    time_s: float = row["base_s"] + row["per_prefill_token_s"] * prefill_tokens
    time_s += row["per_sequence_s"] * decodes + row["per_sampled_s"] * sampled
    time_s += row["prefill_step_s"] * min(prefill_tokens, 1)
    time_s += _curve(tables.data, row["linear_at"], row["linear_stride"], float(prefill_tokens + decodes))
    return time_s + _curve(tables.data, row["logits_at"], row["logits_stride"], float(sampled))


@compiled
def chunk_s(tables: StepTables, k: int, prefix: int, chunk: int) -> float:
    """Seconds of prefill attention of one chunk of at least one token after `prefix` tokens, in pool k."""
    row = tables.rows[k]
    length = float(prefix + chunk)
    square = length * length - float(prefix) * float(prefix)
    whole_s = _curve(tables.data, row["attention_at"], row["attention_stride"], length)
    time_s: float = row["prefill_quadratic_s"] * square + whole_s * (square / (length * length))
    masked_s: float = row["masked_s"] * (float(chunk) * float(chunk))
    return time_s * _ratio(tables.data, row["waste_at"], row["waste_stride"], float(chunk), length) + masked_s


@compiled
def decode_s(tables: StepTables, k: int, decodes: int, context: int) -> tuple[float, float, float]:
    """Decode attention of `decodes` sequences with that summed context, in pool k.

    Returns (value_s, slope_s, knot): value_s + slope_s * more at context + more, while context + more < knot.
    """
    row = tables.rows[k]
    value_s, slope_s, knot = _surface(tables.data, row, float(decodes), float(context))
    per_token_s: float = row["per_context_token_s"]
    return per_token_s * context + value_s, per_token_s + slope_s, knot


@compiled
def uneven_s(tables: StepTables, k: int, decodes: int, context: int, longest: int) -> float:
    """Seconds that decodes of unequal context cost on top, in pool k; the same for all steps of one batch."""
    time_s: float = tables.rows[k]["skew_s"] * (decodes * longest - context)
    return time_s


@compiled
def beyond(tables: StepTables, k: int, tokens: int, sampled: int, decodes: int, context: int, length: int) -> float:
    """How far a step lies past what was measured for pool k: the largest ratio to a limit; at most 1: within.

    `tokens` of the step, of which `sampled` sequences emit one; `decodes` with that summed context; `length` of the
    longest prompt up to the end of its chunk.
    """
    row = tables.rows[k]
    decode_limit = _curve(tables.data, row["decode_limits_at"], row["decode_limits_stride"], float(decodes))
    if decode_limit == 0.0:
        decode_limit = np.inf
    prefill: float = max(tokens / row["tokens_limit"], length / row["length_limit"])
    return max(prefill, sampled / row["sampled_limit"], context / decode_limit)


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

    `sampled` sequences emit a token; by default all decodes and all chunks do. `longest` is the longest context; by
    default all are equal.
    """
    emitting = decodes + len(chunks) if sampled is None else sampled
    time_s = base_s(tables, k, sum(chunks), decodes, emitting)
    for prefix, chunk in zip(prefixes, chunks, strict=True):
        time_s += chunk_s(tables, k, prefix, chunk)
    time_s += decode_s(tables, k, decodes, context)[0]
    return float(time_s if longest is None else time_s + uneven_s(tables, k, decodes, context, longest))
