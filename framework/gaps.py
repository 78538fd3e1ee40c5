"""Gaps between consecutive tokens (TBT), recovered from leaps and memberships without storing a token.

All decodes of one step emit together, so the gap between two decode steps of an instance is the same for every request
that took part in both. Leaps are therefore expanded once per step of an instance, never per token; a request's tail is
then a scan of its interval of steps that keeps the few largest, and the distribution over all tokens is one over steps,
each weighted by the requests that saw it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from framework.errors import InvariantError
from framework.gap_kernels import (
    BINS,
    BLOCK,
    LOWEST,
    SHIFT,
    Floats,
    Ints,
    Records,
    Steps,
    Tails,
    count_weighted,
    expand,
    fold,
)

_QUANTILES = (0.5, 0.9, 0.95, 0.99)
_TAIL = 0.99


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


def recover(leaps: Records, memberships: Records, output_tokens: Ints, instances: int) -> Gaps:
    """Exact statistics from a complete step log; percentiles as numpy's linear interpolation over all single gaps.

    Args:
        leaps, memberships: the engine's LEAP and MEMBERSHIP records, each instance's leaps in time order.
        output_tokens: shape (N,), tokens that each request emits if it finishes.
        instances: number of instances.

    Raises:
        InvariantError: leaps of an instance leave steps out, or memberships do not fit them.
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
        self._counts = np.zeros(BINS, np.int64)
        self._sums = np.zeros(2)

    def add(self, leaps: Records, memberships: Records, keep_from_step: Ints) -> None:
        """Take the next rows, in the engine's order.

        Args:
            leaps, memberships: rows since the last call. The leaps that a membership spans come no later than it does.
            keep_from_step: shape (M,), the first step of the oldest decode on each instance that is still open (its
                membership has not been handed over); where there is none, the instance's decode steps so far.

        Raises:
            InvariantError: as `recover`; also where a membership needs steps that were not to be kept.
        """
        self._steps = _with_leaps(self._steps, leaps, self._last_end_s)
        first_gap_s = _folded(memberships, self._steps, self._tails)
        _tally(first_gap_s, np.ones(len(first_gap_s), np.int64), self._counts, self._sums)
        self._drop(keep_from_step)

    def finish(self) -> Gaps:
        """The statistics of all rows. The reducer takes no more of them."""
        self._drop(self._steps.base + self._steps.kept)
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
        dropped = np.clip(keep_from_step - steps.base, 0, steps.kept)
        gone = np.zeros(len(steps.gap_s), np.bool_)
        for at, count in zip(steps.offset, dropped, strict=True):
            gone[at : at + count] = True
        _tally(steps.gap_s[gone], steps.weight[gone], self._counts, self._sums)
        kept, stay = steps.kept - dropped, ~gone
        left = steps.end_s[stay], steps.gap_s[stay], steps.weight[stay]
        self._steps = Steps(np.cumsum(kept) - kept, steps.base + dropped, kept, *left, np.zeros(0))


def _tails(output_tokens: Ints, capacity: Ints) -> Tails:
    count = len(output_tokens)
    at = np.zeros(count + 1, np.int64)
    np.cumsum(capacity, out=at[1:])
    nans = [np.full(count, np.nan) for _ in range(4)]
    scratch = np.empty(int(capacity.max(initial=0)))
    return Tails(at, np.empty(at[-1]), scratch, output_tokens - 1, np.zeros(count, np.int64), *nans)


def _tail_capacity(output_tokens: Ints) -> Ints:
    """How many of the largest gaps decide a request's percentile."""
    gaps = output_tokens - 1
    return np.where(gaps > 0, gaps - np.floor((gaps - 1) * _TAIL).astype(np.int64), 0)


def _gaps(tails: Tails, count: int, mean_s: float, std_s: float, quantiles_s: Floats) -> Gaps:
    rank = (tails.expected - 1) * _TAIL
    p99_s = _lerp(tails.smallest_s, tails.second_s, rank - np.floor(rank))
    return Gaps(p99_s, tails.largest_s, count, mean_s, std_s, *(float(value) for value in quantiles_s))


def _lerp(low: Floats, high: Floats, fraction: Floats) -> Floats:
    """numpy's interpolation between two order statistics, to the bit."""
    step = high - low
    value: Floats = np.where(fraction >= 0.5, high - step * (1 - fraction), low + step * fraction)
    return value


def _interpolated(count: int, order_statistics: Callable[[Ints], Floats]) -> Floats:
    ranks = (count - 1) * np.array(_QUANTILES)
    low = np.floor(ranks).astype(np.int64)
    high = np.minimum(low + 1, count - 1)
    values = order_statistics(np.concatenate([low, high]))
    return _lerp(values[: len(low)], values[len(low) :], ranks - low)


def _weighted_quantiles(values: Floats, weights: Ints, count: int) -> Floats:
    """Quantiles of the values, each repeated `weight` times: a histogram says which values need to be sorted."""
    counts = np.zeros(BINS, np.int64)
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
    edges = ((np.stack([chosen, chosen + 1]) + LOWEST) << SHIFT).view(np.float64)
    position = (ranks - below[chosen] + counts[chosen] + 0.5) / counts[chosen]
    values: Floats = edges[0] + (edges[1] - edges[0]) * position
    return values


def _bins(values: Floats) -> Ints:
    bins: Ints = np.clip((values.view(np.int64) >> SHIFT) - LOWEST, 0, BINS - 1)
    return bins


def _no_steps(instances: int) -> Steps:
    none, zeros = np.zeros(0), np.zeros(instances, np.int64)
    return Steps(zeros, zeros, zeros, none, none, np.zeros(0, np.int64), none)


def _with_leaps(steps: Steps, leaps: Records, last_end_s: Floats) -> Steps:
    """`steps` followed by those of `leaps`; `last_end_s`, the end of each instance's last decode step, is moved on."""
    decoding = leaps["batch"] > 0
    new = np.bincount(leaps["instance"][decoding], leaps["steps"][decoding], minlength=len(steps.kept))
    count = steps.kept + new.astype(np.int64)
    offset, size = np.cumsum(count) - count, int(count.sum())
    blocks = np.empty(-(-size // BLOCK))
    grown = Steps(offset, steps.base, count, np.empty(size), np.empty(size), np.empty(size, np.int64), blocks)
    for old, now in ((steps.end_s, grown.end_s), (steps.gap_s, grown.gap_s), (steps.weight, grown.weight)):
        for source, target, kept in zip(steps.offset, offset, steps.kept, strict=True):
            now[target : target + kept] = old[source : source + kept]
    wrong = expand(leaps, grown, steps.kept.copy(), last_end_s)
    if wrong >= 0:
        raise InvariantError(f"leap {leaps[wrong]} does not follow the instance's leap before")
    return grown


def _fold_all(leaps: Records, memberships: Records, tails: Tails, instances: int) -> tuple[Steps, Floats]:
    steps = _with_leaps(_no_steps(instances), leaps, np.zeros(instances))
    return steps, _folded(memberships, steps, tails)


def _folded(memberships: Records, steps: Steps, tails: Tails) -> Floats:
    """Put the gaps of `memberships` into `tails` and lower the weights; returns the gaps before their first steps."""
    first_gap_s = np.full(len(memberships), np.nan)
    wrong = fold(memberships, steps, tails, first_gap_s)
    if wrong >= 0:
        raise InvariantError(f"membership {memberships[wrong]} does not fit the step log or its request's length")
    found: Floats = first_gap_s[~np.isnan(first_gap_s)]
    return found


def _tally(values: Floats, weights: Ints, counts: Ints, sums: Floats) -> None:
    """Add to the histogram `counts`, and to `sums` the weighted sums of values and of their squares."""
    count_weighted(values, values.view(np.int64), weights, counts, sums)
