"""Times between measured shapes, by interpolating the utilisation of the GPU in logarithms of sizes.

Kernel times span six orders of magnitude and bend where a kernel changes from one limit of the hardware to another.
Their utilisation is the time at the speed of light (roofline: Williams, Waterman, Patterson, "Roofline: an insightful
visual performance model for multicore architectures", CACM 52(4), 2009) divided by the measured time, and varies
slowly. Its logarithm is interpolated linearly in the logarithms of all sizes, so a plateau (constant time while a tile
fills) and a power law are both exact. Beyond the largest size the utilisation of the last measured point holds, below
the smallest its time does. Attention uses the GPU better the longer it runs: the waste of a call or a tile counts less
and less, so the inverse of its utilisation approaches a constant as 1 / size (docs/timing_kernels.md compares this with
lengths that were measured but held out).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.errors import InputError
from framework.timing.curves import FloatArray

_ESTIMATED_SIZE = 2.0**17  # size up to which an estimate counts as known
Ideal = Callable[..., FloatArray]  # seconds at the speed of light, over the sizes


@dataclass(frozen=True)
class Interpolated:
    """Seconds of an operation over d sizes, from measurements on a grid of them.

    `axes` has d arrays: the log2 of each measured size, increasing. `log_utilisation` has the log2 of the utilisation,
    of shape (len(axes[0]), ..., len(axes[-1])); where nothing was measured, it is that of the last smaller size on the
    last axis that has one. `limits` has the largest measured last size for all sizes but the last, of shape
    (len(axes[0]), ..., len(axes[-2])). `ideal` gives the seconds at the speed of light. The measurement may be of a
    share of the wanted work, 1 / `stretch` of it, and keep the GPU as busy with `stretch` times the first size; that
    says nothing of a larger batch than was measured, so at least its own utilisation counts. With `saturates`, beyond
    the largest last size the inverse of the utilisation keeps falling as over the last octave, as 1 / size.
    """

    axes: tuple[FloatArray, ...]
    log_utilisation: FloatArray
    limits: FloatArray
    ideal: Ideal
    stretch: float = 1.0
    saturates: bool = False

    def seconds(self, *sizes: FloatArray | float) -> FloatArray:
        """The seconds at d sizes >= 0, which broadcast against each other to the shape of the result."""
        held = [np.maximum(size, 2.0**least) for size, least in zip(sizes, self._smallest, strict=True)]
        utilisation = self._beyond(held[0] * self.stretch, *held[1:])
        if self.stretch > 1:
            utilisation = np.maximum(utilisation, self._beyond(*held))
        return np.asarray(self.ideal(*held) * 2.0**-utilisation)

    def limit(self, *sizes: FloatArray | float) -> FloatArray:
        """The largest measured last size around the other d - 1 `sizes`: the least of all corners."""
        stretched = [np.asarray(sizes[0]) * min(self.stretch, 1.0), *sizes[1:]]
        corners = []
        for corner in _corners(self.axes[:-1], stretched):
            # A corner counts only if the size really lies between the two.
            corners.append(np.where(corner.weight > 0, self.limits[corner.at], np.inf))
        return np.minimum.reduce(corners)

    def limit_together(self, size: FloatArray | float) -> FloatArray:
        """The largest second size that was measured around a first one, or whose product with it was measured.

        The two sizes together determine how much a kernel reads: as much was measured with fewer, longer ones. Unless
        times saturate, it equals `limit`.
        """
        if not self.saturates:
            return self.limit(size)
        first = 2.0 ** self.axes[0]
        most = np.maximum.accumulate(first * self.limits)
        asked = np.asarray(size) * min(self.stretch, 1.0)
        at = np.maximum(np.searchsorted(first, asked, side="right") - 1, 0)
        return np.maximum(self.limit(size), most[at] / np.maximum(asked, first[0]))

    def _beyond(self, *sizes: FloatArray | float) -> FloatArray:
        """Log2 of the utilisation, also beyond the largest last size."""
        if not self.saturates:
            return self._utilisation(*sizes)
        *others, last = sizes
        reached = np.minimum(last, 2.0 ** self.axes[-1][-1])
        here, halfway = self._utilisation(*others, reached), self._utilisation(*others, reached / 2)
        return _saturated(here, halfway, reached / last)

    @property
    def _smallest(self) -> list[float]:
        """Log2 of the smallest sizes whose time is not held."""
        first, *others = (float(axis[0]) for axis in self.axes)
        return [first - np.log2(self.stretch) if self.stretch < 1 else first, *others]

    def _utilisation(self, *sizes: FloatArray | float) -> FloatArray:
        """Log2 of the utilisation."""
        corners = _corners(self.axes, sizes)
        return np.asarray(sum(corner.weight * self.log_utilisation[corner.at] for corner in corners))

    def largest(self, axis: int) -> float:
        """The largest measured size on an axis."""
        return float(2.0 ** self.axes[axis][-1])


def interpolate(
    rows: pl.DataFrame,
    sizes: Sequence[str],
    ideal: Ideal,
    wanted: Ideal | None = None,
    *,
    capped: bool = True,
    saturates: bool = False,
    together: bool = False,
) -> Interpolated:
    """The interpolation of the column latency_s over the columns `sizes`, in which no two rows agree.

    `ideal` gives the seconds at the speed of light of the measured work, and `wanted` those of the wanted work, if that
    differs but should have the same utilisation. With `capped`, `ideal` is a bound, so times below it (data that stayed
    in cache) are raised to it; otherwise it only says how time scales. `saturates` is as in `Interpolated`. With
    `together`, the product of two sizes says how much is read, so a row which ends continues as a measured row of
    fewer, longer ones does. Raises InputError for an empty table, and for times and sizes that are not positive.
    """
    if rows.is_empty():
        raise InputError(f"no measured time to interpolate over {', '.join(sizes)}")
    columns = [rows[name].to_numpy().astype(float) for name in sizes]
    latency_s = rows["latency_s"].to_numpy()
    if min(map(np.min, columns)) <= 0 or not np.all(latency_s > 0):
        raise InputError(f"sizes {', '.join(sizes)} and latency_s must be positive")
    knots, places = zip(*(np.unique(column, return_inverse=True) for column in columns), strict=True)
    grid = np.full([len(axis) for axis in knots], np.nan)
    utilisation = np.log2(ideal(*columns) / latency_s)
    grid[places] = np.minimum(utilisation, 0.0) if capped else utilisation
    measured = np.where(np.isnan(grid), 0.0, knots[-1])
    if together:
        _go_on_together(grid, *(np.log2(axis) for axis in knots))
    if saturates:
        _saturate(grid, np.log2(knots[-1]))
    for axis in reversed(range(grid.ndim)):
        grid = _fill(grid, axis)
    axes = tuple(np.log2(axis) for axis in knots)
    return Interpolated(axes, grid, measured.max(axis=-1), wanted or ideal, saturates=saturates)


def estimated(sizes: int, ideal: Ideal, utilisation: float) -> Interpolated:
    """An operation over `sizes` without any measurement: it has the same utilisation everywhere."""
    ends = np.array([0.0, np.log2(_ESTIMATED_SIZE)])
    held = np.full((2,) * sizes, np.log2(utilisation))
    return Interpolated((ends,) * sizes, held, np.full((2,) * (sizes - 1), _ESTIMATED_SIZE), ideal)


def nearest(rows: pl.DataFrame, wanted: dict[str, float]) -> pl.DataFrame:
    """The rows whose values of the columns `wanted` are closest in log2; among equals the smaller ones."""
    names = list(wanted)
    combinations = rows.select(names).unique().sort(names)
    distance = np.zeros(combinations.height)
    for name, value in wanted.items():
        distance += np.abs(np.log2(combinations[name].to_numpy() / value))
    best = combinations[int(np.argmin(distance))]
    return rows.join(best, on=names, how="semi")


class _Corner(NamedTuple):
    """A corner of the cells in which points lie, and its weight there."""

    at: tuple[NDArray[np.intp], ...]
    weight: FloatArray


def _corners(axes: Sequence[FloatArray], sizes: Sequence[FloatArray | float]) -> list[_Corner]:
    """The 2^d corners of the cell around each point; points outside the grid use its edge."""
    places = [_place(axis, np.log2(size)) for axis, size in zip(axes, sizes, strict=True)]
    corners = []
    for upper in itertools.product((0, 1), repeat=len(axes)):
        weight = np.ones(())
        index = []
        for up, (at, share), axis in zip(upper, places, axes, strict=True):
            weight = weight * (share if up else 1.0 - share)
            index.append(np.minimum(at + up, len(axis) - 1))
        corners.append(_Corner(tuple(index), np.asarray(weight)))
    return corners


def _place(axis: FloatArray, x: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
    """The knot below each x, and how far x lies towards the next one: 0 to 1."""
    if len(axis) == 1:
        return np.zeros(np.shape(x), np.intp), np.zeros(np.shape(x))
    at = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, len(axis) - 2)
    return at, np.clip((x - axis[at]) / (axis[at + 1] - axis[at]), 0.0, 1.0)


def _go_on_together(grid: FloatArray, first: FloatArray, second: FloatArray) -> None:
    """Fill, in place, the end of each row as far as earlier rows have the product of both sizes.

    `first` and `second` have the log2 of the sizes. The row continues with the changes of the nearest such row.
    """
    ends = [second[np.flatnonzero(~np.isnan(row))[-1]] if not np.all(np.isnan(row)) else -np.inf for row in grid]
    for i in range(1, len(first)):
        known = np.flatnonzero(~np.isnan(grid[i]))
        for j in range(known[-1] + 1, len(second)) if len(known) else ():
            product = first[i] + second[j]
            longer = [k for k in range(i) if first[k] + ends[k] >= product]
            if not longer:
                break
            row = grid[longer[-1]]
            there = ~np.isnan(row)
            shift = first[i] - first[longer[-1]]
            here, last = np.interp([second[j] + shift, second[known[-1]] + shift], second[there], row[there])
            grid[i, j] = min(grid[i, known[-1]] + here - last, 0.0)


def _saturate(grid: FloatArray, last_axis: FloatArray) -> None:
    """Fill, in place, the part of each row beyond its last measured size; `last_axis` has the log2 of the sizes."""
    for place in np.ndindex(grid.shape[:-1]):
        row = grid[place]
        known = np.flatnonzero(~np.isnan(row))
        if len(known) > 1:
            end = known[-1]
            halfway = np.interp(last_axis[end] - 1, last_axis[known], row[known])
            row[end + 1 :] = _saturated(row[end], halfway, 2.0 ** (last_axis[end] - last_axis[end + 1 :]))


def _saturated(reached: FloatArray, halfway: FloatArray, share: FloatArray) -> FloatArray:
    """Log2 of the utilisation at a size of which `share` was reached, from the values there and at half of it."""
    here = 2.0**-reached
    falls = np.clip(2.0**-halfway - here, 0.0, here / 2)
    return np.asarray(-np.log2(np.maximum(here - falls * (1 - share), 1.0)))


def _fill(grid: FloatArray, axis: int) -> FloatArray:
    """Fill gaps with the last value before them on the axis, those at its start with the first one after them."""
    moved = np.moveaxis(grid.copy(), axis, -1)
    for direction in (1, -1):
        view = moved[..., ::direction]
        for i in range(1, view.shape[-1]):
            gap = np.isnan(view[..., i])
            view[..., i][gap] = view[..., i - 1][gap]
    return np.moveaxis(moved, -1, axis)
