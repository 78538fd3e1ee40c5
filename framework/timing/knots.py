"""Few knots between which curves are affine, and as close to a function as asked for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from framework.timing.interpolate import FloatArray


def choose_knots(xs: FloatArray, curves: FloatArray, slack: FloatArray, keep: Iterable[float] = ()) -> NDArray[np.intp]:
    """Indices of knots at which affine interpolation of all curves stays within their slack at every x.

    `xs`: increasing, shape (N,); `curves`, `slack`: (K, N), the values and the error allowed around them, inf: any.
    Each segment reaches as far as it can. First and last x and those in `keep` are knots.
    """
    forced = [*np.flatnonzero(np.isin(xs, list(keep))), len(xs) - 1]
    knots = [0]
    while knots[-1] < len(xs) - 1:
        at = knots[-1]
        stop = next(index for index in forced if index > at)
        knots.append(at + _reach(xs[at : stop + 1], curves[:, at : stop + 1], slack[:, at : stop + 1]))
    return np.asarray(knots)


def _reach(xs: FloatArray, curves: FloatArray, slack: FloatArray) -> int:
    """The largest j for which the line from point 0 to point j passes all points between within their slack."""
    run = xs[1:] - xs[0]
    slopes = (curves[:, 1:] - curves[:, :1]) / run
    room = slack[:, 1:] / run
    lowest = np.maximum.accumulate(slopes - room, axis=1)
    highest = np.minimum.accumulate(slopes + room, axis=1)
    passes = np.all((slopes[:, 1:] >= lowest[:, :-1]) & (slopes[:, 1:] <= highest[:, :-1]), axis=0)
    return int(np.flatnonzero(passes)[-1]) + 2 if np.any(passes) else 1


def samples(first: float, last: float, ratio: float, also: Iterable[float] = ()) -> FloatArray:
    """Whole numbers from first to last: each at least `ratio` times the one before, or the next one; and `also`."""
    spread = np.geomspace(first, last, int(np.ceil(np.log(last / first) / np.log(ratio))) + 1)
    points = np.unique(np.round(np.concatenate([spread, [first, last], np.asarray(list(also), float)])))
    return points[(points >= first) & (points <= last)]
