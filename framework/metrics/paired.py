"""Differences between two runs of the same requests, request by request: their mean with an interval, and its limits.

Requests that follow each other share queues and batches, so their differences are not independent. The interval is
Student's t over the means of batches of successive requests, which are nearly independent if batches are long enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.metrics.statistics import estimate

Floats = NDArray[np.float64]
_BATCHES, _FEWEST = 30, 10  # batches, and fewest requests in a batch
_LONG = 10  # requests of a batch, at least


@dataclass(frozen=True)
class Paired:
    """Statistics of `pairs` differences: `mean`, half the width of its 95 % interval (NaN: none), `median`, and the
    shares below and above 0. `caveat`: why there is no interval, or why not to trust it; "" otherwise.
    """

    pairs: int
    mean: float
    half_width: float
    median: float
    below: float
    above: float
    caveat: str


def paired(differences: Floats) -> Paired:
    """The statistics of differences in the order of arrivals, NaN for a request without one: shape (N,)."""
    known = differences[np.isfinite(differences)]
    if len(known) == 0:
        nan = math.nan
        return Paired(0, nan, nan, nan, nan, nan, "no request has both values")
    batches = min(_BATCHES, len(known) // _LONG)
    half_width, caveat = math.nan, ""
    if batches < _FEWEST:
        caveat = f"no interval: {len(known):,} requests make fewer than {_FEWEST} batches of {_LONG}"
    else:
        means = np.array([batch.mean() for batch in np.array_split(known, batches)])
        half_width = estimate(means).half_width
        correlation = _of_adjacent(means)
        if correlation > 2 / math.sqrt(batches):
            caveat = f"too narrow: adjacent batches of requests go together (correlation {correlation:.2f})"
    shares = float((known < 0).mean()), float((known > 0).mean())
    return Paired(len(known), float(known.mean()), half_width, float(np.median(known)), *shares, caveat)


def _of_adjacent(means: Floats) -> float:
    """The correlation of each value with the next; 0 if they do not vary."""
    centred = means - means.mean()
    square = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / square if square > 0 else 0.0
