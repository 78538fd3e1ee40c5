"""The time of one step, from a table of coefficients and knots that engine and reference read alike.

A step costs

    base_s + per_prefill_token_s * prefill tokens + per_sequence_s * decodes + per_sampled_s * sampled
    + linear(prefill tokens + decodes) + logits(sampled)                                                  `base_s`
    + sum over chunks of prefill_quadratic_s * ((prefix + chunk)^2 - prefix^2)
                         + attention(prefix + chunk) * (1 - prefix^2 / (prefix + chunk)^2)                `chunk_s`
    + per_context_token_s * context + decode(decodes, context)                                            `decode_s`

where `context` is summed over the decodes, and linear, logits, attention (of a whole prompt) and decode are piecewise
affine between knots: the last segment goes on beyond the last knot, and an absent table adds exactly nothing. Products
of dyadic coefficients and token counts are exact in float64, and so are their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from framework.hardware import Gpu, Model
from framework.jit import compiled

_COEFFICIENTS = (
    *("base_s", "per_prefill_token_s", "prefill_quadratic_s"),
    *("per_sequence_s", "per_context_token_s", "per_sampled_s"),
)
_CURVES = ("linear", "attention", "logits")
# A curve lies in `data` at `<curve>_at` as n knots, n values and n slopes; n = 0 where it is absent. The decode surface
# lies as b batch knots, c context knots, then one row of c values and one of c slopes for each batch knot.
ROW = np.dtype(
    [(name, np.float64) for name in _COEFFICIENTS]
    + [(f"{name}_{what}", np.int64) for name in _CURVES for what in ("at", "knots")]
    + [("decode_at", np.int64), ("decode_batches", np.int64), ("decode_contexts", np.int64)]
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
    """Coefficients (seconds per unit) and tables of one pool; see the module. All default to nothing."""

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


class Timing(Protocol):
    """A source of step times. `source` names it in every result."""

    @property
    def source(self) -> str: ...

    def row(self, model: Model, gpu: Gpu, tp: int) -> StepRow:
        """Step times of one instance of `tp` GPUs; InputError where the source has none."""
        ...


def stack(rows: Sequence[StepRow]) -> StepTables:
    """The tables of K pools, in order."""
    table = np.zeros(len(rows), ROW)
    data: list[NDArray[np.float64]] = []
    size = 0
    for k, row in enumerate(rows):
        for name in _COEFFICIENTS:
            table[name][k] = getattr(row, name)
        for name in _CURVES:
            curve = getattr(row, name)
            if curve is not None:
                table[f"{name}_at"][k], table[f"{name}_knots"][k] = size, len(curve.knots)
                data.append(np.concatenate([curve.knots, curve.values, _slopes(curve.knots, curve.values)]))
                size += len(data[-1])
        if row.decode is not None:
            surface = row.decode
            table["decode_at"][k] = size
            table["decode_batches"][k], table["decode_contexts"][k] = len(surface.batches), len(surface.contexts)
            lines = [part for values in surface.values for part in (values, _slopes(surface.contexts, values))]
            data.append(np.concatenate([surface.batches, surface.contexts, *lines]))
            size += len(data[-1])
    return StepTables(table, np.concatenate(data) if data else np.zeros(0))


def _slopes(knots: tuple[float, ...], values: tuple[float, ...]) -> NDArray[np.float64]:
    """Slope of the segment that starts at each knot; the last segment goes on."""
    slopes = np.diff(values) / np.diff(knots)
    return np.append(slopes, slopes[-1])


@compiled
def segment(data: NDArray[np.float64], at: int, knots: int, x: float) -> int:
    """Index i of the segment of x among `knots` increasing knots at `at`: the last with knot <= x, or 0."""
    low = 0
    span = knots
    while span > 1:
        half = span >> 1
        if data[at + low + half] <= x:
            low += half
        span -= half
    return low


@compiled
def _curve(data: NDArray[np.float64], at: int, knots: int, x: float) -> float:
    i = at + segment(data, at, knots, x)
    return data[i + knots] + data[i + 2 * knots] * (x - data[i])  # type: ignore[no-any-return]


@compiled
def base_s(tables: StepTables, k: int, prefill_tokens: int, decodes: int, sampled: int) -> float:
    """Seconds of a step that do not depend on any context, in pool k.

    `prefill_tokens` over all chunks, `decodes` sequences, of which (and of the chunks) `sampled` emit a token.
    """
    row = tables.rows[k]
    time_s: float = row["base_s"] + row["per_prefill_token_s"] * prefill_tokens
    time_s += row["per_sequence_s"] * decodes + row["per_sampled_s"] * sampled
    tokens = prefill_tokens + decodes
    if row["linear_knots"] > 0 and tokens > 0:
        time_s += _curve(tables.data, row["linear_at"], row["linear_knots"], float(tokens))
    if row["logits_knots"] > 0 and sampled > 0:
        time_s += _curve(tables.data, row["logits_at"], row["logits_knots"], float(sampled))
    return time_s


@compiled
def chunk_s(tables: StepTables, k: int, prefix: int, chunk: int) -> float:
    """Seconds of prefill attention of one chunk after `prefix` tokens, in pool k."""
    row = tables.rows[k]
    length = prefix + chunk
    square = length * length - prefix * prefix
    time_s: float = row["prefill_quadratic_s"] * square
    if row["attention_knots"] > 0 and chunk > 0:
        whole_s = _curve(tables.data, row["attention_at"], row["attention_knots"], float(length))
        time_s += whole_s * (float(square) / float(length * length))
    return time_s


@compiled
def decode_s(tables: StepTables, k: int, decodes: int, context: int) -> tuple[float, float, float]:
    """Decode attention of `decodes` sequences with that summed context, in pool k.

    Returns (value_s, slope_s, knot): value_s + slope_s * more at context + more, while context + more < knot.
    """
    row = tables.rows[k]
    slope_s = row["per_context_token_s"]
    value_s = slope_s * context
    batches = row["decode_batches"]
    if batches == 0 or decodes == 0:
        return value_s, slope_s, np.inf
    data = tables.data
    at = row["decode_at"]
    contexts = row["decode_contexts"]
    x = float(context)
    i = segment(data, at + batches, contexts, x)
    knot = data[at + batches + i + 1] if i + 1 < contexts else np.inf
    b = min(segment(data, at, batches, float(decodes)), batches - 2)
    share = (decodes - data[at + b]) / (data[at + b + 1] - data[at + b])
    low = at + batches + contexts + 2 * contexts * b + i
    high = low + 2 * contexts
    low_slope_s = data[low + contexts]
    over = x - data[at + batches + i]
    low_s = data[low] + low_slope_s * over
    high_slope_s = data[high + contexts]
    high_s = data[high] + high_slope_s * over
    value_s += low_s + share * (high_s - low_s)
    return value_s, slope_s + (low_slope_s + share * (high_slope_s - low_slope_s)), knot


def step_s(
    tables: StepTables,
    k: int,
    prefixes: Sequence[int],
    chunks: Sequence[int],
    decodes: int,
    context: int,
    sampled: int | None = None,
) -> float:
    """Seconds of a whole step in pool k: chunk i of `chunks[i]` tokens after `prefixes[i]`, and `decodes` sequences.

    `sampled` sequences emit a token; by default all decodes and all chunks do.
    """
    emitting = decodes + len(chunks) if sampled is None else sampled
    time_s = base_s(tables, k, sum(chunks), decodes, emitting)
    for prefix, chunk in zip(prefixes, chunks, strict=True):
        time_s += chunk_s(tables, k, prefix, chunk)
    return float(time_s + decode_s(tables, k, decodes, context)[0])
