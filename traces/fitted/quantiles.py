"""Quantile functions that reveal no single request: their knots lie some dozens of requests apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST_REQUESTS = 36  # between two knots, and beyond the last one

Floats = NDArray[np.float64]


def ends(ordered: Floats, weights: Floats, inner: Floats) -> tuple[float, float]:
    """The values at which the lines from the first and the last of `inner` end, at levels 0 and 1.

    `ordered` (N,) are all values, rising, with `weights` (N,). On those lines the requests beyond the inner knots keep
    their mean.
    """
    below, above = ordered <= inner[0], ordered >= inner[-1]
    lowest, highest = (float(np.average(ordered[part], weights=weights[part])) for part in (below, above))
    return min(2 * lowest - float(inner[0]), float(inner[0])), max(2 * highest - float(inner[-1]), float(inner[-1]))


def banded(values: Floats, weights: Floats, levels: Floats) -> Floats:
    """Weighted quantiles at `levels` (Q,) from 0 to 1, on lines between as many knots as are allowed.

    Zeros for fewer than LEAST_REQUESTS values (N,), their mean for fewer than twice as many.
    """
    bands = min(len(levels) - 1, len(values) // LEAST_REQUESTS)
    if bands == 0:
        return np.zeros(len(levels))
    if bands == 1:
        return np.full(len(levels), np.average(values, weights=weights))
    order = np.argsort(values, kind="stable")
    ordered, weights = values[order].astype(np.float64), weights[order]
    mass = np.cumsum(weights)
    knots = np.linspace(0, 1, bands + 1)
    inner = np.interp(knots[1:-1], (mass - 0.5 * weights) / mass[-1], ordered)
    lowest, highest = ends(ordered, weights, inner)
    return np.interp(levels, knots, np.concatenate(([max(lowest, 0.0)], inner, [highest])))
