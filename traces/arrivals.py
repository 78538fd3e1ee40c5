"""When requests arrive, as a small model that can be fitted to arrival times and sampled to any length."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError
from traces.statistics import clock_tick

LEAST_REQUESTS = 36  # of a window: it tells nothing of a single request
MOST_WINDOWS = 512
CELLS_S = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
CELL_SHARE = 1 / 8  # of the requests of a window: what a cell holds on average, at most
MOST_CELLS = 10**7
LEVELS = 24  # of halvings

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class ArrivalModel:
    """Arrivals in windows of unlike width, halved down to cells by beta-binomial draws.

    `period_s` is the time that the trace stands for; longer samples repeat it. The period is a row of cells of
    `cell_s`; window w is `cells[w]` of them and has `counts[w]` arrivals, both (W,). How evenly arrivals fall into the
    two halves of a part of 2^k to 2^(k+1) cells says `concentration[k]` (K,), that of a beta law: infinite for Poisson,
    small for bursts. Within a cell arrivals are uniform, or, if the clock `ticks`, all at its beginning.
    """

    period_s: float
    cell_s: float
    ticks: bool
    cells: Counts
    counts: Counts
    concentration: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Refuse windows that cannot be sampled."""
        if len(self.cells) != len(self.counts) or min(self.cells) < 1 or min(self.counts) < 1:
            raise ValueError("windows need a width and counts")
        if not self.cell_s > 0 or not (sum(self.cells) - 1) * self.cell_s <= self.period_s:
            raise ValueError("the cells do not fit into the period")
        if len(self.concentration) < 1 or min(self.concentration) <= 0:
            raise ValueError("the levels of arrivals need concentrations")

    def sample(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Arrival times of one period in seconds, sorted, each window's counts in a row."""
        begin = np.concatenate(([0], np.cumsum(self.cells)[:-1]))
        parts = _Parts(begin, self.cells, self.counts)
        while (parts.cells > 1).any():
            parts = self._halved(parts, rng)
        cell = np.repeat(parts.begin, parts.counts).astype(np.float64)
        if not self.ticks:
            cell += rng.random(len(cell))
        return np.minimum(np.sort(cell * self.cell_s), np.nextafter(self.period_s, 0))

    def _halved(self, parts: _Parts, rng: np.random.Generator) -> _Parts:
        """Each part of more than one cell as its two halves, in place of it."""
        wide = parts.cells > 1
        left, level = parts.cells // 2, _level(parts.cells)
        concentration = self.concentration[np.minimum(level, len(self.concentration) - 1)]
        share = left / parts.cells
        bursty = wide & np.isfinite(concentration)
        share[bursty] = _beta(share[bursty], concentration[bursty], rng)
        first = np.where(wide, rng.binomial(parts.counts, np.where(wide, share, 0)), parts.counts)
        begin = np.stack((parts.begin, parts.begin + left), axis=1)
        cells = np.stack((np.where(wide, left, 1), parts.cells - left), axis=1)
        counts = np.stack((first, parts.counts - first), axis=1)
        kept = np.stack((np.ones_like(wide), wide), axis=1) & (counts > 0)
        return _Parts(begin[kept], cells[kept], counts[kept])


@dataclass(frozen=True)
class _Parts:
    """Rows of cells: the first, how many, and the arrivals in them; arrays of one length."""

    begin: Counts
    cells: Counts
    counts: Counts


def fit_arrivals(arrival_s: NDArray[np.float64]) -> ArrivalModel:
    """Windows of at least LEAST_REQUESTS arrivals, and the concentration of the halves of their parts."""
    since = arrival_s - arrival_s[0]
    tick = clock_tick(arrival_s)
    requests = max(LEAST_REQUESTS, math.ceil(len(since) / MOST_WINDOWS))
    cell_s = tick or _cell_s(float(since[-1]), len(since), requests)
    per_cell = np.bincount(np.floor(since / cell_s + (0.5 if tick else 0.0)).astype(np.int64))  # ticks come early or late
    cells, counts = _windows(per_cell, requests)
    period_s = max(float(since[-1]) * len(since) / (len(since) - 1), (len(per_cell) - 1) * cell_s * (1 + 1e-9))
    return ArrivalModel(period_s, cell_s, tick > 0, cells, counts, _concentrations(per_cell, cells))


def window_of(counts: Counts) -> Counts:
    """The window of each request in order of arrival."""
    return np.repeat(np.arange(len(counts)), counts)


def _cell_s(duration_s: float, requests: int, of_window: int) -> float:
    mean_gap_s = duration_s / requests
    fine = [cell for cell in CELLS_S if cell <= CELL_SHARE * of_window * mean_gap_s]
    return max(fine[0] if fine else CELLS_S[-1], 10 ** math.ceil(math.log10(duration_s / MOST_CELLS)))


def _windows(per_cell: Counts, requests: int) -> tuple[Counts, Counts]:
    """Cells and arrivals of windows that end as soon as they hold so many requests; the last takes what is left."""
    ends, counts, held = [], [], 0
    for cell in np.flatnonzero(per_cell).tolist():
        held += int(per_cell[cell])
        if held >= requests:
            ends.append(cell + 1)
            counts.append(held)
            held = 0
    if not ends:
        ends, counts, held = [len(per_cell)], [held], 0
    counts[-1] += held
    ends[-1] = len(per_cell)
    return np.diff(ends, prepend=0), np.array(counts)


def _concentrations(per_cell: Counts, cells: Counts) -> NDArray[np.float64]:
    """For each level A of splits of n into c and n - c, the left half with share p: by moments, the sum of (c - np)^2
    is that of np(1 - p) (1 + (n - 1) / (A + 1))."""
    until = np.concatenate(([0], np.cumsum(per_cell)))
    begin, size = np.concatenate(([0], np.cumsum(cells)[:-1])), cells
    found, even, more = np.zeros((3, LEVELS))
    while len(size):
        wide = size > 1
        begin, size = begin[wide], size[wide]
        left = size // 2
        counts = until[begin + size] - until[begin]
        first = until[begin + left] - until[begin]
        share = left / size
        level = _level(size)
        expected = counts * share * (1 - share)
        found += np.bincount(level, (first - counts * share) ** 2, LEVELS)
        even += np.bincount(level, expected, LEVELS)
        more += np.bincount(level, expected * np.maximum(counts - 1, 0), LEVELS)
        begin, size = np.concatenate((begin, begin + left)), np.concatenate((left, size - left))
    used = np.flatnonzero(even)
    levels = np.arange(used[-1] + 1 if len(used) else 1)
    bursty = found[levels] > 1.001 * even[levels]
    excess = np.where(bursty, found[levels] - even[levels], 1)
    return np.where(bursty, np.maximum(more[levels] / excess - 1, 1e-2), np.inf)


def _level(cells: Counts) -> Counts:
    return np.log2(cells).astype(np.int64)


def _beta(mean: NDArray[np.float64], concentration: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Beta draws; where both sides underflow one side has it all."""
    one, other = (np.maximum(rng.standard_gamma(concentration * side), 1e-300) for side in (mean, 1 - mean))
    return one / (one + other)
