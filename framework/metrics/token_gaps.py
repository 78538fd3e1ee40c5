"""Gaps between consecutive tokens (TBT), recovered from leaps and memberships without storing a token.

All decodes of one step emit together, so the gap between two decode steps of an instance is the same for every request
in both. Accepted drafts come with the token of their step, after gaps of 0. A scan of the leaps that a request spans
keeps its few largest gaps, which are its tail. The distribution over all tokens is a distribution over steps, each
weighted by its requests. Step times are computed from their leap when needed, and never stored.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from framework.errors import InvariantError
from framework.metrics.gap_ranks import ranked
from framework.metrics.token_gaps_compiled import (
    BINS,
    LOWEST,
    SHIFT,
    STRETCH,
    Floats,
    Ints,
    Records,
    Stretches,
    Tails,
    count_steps,
    count_values,
    extend,
    fold,
    lay_out,
)
from framework.result import Gaps, Spread

_QUANTILES = (0.5, 0.9, 0.95, 0.99)
_TAIL = 0.99
_ROWS_AT_ONCE = 65_536  # requests
_NONE = Spread(0, *[float("nan")] * 6)


def recover(leaps: Records, memberships: Records, output_tokens: Ints, instances: int) -> Gaps:
    """Exact statistics from a complete step log; percentiles as numpy's linear interpolation over all single gaps.

    Args:
        leaps, memberships: the engine's STEP_LOG and TOKEN_LOG records, each instance's leaps in time order.
        output_tokens: shape (N,), tokens that each request emits if it finishes.
        instances: number of instances.

    Raises:
        InvariantError: leaps of an instance leave steps out, or memberships do not fit them.
    """
    tails = _tails(output_tokens, _tail_capacity(output_tokens))
    stretches, first_gap_s = _fold_all(leaps, memberships, tails, instances)
    counts, sums = np.zeros(BINS, np.int64), np.zeros(2)
    count_steps(stretches, stretches.steps, counts, sums)
    count_values(first_gap_s, counts, sums)
    zeros = int(memberships["accepted"].sum())

    def spread(zeros: int) -> Spread:
        seen = int(counts.sum()) + zeros
        if seen == 0:
            return _NONE
        mean_s = float(sums[0]) / seen
        squares, values_s = ranked(stretches, first_gap_s, counts, zeros, mean_s, _ranks_around(seen))
        return _spread(seen, mean_s, squares / seen, values_s)

    return _gaps(tails, spread, zeros)


def slowest_mean(leaps: Records, memberships: Records, output_tokens: Ints, instances: int, fraction: float) -> Floats:
    """Mean of the slowest `fraction` (at least one) of each request's gaps, seconds, shape (N,); NaN as in `Gaps`."""
    capacity = np.ceil(fraction * np.maximum(output_tokens - 1, 0)).astype(np.int64)
    tails = _tails(output_tokens, capacity)
    _fold_all(leaps, memberships, tails, instances)
    mean_s: Floats = tails.total_s / np.maximum(capacity, 1)
    return mean_s


def gap_shares(leaps: Records, memberships: Records, output_tokens: Ints, instances: int) -> tuple[Floats, Floats]:
    """The distribution of all gaps: values in seconds, ascending, and the share of the gaps up to each.

    A value stands for a bin that is 0.4 % wide, by its upper edge. Both are empty if there are no gaps.
    """
    tails = _tails(output_tokens, _tail_capacity(output_tokens))
    stretches, first_gap_s = _fold_all(leaps, memberships, tails, instances)
    counts, sums = np.zeros(BINS, np.int64), np.zeros(2)
    count_steps(stretches, stretches.steps, counts, sums)
    count_values(first_gap_s, counts, sums)
    counts[0] += int(memberships["accepted"].sum())
    filled = np.flatnonzero(counts)
    upto: Floats = ((filled + 1 + LOWEST) << SHIFT).view(np.float64)
    return upto, np.cumsum(counts[filled]) / max(1, counts.sum())


class GapReducer:
    """The statistics of gaps from a log that comes in pieces, each forgotten after use.

    Per-request values are exact; percentiles over all gaps come from a histogram whose bins are 0.4 % wide.
    """

    def __init__(self, output_tokens: Ints, instances: int) -> None:
        self._tails = _tails(output_tokens, _tail_capacity(output_tokens))
        self._stretches = _none(instances)
        self._counts = np.zeros(BINS, np.int64)
        self._zeros = 0
        self._sums = np.zeros(2)

    def add(self, leaps: Records, memberships: Records, keep_from_step: Ints) -> None:
        """Take the next rows, in the engine's order.

        Args:
            leaps, memberships: rows since the last call. The leaps that a membership spans come no later than it does.
            keep_from_step: shape (M,), for each instance the first step of its oldest decode that is still open (its
                membership has not come yet); without an open decode, the instance's decode steps so far.

        Raises:
            InvariantError: as `recover`; also if a membership needs steps that were not kept.
        """
        self._stretches = _extended(self._stretches, leaps)
        count_values(_folded(memberships, self._stretches, self._tails), self._counts, self._sums)
        self._zeros += int(memberships["accepted"].sum())
        self._count_until(keep_from_step)

    def finish(self) -> Gaps:
        """The statistics of all rows. The reducer takes no rows after this."""
        self._count_until(self._stretches.steps)
        return _gaps(self._tails, self._spread, self._zeros)

    def _spread(self, zeros: int) -> Spread:
        counts = self._counts.copy()
        counts[0] += zeros
        seen = int(counts.sum())
        if seen == 0:
            return _NONE
        mean_s = float(self._sums[0]) / seen
        variance = max(float(self._sums[1]) / seen - mean_s**2, 0.0)
        return _spread(seen, mean_s, variance, _histogram_order(counts, _ranks_around(seen)))

    def _count_until(self, keep_from_step: Ints) -> None:
        """Count the steps that no open decode has seen, whose weights are final."""
        counted, steps = self._stretches.counted, self._stretches.steps
        until = np.clip(keep_from_step, counted, steps)
        count_steps(self._stretches, until, self._counts, self._sums)
        counted[:] = until


def _tails(output_tokens: Ints, capacity: Ints) -> Tails:
    count = len(output_tokens)
    at = np.zeros(count + 1, np.int64)
    np.cumsum(capacity, out=at[1:])
    nans = [np.full(count, np.nan) for _ in range(4)]
    scratch = np.empty(int(capacity.max(initial=0)))
    return Tails(at, np.empty(at[-1]), scratch, output_tokens - 1, np.zeros(count, np.int64), *nans)


def _tail_capacity(output_tokens: Ints) -> Ints:
    """The number of largest gaps that decide a request's percentile."""
    gaps = output_tokens - 1
    return np.where(gaps > 0, gaps - np.floor((gaps - 1) * _TAIL).astype(np.int64), 0)


def _gaps(tails: Tails, spread: Callable[[int], Spread], zeros: int) -> Gaps:
    """The statistics; `spread(zeros)` is over all gaps that are not 0 and `zeros` gaps of 0."""
    p99_s = np.empty(len(tails.expected))
    for first in range(0, len(p99_s), _ROWS_AT_ONCE):  # keeps the intermediate arrays small
        part = slice(first, first + _ROWS_AT_ONCE)
        rank = (tails.expected[part] - 1) * _TAIL
        p99_s[part] = _lerp(tails.smallest_s[part], tails.second_s[part], rank - np.floor(rank))
    every = spread(zeros)
    return Gaps(p99_s, tails.largest_s, every, spread(0) if zeros else every)


def _spread(count: int, mean_s: float, variance: float, values_s: Floats) -> Spread:
    """The statistics of `count` gaps; `values_s` has those of `_ranks_around(count)`."""
    ranks = (count - 1) * np.array(_QUANTILES)
    low_s, high_s = np.split(values_s, 2)
    quantiles_s = _lerp(low_s, high_s, ranks - np.floor(ranks))
    return Spread(count, mean_s, variance**0.5, *(float(value) for value in quantiles_s))


def _lerp(low: Floats, high: Floats, fraction: Floats) -> Floats:
    """numpy's interpolation between two order statistics, to the bit."""
    step = high - low
    value: Floats = np.where(fraction >= 0.5, high - step * (1 - fraction), low + step * fraction)
    return value


def _ranks_around(count: int) -> Ints:
    """The ranks below and above each quantile, shape (2 * quantiles,)."""
    low = np.floor((count - 1) * np.array(_QUANTILES)).astype(np.int64)
    return np.concatenate([low, np.minimum(low + 1, count - 1)])


def _histogram_order(counts: Ints, ranks: Ints) -> Floats:
    """Order statistics from a histogram, with values spread evenly over their bin."""
    below = np.cumsum(counts)
    chosen = np.searchsorted(below, ranks, side="right")
    edges = ((np.stack([chosen, chosen + 1]) + LOWEST) << SHIFT).view(np.float64)
    position = (ranks - below[chosen] + counts[chosen] + 0.5) / counts[chosen]
    values: Floats = edges[0] + (edges[1] - edges[0]) * position
    return values


def _none(instances: int) -> Stretches:
    begin = np.zeros(instances + 1, np.int64), np.zeros(instances, np.int64), np.zeros(instances, np.int64)
    return Stretches(np.zeros(0, STRETCH), *begin, np.zeros(instances))


def _extended(known: Stretches, leaps: Records) -> Stretches:
    """The part of `known` that is still needed, followed by `leaps`."""
    at = np.empty_like(known.at)
    lay_out(known, leaps, at)
    grown = Stretches(np.empty(at[-1], STRETCH), at, known.counted, known.steps.copy(), known.end_s.copy())
    wrong = extend(known, leaps, grown, np.empty_like(known.steps))
    if wrong >= 0:
        raise InvariantError(f"leap {leaps[wrong]} does not follow the instance's leap before")
    return grown


def _fold_all(leaps: Records, memberships: Records, tails: Tails, instances: int) -> tuple[Stretches, Floats]:
    stretches = _extended(_none(instances), leaps)
    return stretches, _folded(memberships, stretches, tails)


def _folded(memberships: Records, stretches: Stretches, tails: Tails) -> Floats:
    """Put the gaps of `memberships` into `tails` and count new members; return the gaps before their first steps."""
    first_gap_s = np.full(len(memberships), np.nan)
    wrong = fold(memberships, stretches, tails, first_gap_s)
    if wrong >= 0:
        raise InvariantError(f"membership {memberships[wrong]} does not fit the step log or its request's length")
    found: Floats = first_gap_s[~np.isnan(first_gap_s)]
    return found
