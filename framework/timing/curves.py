"""Piecewise affine functions for step times: curves over one size, surfaces over batch and context.

Compiled code reads them from an array of floats, where an axis of n knots is a count of buckets, for each bucket the
segment that holds its lower edge, the knots, and an infinite one. `stride` = n + 1 values and as many slopes follow.
Branches stay inside the lookups, and the functions that call them are straight lines. So numba drops the reference
counting of the arrays that they pass on, which would cost several times the lookup itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled

FloatArray = NDArray[np.float64]
_KNOT_RATIO = 1.25  # between knots by which a curve is continued
_SHIFT = 49  # a bucket of a lookup is an eighth of an octave: exponent and three bits of the mantissa
_FIRST_BUCKET = 1023 << 3  # bucket of 1.0


@dataclass(frozen=True)
class Curve:
    """A piecewise affine function of one size, such as the tokens of a step.

    `knots` and `values` have K >= 2 entries each: the function is `values[i]` at `knots[i]`, affine between two knots,
    and its last segment continues beyond the last knot. Values are seconds unless the owner of the curve states
    otherwise. Raises ValueError unless the knots increase from 1 or below, and the values are finite, not negative, and
    do not fall along the last segment.
    """

    knots: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_knots(self.knots)
        _check_values(self.knots, np.asarray(self.values, np.float64))

    @classmethod
    def of(cls, knots: FloatArray, values: FloatArray) -> Curve:
        """The curve of two arrays, each of shape (K,)."""
        return cls(tuple(knots.tolist()), tuple(values.tolist()))

    def with_values(self, values: FloatArray) -> Curve:
        """A curve with the same knots and other values, which have shape (K,)."""
        return replace(self, values=tuple(values.tolist()))

    def times(self, factor: float) -> Curve:
        """The curve with all values multiplied by `factor`."""
        return replace(self, values=tuple(factor * value for value in self.values))

    def rising_faster(self, knot: float, factor: float) -> Curve:
        """The curve whose values above that at `knot` rise `factor` times as far above it."""
        level = float(self.at(np.array([max(knot, self.knots[0])]))[0])
        values = np.asarray(self.values)
        return self.with_values(np.minimum(values, level) + factor * np.maximum(values - level, 0.0))

    def times_up_to(self, knot: float, factor: float) -> Curve:
        """The curve whose seconds up to those at `knot` count `factor` times, and those above once."""
        knots = np.union1d(self.knots, [max(knot, self.knots[0])])
        values = self.at(knots)
        level = float(self.at(np.array([max(knot, self.knots[0])]))[0])
        return Curve.of(knots, values + (factor - 1.0) * np.minimum(values, level))

    def rising(self) -> Curve:
        """The curve, raised where it falls."""
        return self.with_values(np.maximum.accumulate(np.asarray(self.values)))

    def without_bumps(self) -> Curve:
        """The curve, lowered if more work would take less time: a server can always pad its work."""
        return self.with_values(np.minimum.accumulate(np.asarray(self.values)[::-1])[::-1])

    def at(self, xs: FloatArray) -> FloatArray:
        """The curve's values at `xs`, an array of any shape whose entries are not below the first knot."""
        slope = (self.values[-1] - self.values[-2]) / (self.knots[-1] - self.knots[-2])
        return np.interp(xs, self.knots, self.values) + slope * np.maximum(xs - self.knots[-1], 0.0)

    def continued_to(self, last: float) -> Curve:
        """The curve with further knots up to `last`, on which it goes on as a power of the size: that of its last
        segment, from 1 to 2. Its own last segment would make attention of long prompts linear in their length.
        """
        end, value = self.knots[-1], self.values[-1]
        if last <= end or value <= 0.0 or self.values[-2] <= 0.0:
            return self
        power = float(np.log(value / self.values[-2]) / np.log(end / self.knots[-2]))
        steps = int(np.ceil(np.log(last / end) / np.log(_KNOT_RATIO)))
        sizes = end * (last / end) ** (np.arange(1, steps + 1) / steps)
        values = value * (sizes / end) ** min(max(power, 1.0), 2.0)
        return Curve.of(np.append(self.knots, sizes), np.append(self.values, values))

    def __add__(self, other: Curve) -> Curve:
        """The sum of two curves, on the knots of both."""
        knots = np.union1d(self.knots, other.knots)
        return Curve.of(knots, self.at(knots) + other.at(knots))


@dataclass(frozen=True)
class Surface:
    """Seconds over the size of a batch and its summed context in tokens.

    `values` has a row for each of the B >= 2 `batches` and a column for each of the C >= 2 `contexts`. The surface is
    affine in the context between two contexts and linear in the batch between two batches; the last segments continue.
    Raises ValueError under the conditions of a `Curve`, which apply to each row.
    """

    batches: tuple[float, ...]
    contexts: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        _check_knots(self.batches)
        _check_knots(self.contexts)
        if len(self.values) != len(self.batches):
            raise ValueError(f"{len(self.batches)} batch knots but {len(self.values)} rows of values")
        for length in sorted({len(row) for row in self.values} - {len(self.contexts)}):
            raise ValueError(f"{len(self.contexts)} knots but {length} values")
        _check_values(self.contexts, np.asarray(self.values, np.float64))

    @classmethod
    def of(cls, batches: FloatArray, contexts: FloatArray, values: FloatArray) -> Surface:
        """The surface of three arrays, of shapes (B,), (C,) and (B, C)."""
        return cls(tuple(batches.tolist()), tuple(contexts.tolist()), _rows(values))

    def with_values(self, values: FloatArray) -> Surface:
        """A surface with the same knots and other values, which have shape (B, C)."""
        return replace(self, values=_rows(values))

    def times(self, factor: float) -> Surface:
        """The surface with all values multiplied by `factor`."""
        return self.with_values(factor * np.asarray(self.values))

    def __add__(self, other: Surface) -> Surface:
        """The sum of two surfaces. Raises ValueError if their knots differ."""
        if (self.batches, self.contexts) != (other.batches, other.contexts):
            raise ValueError("surfaces with different knots cannot be added")
        return self.with_values(np.asarray(self.values) + np.asarray(other.values))


def _rows(values: FloatArray) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, values.tolist()))


def _check_knots(knots: Iterable[float]) -> None:
    known = np.asarray(tuple(knots), np.float64)
    if len(known) < 2 or not np.isfinite(known).all() or (known[1:] <= known[:-1]).any():
        raise ValueError(f"a table needs at least two increasing knots, got {knots}")
    if known[0] > 1:
        raise ValueError(f"the first knot must be at most 1, got {known[0]}: below it nothing is known")


def _check_values(knots: tuple[float, ...], values: FloatArray) -> None:
    """Raise ValueError unless `values`, of shape (..., K), fit K knots and can go on beyond the last one."""
    if values.shape[-1] != len(knots):
        raise ValueError(f"{len(knots)} knots but {values.shape[-1]} values")
    if not np.isfinite(values).all() or values.min() < 0 or (values[..., -1] < values[..., -2]).any():
        raise ValueError("values must be finite, not negative, and not fall after the last knot")


# --- as compiled code reads them --------------------------------------------------------------------------------------


def packed_axis(knots: tuple[float, ...]) -> FloatArray:
    """An axis of n knots: the number of buckets, the segment that each begins in, the knots, and inf."""
    last = int(np.float64(knots[-1]).view(np.int64) >> _SHIFT) - _FIRST_BUCKET
    edges = (np.arange(_FIRST_BUCKET, _FIRST_BUCKET + max(last, 0) + 1) << _SHIFT).view(np.float64)
    starts = np.maximum(np.searchsorted(knots, edges, side="right") - 1, 0)
    starts[0] = 0  # The first bucket also holds values below 1.
    return np.concatenate([[len(starts)], starts, knots, [np.inf]])


def packed_lines(knots: tuple[float, ...], values: FloatArray) -> FloatArray:
    """Value at each of K knots and slope of the segment that starts there, for each row of `values`, (..., K), in turn.

    The last segment continues.
    """
    count, known = len(knots), np.asarray(knots)
    lines = np.full((*values.shape[:-1], 2 * count + 2), np.nan)
    lines[..., :count] = values
    slopes = lines[..., count + 1 : -1]
    slopes[..., :-1] = (values[..., 1:] - values[..., :-1]) / (known[1:] - known[:-1])
    slopes[..., -1] = slopes[..., -2]
    return lines.ravel()


@compiled
def segment_at(data: FloatArray, at: int, x: float) -> tuple[int, int]:
    """Index of the last knot <= x (the first, for an x below all) of the axis at `at`, and the offset of its knots."""
    buckets = int(data[at])
    bucket = int(np.float64(x).view(np.int64) >> _SHIFT) - _FIRST_BUCKET
    i = int(data[at + 1 + min(max(bucket, 0), buckets - 1)])
    knots_at = at + 1 + buckets
    while data[knots_at + i + 1] <= x:
        i += 1
    return i, knots_at


@compiled
def curve_at(data: FloatArray, at: int, stride: int, x: float) -> float:
    """The curve at `at`; 0 if there is none, and at x = 0."""
    if stride == 0 or x == 0.0:
        return 0.0
    i, knots_at = segment_at(data, at, x)
    knot = knots_at + i
    return data[knot + stride] + data[knot + 2 * stride] * (x - data[knot])


@compiled
def quotient_at(data: FloatArray, at: int, stride: int, x: float, y: float) -> float:
    """The curve at x divided by the curve at y; 1 if there is none."""
    if stride == 0:
        return 1.0
    return curve_at(data, at, stride, x) / curve_at(data, at, stride, y)
