"""Paired measurements: the median of their ratios, and its interval, which holds for any distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Ratio:
    """The median of ratios, and the ends of its interval, which holds the true median with probability `coverage`."""

    median: float
    low: float
    high: float
    coverage: float


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The ratios of `ours` over `theirs`, pair by pair."""
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    left_out, coverage = order_interval(len(ratios))
    return Ratio(statistics.median(ratios), ratios[left_out], ratios[-1 - left_out], coverage)


def order_interval(count: int) -> tuple[int, float]:
    """The number of `count` values, in order, to leave out at each end for an interval of the median; its coverage.

    The median lies below the k-th least value only if fewer than k values lie below it, whose number is binomial with
    probability 1/2 for any distribution of the values. As many are left out as LEVEL allows; of five values or fewer
    none, and the coverage is then less than that.
    """
    left_out, coverage = 0, 1 - 2 * 0.5**count
    below = 1
    for k in range(1, (count + 1) // 2):
        below += math.comb(count, k)
        if 1 - 2 * below * 0.5**count < LEVEL:
            break
        left_out, coverage = k, 1 - 2 * below * 0.5**count
    return left_out, coverage
