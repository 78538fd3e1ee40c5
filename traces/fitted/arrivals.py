"""Arrivals of requests, as a small model that can be fitted to arrival times and sampled to any length."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.fitted.quantiles import LEAST_REQUESTS
from traces.statistics import clock_tick, dispersion

MOST_WINDOWS = 512
CELLS_S = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
CELL_SHARE = 1 / 8  # largest mean share of a window's requests in a cell
MOST_CELLS = 10**5
WIDEST = 4
WIDTHS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds of the windows in which dispersion is compared
LEAST_COUNTS = 8  # windows below which their dispersion says little
SAMPLES = 5
LEAST_DISPERSION = 0.1  # differences between smaller ones do not count
GRAIN_HALVINGS = 10
LEVELS = 40  # levels of halvings
LEAST_CONCENTRATION = 1e-2

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class ArrivalModel:
    """Arrivals in windows of different width, halved repeatedly by beta-binomial draws.

    `period_s` is the period of the trace; longer samples repeat it. The period is a row of cells of
    `cell_s`; window w is `cells[w]` of them and has `counts[w]` arrivals, both (W,). `concentration[k]` (K,), of a beta
    distribution, says how evenly arrivals fall into the two halves of a part of 2^k to 2^(k+1) grains: infinite for
    Poisson, small for bursts. A grain is a cell halved GRAIN_HALVINGS times, within which arrivals are uniform. If the
    clock `ticks`, a grain is a cell, and all its arrivals come at its beginning.
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
        per_cell = _grains(ticks=self.ticks)
        begin = np.concatenate(([0], np.cumsum(self.cells)[:-1]))
        parts = _Parts(begin * per_cell, self.cells * per_cell, self.counts)
        while ((parts.grains > 1) & (parts.counts > 1)).any():
            parts = self._halved(parts, rng)
        within = rng.random(int(self.counts.sum())) * np.repeat(parts.grains, parts.counts)
        grain = np.repeat(parts.begin, parts.counts) + (np.floor(within) if self.ticks else within)
        return np.minimum(np.sort(grain * (self.cell_s / per_cell)), np.nextafter(self.period_s, 0))

    def _halved(self, parts: _Parts, rng: np.random.Generator) -> _Parts:
        """Each part of more than one grain and arrival replaced by its two halves."""
        wide = (parts.grains > 1) & (parts.counts > 1)
        left, level = parts.grains // 2, _level(parts.grains)
        concentration = self.concentration[np.minimum(level, len(self.concentration) - 1)]
        share = left / parts.grains
        bursty = wide & np.isfinite(concentration)
        share[bursty] = _beta(share[bursty], concentration[bursty], rng)
        first = np.where(wide, rng.binomial(parts.counts, np.where(wide, share, 0)), parts.counts)
        begin = np.stack((parts.begin, parts.begin + left), axis=1)
        grains = np.stack((np.where(wide, left, parts.grains), parts.grains - left), axis=1)
        counts = np.stack((first, parts.counts - first), axis=1)
        kept = np.stack((np.ones_like(wide), wide), axis=1) & (counts > 0)
        return _Parts(begin[kept], grains[kept], counts[kept])


@dataclass(frozen=True)
class _Parts:
    """Rows of grains: the first, their number, and their arrivals; arrays of one length."""

    begin: Counts
    grains: Counts
    counts: Counts


def fit_arrivals(arrival_s: NDArray[np.float64]) -> ArrivalModel:
    """Windows of at least LEAST_REQUESTS arrivals, and the concentration of the halves of their parts.

    Of two ways to cut windows it takes the one whose samples disperse as the trace does. Cuts at changes of the rate
    follow bursts, but mistake chance for a change if there are none.
    """
    since = arrival_s - arrival_s[0]
    tick = clock_tick(arrival_s)
    requests = max(LEAST_REQUESTS, math.ceil(len(since) / MOST_WINDOWS))
    cell_s = tick or _cell_s(float(since[-1]), len(since), requests)
    per_cell = _grains(ticks=tick > 0)
    grain = np.floor(since * (per_cell / cell_s) + (0.5 if tick else 0.0)).astype(np.int64)  # ticks come early or late
    in_cell = np.bincount(grain // per_cell)
    period_s = max(float(since[-1]) * len(since) / (len(since) - 1), (len(in_cell) - 1) * cell_s * (1 + 1e-9))
    models = []
    for cells, counts in (_filled_windows(in_cell, requests), _even_windows(in_cell, requests)):
        concentration = _concentrations(grain, cells * per_cell)
        models.append(ArrivalModel(period_s, cell_s, tick > 0, cells, counts, concentration))
    return min(models, key=lambda model: _misfit(model, grain * (cell_s / per_cell)))


def _misfit(model: ArrivalModel, arrival_s: NDArray[np.float64]) -> float:
    """The worst ratio of dispersions between samples of a model and a trace, over WIDTHS, as a logarithm."""
    widths = [width for width in WIDTHS if model.cell_s <= width <= model.period_s / LEAST_COUNTS] or [model.cell_s]
    samples = [model.sample(np.random.default_rng(seed)) for seed in range(SAMPLES)]
    ratios = [
        (LEAST_DISPERSION + np.mean([dispersion(one, width) for one in samples]))
        / (LEAST_DISPERSION + dispersion(arrival_s, width))
        for width in widths
    ]
    return float(np.abs(np.log(ratios)).max())


def _grains(*, ticks: bool) -> int:
    """The grains of a cell."""
    return 1 if ticks else 2**GRAIN_HALVINGS


def _cell_s(duration_s: float, requests: int, of_window: int) -> float:
    mean_gap_s = duration_s / requests
    fine = [cell for cell in CELLS_S if cell <= CELL_SHARE * of_window * mean_gap_s]
    return max(fine[0] if fine else CELLS_S[-1], 10 ** math.ceil(math.log10(duration_s / MOST_CELLS)))


def _filled_windows(per_cell: Counts, requests: int) -> tuple[Counts, Counts]:
    """Cells and arrivals of windows that end as soon as they hold `requests` requests; the last takes the rest."""
    ends, counts, held = [], [], 0
    for cell in np.flatnonzero(per_cell).tolist():
        held += int(per_cell[cell])
        if held >= requests:
            ends.append(cell + 1)
            counts.append(held)
            held = 0
    counts[-1] += held
    ends[-1] = len(per_cell)
    return np.diff(ends, prepend=0), np.array(counts)


def _even_windows(per_cell: Counts, requests: int) -> tuple[Counts, Counts]:
    """Cells and arrivals of windows with at least `requests` requests, with a rate within each that is as even as
    possible.

    Of all ways to cut the row of cells it takes the one with the greatest likelihood of Poisson arrivals, sum of n
    log(n / cells), by dynamic programming over the ends of windows. Windows hold at most WIDEST times as many requests
    as required, unless a single cell does.
    """
    until = np.concatenate(([0], np.cumsum(per_cell)))
    best, before = np.full(len(until), -np.inf), np.zeros(len(until), np.int64)
    best[0] = 0.0
    last = np.searchsorted(until, until - requests, side="right") - 1  # last place at which a window may begin
    first = np.minimum(np.searchsorted(until, until - WIDEST * requests), last)
    for end in np.flatnonzero(last >= 0).tolist():
        begin = np.arange(first[end], last[end] + 1)
        counts = until[end] - until[begin]
        value = best[begin] + counts * np.log(counts / (end - begin))
        chosen = int(value.argmax())
        best[end], before[end] = value[chosen], begin[chosen]
    ends = [len(per_cell)]
    while ends[-1] > 0:
        ends.append(int(before[ends[-1]]))
    edges = np.array(ends[::-1])
    return np.diff(edges), np.diff(until[edges])


def _concentrations(arrival: Counts, grains: Counts) -> NDArray[np.float64]:
    """The concentration by level, from the grains of all arrivals and those of each window.

    By moments: where n fall into c and n - c, the left half with share p, the sum of (c - np)^2 over all splits is that
    of np(1 - p) (1 + (n - 1) / (A + 1)) for a concentration A.
    """
    begin, size = np.concatenate(([0], np.cumsum(grains)[:-1])), grains
    found, even, more = np.zeros((3, LEVELS))
    while len(size):
        left = size // 2
        at, middle, end = np.searchsorted(arrival, (begin, begin + left, begin + size))
        counts, share = end - at, left / size
        level = _level(size)
        expected = counts * share * (1 - share)
        found += np.bincount(level, (middle - at - counts * share) ** 2, LEVELS)
        even += np.bincount(level, expected, LEVELS)
        more += np.bincount(level, expected * np.maximum(counts - 1, 0), LEVELS)
        begin, size, counts = (
            np.concatenate(halves)
            for halves in ((begin, begin + left), (left, size - left), (middle - at, end - middle))
        )
        split = (size > 1) & (counts > 1)
        begin, size = begin[split], size[split]
    levels = np.arange(1 + np.flatnonzero(even).max(initial=0))
    bursty = found[levels] > 1.001 * even[levels]
    excess = np.where(bursty, found[levels] - even[levels], 1)
    return np.where(bursty, np.maximum(more[levels] / excess - 1, LEAST_CONCENTRATION), np.inf)


def _level(grains: Counts) -> Counts:
    return np.log2(grains).astype(np.int64)


def _beta(
    mean: NDArray[np.float64], concentration: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Beta draws; if both sides underflow one side has it all."""
    one, other = (np.maximum(rng.standard_gamma(concentration * side), 1e-300) for side in (mean, 1 - mean))
    return one / (one + other)
