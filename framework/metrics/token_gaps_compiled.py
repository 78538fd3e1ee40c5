"""Compiled parts of `token_gaps`: the decode steps of each instance, and the largest gaps of each request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled, inner

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Records = NDArray[np.void]
Flags = NDArray[np.bool_]

# Histogram bins are the leading bits of a float64: 256 to an octave (at most 0.4 % wide), from 2**-40 s to 2**24 s.
SHIFT = 44
LOWEST = (1023 - 40) << 8
BINS = 64 << 8

STRETCH = np.dtype(  # a leap with decodes: step j of it, from 0, ends a gap after the instance's previous decode step
    [
        ("start_s", "f8"),
        ("first_s", "f8"),
        ("increment_s", "f8"),
        ("opening_s", "f8"),  # gap 0; gap j > 0 is first_s + j * increment_s
        ("step0", "i8"),  # number of the first step among the instance's decode steps
        ("steps", "i4"),
        ("batch", "i4"),
        ("joined", "i4"),  # requests of the batch that began with step 0: gap 0 does not belong to them
    ],
    align=True,
)


class Stretches(NamedTuple):
    """Leaps with decodes, instance after instance: those of instance i are rows[at[i]:at[i + 1]], in order of time."""

    rows: Records  # (R,) STRETCH
    at: Ints  # (M + 1,)
    counted: Ints  # (M,) first decode step of the instance that no statistic has counted; memberships begin no earlier
    steps: Ints  # (M,) decode steps so far
    end_s: Floats  # (M,) end of the last


class Tails(NamedTuple):
    """The largest gaps of each request found so far: a min-heap of up to at[r + 1] - at[r] values."""

    at: Ints  # (N + 1,)
    heap: Floats  # used by requests with several memberships; other pages are never touched
    scratch: Floats  # number of a request without further memberships
    expected: Ints  # (N,) gaps of a request that finishes
    seen: Ints  # (N,)
    smallest_s: Floats  # (N,) smallest of the largest; like the next three NaN until all gaps were seen
    second_s: Floats  # (N,) second smallest of the largest
    largest_s: Floats  # (N,)
    total_s: Floats  # (N,) sum of the largest


@compiled
def lay_out(known: Stretches, leaps: Records, at: Ints) -> None:
    """Set `at` (M + 1,) for the rows that `extend` writes: those of `known` that are still needed, and new leaps."""
    at[:] = 0
    for i in range(len(known.counted)):
        for k in range(known.at[i], known.at[i + 1]):
            at[i + 1] += _is_needed(known.rows[k], known.counted[i])
    for k in range(len(leaps)):
        at[leaps[k]["instance"] + 1] += leaps[k]["batch"] > 0
    for i in range(len(known.counted)):
        at[i + 1] += at[i]


@compiled
def extend(known: Stretches, leaps: Records, grown: Stretches, place: Ints) -> int:
    """Write the rows of `grown`; return the index of a leap that does not follow the instance's last, or -1.

    `steps` and `end_s` of `grown` start as those of `known` and advance. `place` (M,) is scratch space.
    """
    for i in range(len(known.counted)):
        place[i] = grown.at[i]
        for k in range(known.at[i], known.at[i + 1]):
            if _is_needed(known.rows[k], known.counted[i]):
                grown.rows[place[i]] = known.rows[k]
                place[i] += 1
    for k in range(len(leaps)):
        leap = leaps[k]
        i, steps = leap["instance"], leap["steps"]
        if leap["batch"] == 0:
            continue
        if leap["step0"] != grown.steps[i]:
            return k
        row = grown.rows[place[i]]
        row["start_s"] = leap["start_s"]
        row["first_s"] = leap["first_s"]
        row["increment_s"] = leap["increment_s"]
        row["step0"] = leap["step0"]
        row["steps"] = steps
        row["batch"] = leap["batch"]
        row["joined"] = 0
        row["opening_s"] = _end_s(row, 0) - grown.end_s[i]
        place[i] += 1
        grown.steps[i] += steps
        grown.end_s[i] = _end_s(row, steps - 1)
    return -1


@compiled
def fold(memberships: Records, known: Stretches, tails: Tails, first_gap_s: Floats) -> int:
    """Fold memberships into the tails of their requests; return the index of an impossible row, or -1."""
    for index in range(len(memberships)):
        member = memberships[index]
        r, i, first, last = member["request"], member["instance"], member["first_step"], member["last_step"]
        begin = 0
        if i < 0:
            first, last = 0, 1
            first_gap_s[index] = member["previous_token_s"]
        else:
            if last <= first:
                continue
            if first < known.counted[i] or last > known.steps[i]:
                return index
            begin = _row_of(known, i, first)
            if known.rows[begin]["step0"] != first:
                return index
            first_gap_s[index] = _end_s(known.rows[begin], 0) - member["previous_token_s"]
            known.rows[begin]["joined"] += 1
        has_previous = not np.isnan(member["previous_token_s"])
        tokens = last - first - (not has_previous) + member["accepted"]
        if tokens == 0:  # it is the first token, and no gap precedes it
            continue
        if tails.seen[r] + tokens > tails.expected[r]:
            return index
        capacity = tails.at[r + 1] - tails.at[r]
        if tails.seen[r] == 0 and tokens == tails.expected[r]:
            heap = tails.scratch[:capacity]
        else:
            heap = tails.heap[tails.at[r] : tails.at[r + 1]]
        size = min(tails.seen[r], capacity)
        if has_previous:
            size = _push(heap, size, first_gap_s[index])
        if last - first > 1:
            for k in range(_row_of(known, i, last - 1), begin - 1, -1):
                row = known.rows[k]
                size = _scan(row, 1 if k == begin else 0, min(last - row["step0"], row["steps"]), heap, size)
        for _ in range(min(member["accepted"], capacity - size)):  # their gaps are 0, and no others are smaller
            size = _push(heap, size, 0.0)
        tails.seen[r] += tokens
        if tails.seen[r] == tails.expected[r]:
            tails.smallest_s[r] = heap[0]
            tails.second_s[r] = heap[0] if capacity == 1 else heap[1] if capacity == 2 else min(heap[1], heap[2])
            tails.largest_s[r], tails.total_s[r] = _largest_and_sum(heap)
    return -1


@inner
def _largest_and_sum(values: Floats) -> tuple[float, float]:
    """As numpy's own methods, whose compiled form imports scipy.linalg, which takes longer than all that is here."""
    largest_s, total_s = values[0], 0.0
    for k in range(len(values)):
        largest_s = max(largest_s, values[k])
        total_s += values[k]
    return largest_s, total_s


@inner
def _is_needed(row: np.void, counted: int) -> bool:
    return row["step0"] + row["steps"] > counted


@inner
def _end_s(row: np.void, j: int) -> float:
    return row["start_s"] + (j + 1) * row["first_s"] + 0.5 * j * (j + 1) * row["increment_s"]


@inner
def gap_s(row: np.void, j: int) -> float:
    """Gap j of a STRETCH, j > 0, in seconds."""
    return row["first_s"] + j * row["increment_s"]


@inner
def _largest_s(row: np.void) -> float:
    """Its largest gap, seconds; gaps 1, 2, ... rise or fall monotonically."""
    if row["steps"] == 1:
        return row["opening_s"]
    return max(row["opening_s"], gap_s(row, 1), gap_s(row, row["steps"] - 1))


@inner
def _row_of(known: Stretches, i: int, step: int) -> int:
    """The row that contains this step of instance i."""
    low, high = known.at[i], known.at[i + 1]
    while high - low > 1:
        middle = (low + high) // 2
        if known.rows[middle]["step0"] <= step:
            low = middle
        else:
            high = middle
    return low


@inner
def _scan(row: np.void, low: int, high: int, heap: Floats, size: int) -> int:
    """Push the gaps [low, high) of a row from the end: they grow with the context, so the largest tend to be late."""
    j = high
    while j > low:
        if size == len(heap) and _largest_s(row) <= heap[0]:
            break
        j -= 1
        value = row["opening_s"] if j == 0 else gap_s(row, j)
        if size == len(heap) and value <= heap[0]:
            if row["increment_s"] >= 0.0:
                j = min(j, max(low, 1))  # The gaps between these are no larger.
            continue
        size = _push(heap, size, value)
    return size


@inner
def _push(heap: Floats, size: int, value: float) -> int:
    """Keep the largest values in a min-heap of `size` values with a fixed capacity; return the new size."""
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


@inner
def bin_of(value: float) -> int:
    """The bin of a value in seconds; the first and the last one also hold what lies beyond them."""
    bits = int(np.float64(value).view(np.int64))
    return min(max((bits >> SHIFT) - LOWEST, 0), BINS - 1)


@compiled
def count_values(values: Floats, counts: Ints, sums: Floats) -> None:
    """Add values to the histogram `counts`; add them and their squares to `sums` (2,)."""
    for k in range(len(values)):
        counts[bin_of(values[k])] += 1
        sums[0] += values[k]
        sums[1] += values[k] * values[k]


@compiled
def count_steps(known: Stretches, until: Ints, counts: Ints, sums: Floats) -> None:
    """Count the gaps of steps [counted, until) of each instance, each as often as it has decodes."""
    total, squares = sums[0], sums[1]
    for i in range(len(until)):
        for k in range(known.at[i], known.at[i + 1]):
            row = known.rows[k]
            low, high = max(known.counted[i] - row["step0"], 0), min(until[i] - row["step0"], row["steps"])
            weight = row["batch"] - row["joined"]
            if low == 0 and high > 0 and weight > 0:
                value = row["opening_s"]
                counts[bin_of(value)] += weight
                total += weight * value
                squares += weight * value * value
            weight, chosen, alike = int(row["batch"]), 0, 0
            for j in range(max(low, 1), high):
                value = gap_s(row, j)
                if bin_of(value) != chosen:
                    counts[chosen] += weight * alike
                    chosen, alike = bin_of(value), 0
                alike += 1
                total += weight * value
                squares += weight * value * value
            counts[chosen] += weight * alike
    sums[0], sums[1] = total, squares
