"""Gaps between consecutive tokens (TBT), recovered from leaps and memberships without storing a token.

All decodes of one step emit together, so the gap between two decode steps of an instance is the same for every request
that took part in both. Leaps are therefore expanded once per step of an instance, never per token; a request's tail is
then a scan of its interval of steps that keeps the few largest, and the distribution over all tokens is one over steps,
each weighted by the requests that saw it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.errors import InvariantError
from framework.jit import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Records = NDArray[np.void]

_QUANTILES = (0.5, 0.9, 0.95, 0.99)
_TAIL = 0.99
_BLOCK = 32  # steps whose largest gap is kept, so that a scan can pass over them at once
# Histogram bins are the leading bits of a float64: 256 to an octave (at most 0.4 % wide), from 2**-40 s to 2**24 s.
_SHIFT = 44
_LOWEST = (1023 - 40) << 8
_BINS = 64 << 8


@dataclass(frozen=True)
class Gaps:
    """Token gaps of a run. NaN where undefined.

    `request_p99_s`, `request_max_s`: shape (N,), over the output_tokens - 1 gaps of a request, by linear interpolation;
    NaN for a request of one token and for one that did not emit all its tokens. The others: over the `count`
    gaps of all requests.
    """

    request_p99_s: Floats
    request_max_s: Floats
    count: int
    mean_s: float
    std_s: float
    median_s: float
    p90_s: float
    p95_s: float
    p99_s: float


class _Steps(NamedTuple):
    """Decode steps, instance after instance: step s of instance i is at offset[i] + s - base[i] of the flat arrays."""

    offset: Ints  # (M,)
    base: Ints  # (M,) first step kept
    end_s: Floats  # (S,)
    gap_s: Floats  # (S,) since the end of the instance's previous decode step
    weight: Ints  # (S,) decodes in the step; less those that began with it, once their memberships are known
    block_max_s: Floats  # (ceil(S / _BLOCK),)


class _Tails(NamedTuple):
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


def recover(leaps: Records, memberships: Records, output_tokens: Ints, instances: int) -> Gaps:
    """Exact statistics from a complete step log; percentiles as numpy's linear interpolation over all single gaps.

    Args:
        leaps, memberships: the engine's LEAP and MEMBERSHIP records, each instance's leaps in time order.
        output_tokens: shape (N,), tokens that each request emits if it finishes.
        instances: number of instances.

    Raises:
        InvariantError: memberships name decode steps that no leap made.
    """
    tails = _tails(output_tokens, _tail_capacity(output_tokens))
    steps, first_gap_s = _fold_all(leaps, memberships, tails, instances)
    values = np.concatenate([steps.gap_s, first_gap_s])
    weights = np.concatenate([steps.weight, np.ones(len(first_gap_s), np.int64)])
    count = int(weights.sum())
    if count == 0:
        return _gaps(tails, 0, np.nan, np.nan, np.full(len(_QUANTILES), np.nan))
    mean_s = float(weights @ values) / count
    variance = float(weights @ np.square(values - mean_s)) / count
    return _gaps(tails, count, mean_s, variance**0.5, _weighted_quantiles(values, weights, count))


def slowest_mean(leaps: Records, memberships: Records, output_tokens: Ints, instances: int, fraction: float) -> Floats:
    """Mean of the slowest `fraction` (at least one) of each request's gaps, seconds, shape (N,); NaN as in `Gaps`."""
    capacity = np.ceil(fraction * np.maximum(output_tokens - 1, 0)).astype(np.int64)
    tails = _tails(output_tokens, capacity)
    _fold_all(leaps, memberships, tails, instances)
    mean_s: Floats = tails.total_s / np.maximum(capacity, 1)
    return mean_s


class GapReducer:
    """The same statistics from a log that is handed over in pieces and then forgotten.

    Per-request values are exact; percentiles over all gaps come from a histogram whose bins are 0.4 % wide.
    """

    def __init__(self, output_tokens: Ints, instances: int) -> None:
        self._tails = _tails(output_tokens, _tail_capacity(output_tokens))
        self._steps = _no_steps(instances)
        self._last_end_s = np.zeros(instances)
        self._counts = np.zeros(_BINS, np.int64)
        self._sums = np.zeros(2)

    def add(self, leaps: Records, memberships: Records, keep_from_step: Ints) -> None:
        """Take the next rows, in the engine's order.

        Args:
            leaps, memberships: rows since the last call. The leaps that a membership spans come no later than it does.
            keep_from_step: shape (M,), the first step of the oldest decode on each instance that is still open (its
                membership has not been handed over); where there is none, the instance's decode steps so far.

        Raises:
            InvariantError: a membership names decode steps that no leap made or that need not be kept any more.
        """
        self._steps = _with_leaps(self._steps, leaps, self._last_end_s)
        first_gap_s = _folded(memberships, self._steps, self._tails)
        _tally(first_gap_s, np.ones(len(first_gap_s), np.int64), self._counts, self._sums)
        self._drop(keep_from_step)

    def finish(self) -> Gaps:
        """The statistics of all rows. The reducer takes no more of them."""
        self._drop(self._steps.base + _kept(self._steps))
        count = int(self._counts.sum())
        if count == 0:
            return _gaps(self._tails, 0, np.nan, np.nan, np.full(len(_QUANTILES), np.nan))
        mean_s = self._sums[0] / count
        variance = max(self._sums[1] / count - mean_s**2, 0.0)
        quantiles = _interpolated(count, lambda ranks: _histogram_order(self._counts, ranks))
        return _gaps(self._tails, count, float(mean_s), float(variance**0.5), quantiles)

    def _drop(self, keep_from_step: Ints) -> None:
        """Count the steps that no open decode has seen, whose weights are final, and forget them."""
        steps = self._steps
        dropped = np.clip(keep_from_step - steps.base, 0, _kept(steps))
        gone = np.concatenate([np.arange(at, at + n) for at, n in zip(steps.offset, dropped, strict=True)])
        _tally(steps.gap_s[gone], steps.weight[gone], self._counts, self._sums)
        stay = np.ones(len(steps.gap_s), np.bool_)
        stay[gone] = False
        offset = _starts(_kept(steps) - dropped)
        end_s, gap_s, weight = steps.end_s[stay], steps.gap_s[stay], steps.weight[stay]
        self._steps = _Steps(offset, steps.base + dropped, end_s, gap_s, weight, np.zeros(0))


def _tails(output_tokens: Ints, capacity: Ints) -> _Tails:
    count = len(output_tokens)
    at = np.zeros(count + 1, np.int64)
    np.cumsum(capacity, out=at[1:])
    nans = [np.full(count, np.nan) for _ in range(4)]
    scratch = np.empty(int(capacity.max(initial=0)))
    return _Tails(at, np.empty(at[-1]), scratch, output_tokens - 1, np.zeros(count, np.int64), *nans)


def _tail_capacity(output_tokens: Ints) -> Ints:
    """How many of the largest gaps decide a request's percentile."""
    gaps = output_tokens - 1
    return np.where(gaps > 0, gaps - np.floor((gaps - 1) * _TAIL).astype(np.int64), 0)


def _gaps(tails: _Tails, count: int, mean_s: float, std_s: float, quantiles_s: Floats) -> Gaps:
    rank = (tails.expected - 1) * _TAIL
    p99_s = _lerp(tails.smallest_s, tails.second_s, rank - np.floor(rank))
    return Gaps(p99_s, tails.largest_s, count, mean_s, std_s, *(float(value) for value in quantiles_s))


def _lerp(low: Floats, high: Floats, fraction: Floats) -> Floats:
    """numpy's interpolation between two order statistics, to the bit."""
    step = high - low
    return np.where(fraction >= 0.5, high - step * (1 - fraction), low + step * fraction)


def _interpolated(count: int, order_statistics: Callable[[Ints], Floats]) -> Floats:
    ranks = (count - 1) * np.array(_QUANTILES)
    low = np.floor(ranks).astype(np.int64)
    high = np.minimum(low + 1, count - 1)
    values = order_statistics(np.concatenate([low, high]))
    return _lerp(values[: len(low)], values[len(low) :], ranks - low)


def _weighted_quantiles(values: Floats, weights: Ints, count: int) -> Floats:
    """Quantiles of the values, each repeated `weight` times: a histogram says which values need to be sorted."""
    counts = np.zeros(_BINS, np.int64)
    _tally(values, weights, counts, np.zeros(2))
    below = np.cumsum(counts)
    bins = _bins(values)

    def order_statistics(ranks: Ints) -> Floats:
        found = np.empty(len(ranks))
        for k, rank in enumerate(ranks):
            chosen = int(np.searchsorted(below, rank, side="right"))
            member = bins == chosen
            order = np.argsort(values[member], kind="stable")
            running = np.cumsum(weights[member][order]) + below[chosen] - counts[chosen]
            found[k] = values[member][order][np.searchsorted(running, rank, side="right")]
        return found

    return _interpolated(count, order_statistics)


def _histogram_order(counts: Ints, ranks: Ints) -> Floats:
    """Order statistics from a histogram, values taken as spread evenly over their bin."""
    below = np.cumsum(counts)
    chosen = np.searchsorted(below, ranks, side="right")
    edges = ((np.stack([chosen, chosen + 1]) + _LOWEST) << _SHIFT).view(np.float64)
    position = (ranks - below[chosen] + counts[chosen] + 0.5) / counts[chosen]
    return edges[0] + (edges[1] - edges[0]) * position


def _bins(values: Floats) -> Ints:
    return np.clip((values.view(np.int64) >> _SHIFT) - _LOWEST, 0, _BINS - 1)


def _no_steps(instances: int) -> _Steps:
    none = np.zeros(0)
    zeros = np.zeros(instances, np.int64)
    return _Steps(zeros, zeros.copy(), none, none, np.zeros(0, np.int64), none)


def _kept(steps: _Steps) -> Ints:
    return np.diff(np.append(steps.offset, len(steps.gap_s)))


def _starts(counts: Ints) -> Ints:
    return np.cumsum(counts) - counts


def _with_leaps(steps: _Steps, leaps: Records, last_end_s: Floats) -> _Steps:
    """`steps` followed by those of `leaps`; `last_end_s`, the end of each instance's last decode step, is moved on."""
    kept = _kept(steps)
    decoding = leaps["batch"] > 0
    new = np.bincount(leaps["instance"][decoding], leaps["steps"][decoding], minlength=len(kept)).astype(np.int64)
    offset = _starts(kept + new)
    size = int((kept + new).sum())
    grown = _Steps(
        offset, steps.base, np.empty(size), np.empty(size), np.empty(size, np.int64), np.empty(-(-size // _BLOCK))
    )
    for old, now in ((steps.end_s, grown.end_s), (steps.gap_s, grown.gap_s), (steps.weight, grown.weight)):
        _move(old, steps.offset, kept, now, offset)
    _expand(leaps, grown, offset + kept + new, last_end_s)
    return grown


def _move(source: NDArray[Any], source_at: Ints, counts: Ints, target: NDArray[Any], target_at: Ints) -> None:
    for i, count in enumerate(counts):
        target[target_at[i] : target_at[i] + count] = source[source_at[i] : source_at[i] + count]


def _fold_all(leaps: Records, memberships: Records, tails: _Tails, instances: int) -> tuple[_Steps, Floats]:
    steps = _with_leaps(_no_steps(instances), leaps, np.zeros(instances))
    return steps, _folded(memberships, steps, tails)


def _folded(memberships: Records, steps: _Steps, tails: _Tails) -> Floats:
    """Put the gaps of `memberships` into `tails` and lower the weights; returns the gaps before their first steps."""
    first_gap_s = np.full(len(memberships), np.nan)
    wrong = _fold(memberships, steps, _kept(steps), tails, first_gap_s)
    if wrong >= 0:
        raise InvariantError(f"membership {memberships[wrong]} spans decode steps that the step log does not hold")
    return first_gap_s[~np.isnan(first_gap_s)]


@compiled
def _expand(leaps: Records, steps: _Steps, limit: Ints, last_end_s: Floats) -> None:
    """Write the steps of each leap, then the block maxima. Steps beyond `limit` (M,) would be another instance's."""
    for row in range(len(leaps)):
        leap = leaps[row]
        if leap["batch"] == 0:
            continue
        i = leap["instance"]
        at = steps.offset[i] + leap["step0"] - steps.base[i]
        first_s, increment_s = leap["first_s"], leap["increment_s"]
        for j in range(leap["steps"]):
            if at + j >= limit[i]:
                break
            end_s = leap["start_s"] + (j + 1) * first_s + 0.5 * j * (j + 1) * increment_s
            steps.end_s[at + j] = end_s
            steps.gap_s[at + j] = first_s + j * increment_s if j > 0 else end_s - last_end_s[i]
            steps.weight[at + j] = leap["batch"]
            last_end_s[i] = end_s
    for block in range(len(steps.block_max_s)):
        steps.block_max_s[block] = steps.gap_s[block * _BLOCK : (block + 1) * _BLOCK].max()


@compiled
def _fold(memberships: Records, steps: _Steps, kept: Ints, tails: _Tails, first_gap_s: Floats) -> int:
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
            if first < steps.offset[i] or last > steps.offset[i] + kept[i]:
                return row
            first_gap_s[row] = steps.end_s[first] - member["previous_token_s"]
            steps.weight[first] -= 1
        gaps = max(last - first, 1)
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
def _scan(steps: _Steps, first: int, last: int, heap: Floats, size: int) -> None:
    """Push the gaps of steps [first, last) from the end: gaps grow with the context, so the largest tend to be late."""
    at = last
    while at > first:
        if size == len(heap):
            if at % _BLOCK == 0 and at - _BLOCK >= first and steps.block_max_s[at // _BLOCK - 1] <= heap[0]:
                at -= _BLOCK
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
def _count(values: Floats, bits: Ints, weights: Ints, counts: Ints, sums: Floats) -> None:
    for k in range(len(values)):
        if weights[k] > 0:
            chosen = min(max((bits[k] >> _SHIFT) - _LOWEST, 0), _BINS - 1)
            counts[chosen] += weights[k]
            sums[0] += weights[k] * values[k]
            sums[1] += weights[k] * values[k] * values[k]


def _tally(values: Floats, weights: Ints, counts: Ints, sums: Floats) -> None:
    """Add to the histogram `counts`, and to `sums` the weighted sums of values and of their squares."""
    _count(values, values.view(np.int64), weights, counts, sums)
