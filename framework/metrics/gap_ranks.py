"""Values of given ranks among all gaps of a run: narrowed to bins, then to parts of these, since sorting takes long."""

from __future__ import annotations

import numpy as np

from framework.compiler.decorators import compiled, inner
from framework.metrics.token_gaps_compiled import BINS, LOWEST, SHIFT, Flags, Floats, Ints, Stretches, bin_of, gap_s

_PARTS = 256  # of a bin
_PART_SHIFT = SHIFT - 8


def ranked(
    stretches: Stretches, others_s: Floats, counts: Ints, zeros: int, mean_s: float, ranks: Ints
) -> tuple[float, Floats]:
    """The sum of squared distances from `mean_s`, and the gaps of `ranks`, each from 0, in seconds.

    The gaps are those of all steps, each as often as it has decodes, `others_s` and `zeros` gaps of 0. `counts` (BINS,)
    is the histogram of those that are not among `zeros`.
    """
    counts = counts.copy()
    counts[0] += zeros
    marked, ranks = _narrowed(counts, ranks)
    slots = np.where(marked, np.cumsum(marked) - 1, -1)
    parts = np.zeros(int(np.count_nonzero(marked)) * _PARTS, np.int64)
    squares = count_parts(stretches, others_s, slots, mean_s, parts)
    if marked[0]:
        parts[0] += zeros
    wanted, ranks = _narrowed(parts, ranks)
    room = int(parts[wanted].sum()) + 1
    found, weights = np.empty(room), np.empty(room, np.int64)
    size = gather(stretches, others_s, slots, wanted, found, weights)
    if marked[0]:
        found[size], weights[size] = 0.0, zeros
        size += 1
    order = np.argsort(found[:size], kind="stable")
    at = np.searchsorted(np.cumsum(weights[order]), ranks, side="right")
    values_s: Floats = found[order[at]]
    return squares + zeros * mean_s**2, values_s


def _narrowed(counts: Ints, ranks: Ints) -> tuple[Flags, Ints]:
    """The bins of a histogram that hold `ranks`, and the ranks among the values of these bins alone."""
    chosen = np.searchsorted(np.cumsum(counts), ranks, side="right")
    marked = np.zeros(len(counts), np.bool_)
    marked[chosen] = True
    return marked, ranks - np.cumsum(np.where(marked, 0, counts))[chosen]


@inner
def _part(value: float, slots: Ints) -> int:
    """The part of a marked bin that holds a value; -1 in other bins."""
    bits = int(np.float64(value).view(np.int64))
    part = min(max((bits >> _PART_SHIFT) - LOWEST * _PARTS, 0), BINS * _PARTS - 1)
    slot = slots[part // _PARTS]
    return slot * _PARTS + part % _PARTS if slot >= 0 else -1


@compiled
def count_parts(known: Stretches, others_s: Floats, slots: Ints, mean_s: float, parts: Ints) -> float:
    """Add the gaps of all steps, each as often as it has decodes, and `others_s` to the histogram of the parts of
    marked bins.

    `slots` (BINS,) numbers the marked bins, -1 for others. Returns the sum of the squared distances from `mean_s`.
    """
    squares, squares_of_others = 0.0, 0.0
    for k in range(len(known.rows)):
        row = known.rows[k]
        weight = row["batch"] - row["joined"]
        if weight > 0:
            value = row["opening_s"]
            squares += weight * (value - mean_s) ** 2
            part = _part(value, slots)
            if part >= 0:
                parts[part] += weight
        weight = row["batch"]
        for j in range(1, row["steps"]):
            value = gap_s(row, j)
            squares += weight * (value - mean_s) ** 2
            part = _part(value, slots)
            if part >= 0:
                parts[part] += weight
    for k in range(len(others_s)):
        squares_of_others += (others_s[k] - mean_s) ** 2
        part = _part(others_s[k], slots)
        if part >= 0:
            parts[part] += 1
    return squares + squares_of_others


@compiled
def gather(known: Stretches, others_s: Floats, slots: Ints, wanted: Flags, found: Floats, weights: Ints) -> int:
    """Write the values that `count_parts` counts in `wanted` parts, and how often each occurs; return their number."""
    size = 0
    for k in range(len(known.rows)):
        row = known.rows[k]
        weight, last = row["batch"] - row["joined"], row["steps"] - 1
        if weight > 0:
            part = _part(row["opening_s"], slots)
            if part >= 0 and wanted[part]:
                found[size], weights[size] = row["opening_s"], weight
                size += 1
        if last < 1 or not _may_hold(bin_of(gap_s(row, 1)), bin_of(gap_s(row, last)), slots):
            continue
        for j in range(1, last + 1):
            part = _part(gap_s(row, j), slots)
            if part >= 0 and wanted[part]:
                found[size], weights[size] = gap_s(row, j), row["batch"]
                size += 1
    for k in range(len(others_s)):
        part = _part(others_s[k], slots)
        if part >= 0 and wanted[part]:
            found[size], weights[size] = others_s[k], 1
            size += 1
    return size


@inner
def _may_hold(one: int, other: int, slots: Ints) -> bool:
    """Whether a value between those in these two bins may lie in a marked bin."""
    return one != other or slots[one] >= 0
