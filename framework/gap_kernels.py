"""Compiled parts of `framework.gaps`: decode steps from leaps, and the largest gaps of each request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.jit import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Records = NDArray[np.void]

BLOCK = 32  # steps whose largest gap is kept, so that a scan can pass over them at once
# Histogram bins are the leading bits of a float64: 256 to an octave (at most 0.4 % wide), from 2**-40 s to 2**24 s.
SHIFT = 44
LOWEST = (1023 - 40) << 8
BINS = 64 << 8


class Steps(NamedTuple):
    """Decode steps, instance after instance: step s of instance i is at offset[i] + s - base[i] of the flat arrays."""

    offset: Ints  # (M,)
    base: Ints  # (M,) first step kept
    kept: Ints  # (M,) how many
    end_s: Floats  # (S,)
    gap_s: Floats  # (S,) since the end of the instance's previous decode step
    weight: Ints  # (S,) decodes in the step; less those that began with it, once their memberships are known
    block_max_s: Floats  # (ceil(S / BLOCK),)


class Tails(NamedTuple):
    """The largest gaps of each request as they are found: a min-heap of up to at[r + 1] - at[r] values."""

    at: Ints  # (N + 1,)
    heap: Floats  # used by requests with several memberships; pages of others are never touched
    scratch: Floats  # used by a request whose only membership is at hand
    expected: Ints  # (N,) gaps of a request that finishes
    seen: Ints  # (N,)
    smallest_s: Floats  # (N,) of the largest; like the next three NaN until all gaps were seen
    second_s: Floats  # (N,) second smallest of the largest
    largest_s: Floats  # (N,)
    total_s: Floats  # (N,) sum of the largest


@compiled
def expand(leaps: Records, steps: Steps, written: Ints, last_end_s: Floats) -> int:
    """Write the steps of each leap, then the block maxima; the index of a leap that does not follow the last, or -1.

    `written` (M,): steps of each instance that are there already, `last_end_s` (M,): end of the last; both move on.
    """
    for row in range(len(leaps)):
        leap = leaps[row]
        if leap["batch"] == 0:
            continue
        i = leap["instance"]
        if leap["step0"] - steps.base[i] != written[i]:
            return row
        at = steps.offset[i] + written[i]
        first_s, increment_s = leap["first_s"], leap["increment_s"]
        for j in range(leap["steps"]):
            end_s = leap["start_s"] + (j + 1) * first_s + 0.5 * j * (j + 1) * increment_s
            steps.end_s[at + j] = end_s
            steps.gap_s[at + j] = first_s + j * increment_s if j > 0 else end_s - last_end_s[i]
            steps.weight[at + j] = leap["batch"]
            last_end_s[i] = end_s
        written[i] += leap["steps"]
    for block in range(len(steps.block_max_s)):
        steps.block_max_s[block] = steps.gap_s[block * BLOCK : (block + 1) * BLOCK].max()
    return -1


@compiled
def fold(memberships: Records, steps: Steps, tails: Tails, first_gap_s: Floats) -> int:
    """Fold memberships into the tails of their requests; the index of a row that cannot be, or -1."""
    for row in range(len(memberships)):
        member = memberships[row]
        r, i = member["request"], member["instance"]
        first, last = 0, 0
        if i < 0:
            first_gap_s[row] = member["previous_token_s"]
        else:
            if member["last_step"] <= member["first_step"]:
                continue
            first = steps.offset[i] + member["first_step"] - steps.base[i]
            last = first + member["last_step"] - member["first_step"]
            if first < steps.offset[i] or last > steps.offset[i] + steps.kept[i]:
                return row
            first_gap_s[row] = steps.end_s[first] - member["previous_token_s"]
            steps.weight[first] -= 1
        gaps = max(last - first, 1)
        if tails.seen[r] + gaps > tails.expected[r]:
            return row
        capacity = tails.at[r + 1] - tails.at[r]
        if tails.seen[r] == 0 and gaps == tails.expected[r]:
            heap = tails.scratch[:capacity]
        else:
            heap = tails.heap[tails.at[r] : tails.at[r + 1]]
        size = _push(heap, min(tails.seen[r], capacity), first_gap_s[row])
        _scan(steps, first + 1, last, heap, size)
        tails.seen[r] += gaps
        if tails.seen[r] == tails.expected[r]:
            tails.smallest_s[r] = heap[0]
            tails.second_s[r] = heap[0] if capacity == 1 else heap[1] if capacity == 2 else min(heap[1], heap[2])
            tails.largest_s[r] = heap.max()
            tails.total_s[r] = heap.sum()
    return -1


@compiled
def _scan(steps: Steps, first: int, last: int, heap: Floats, size: int) -> None:
    """Push the gaps of steps [first, last) from the end: gaps grow with the context, so the largest tend to be late."""
    at = last
    while at > first:
        if size == len(heap):
            if at % BLOCK == 0 and at - BLOCK >= first and steps.block_max_s[at // BLOCK - 1] <= heap[0]:
                at -= BLOCK
                continue
            at -= 1
            if steps.gap_s[at] <= heap[0]:
                continue
        else:
            at -= 1
        size = _push(heap, size, steps.gap_s[at])


@compiled
def _push(heap: Floats, size: int, value: float) -> int:
    """Keep the largest values in a min-heap of `size` values, as many as it has room for; returns the new size."""
    if size < len(heap):
        at = size
        while at > 0 and heap[(at - 1) // 2] > value:
            heap[at] = heap[(at - 1) // 2]
            at = (at - 1) // 2
        heap[at] = value
        return size + 1
    if value <= heap[0]:
        return size
    at = 0
    while True:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if child >= size or heap[child] >= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value
    return size


@compiled
def count_weighted(values: Floats, bits: Ints, weights: Ints, counts: Ints, sums: Floats) -> None:
    """Add values, each `weight` times, to the histogram `counts`; to `sums` (2,) them and their squares."""
    for k in range(len(values)):
        if weights[k] > 0:
            chosen = min(max((bits[k] >> SHIFT) - LOWEST, 0), BINS - 1)
            counts[chosen] += weights[k]
            sums[0] += weights[k] * values[k]
            sums[1] += weights[k] * values[k] * values[k]
