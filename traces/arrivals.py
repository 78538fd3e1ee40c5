"""When requests arrive, as a small model that can be fitted to arrival times and sampled to any length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError
from traces.statistics import clock_tick, dispersion

LEVELS_S = (60.0, 10.0, 1.0)  # each a multiple of the next
MAX_WINDOWS = 128
MIN_COUNTS = 8  # windows without which the dispersion of their counts says little
MOST_CELLS = 10**8
DRAWS = 64  # for the one of the fitted dispersion


@dataclass(frozen=True)
class ArrivalModel:
    """Arrivals per window, split into ever smaller parts by Dirichlet-multinomial draws.

    `counts` (W,) are the arrivals in each window of `window_s`; of the last window the trace covers the share
    `last_window`. Longer samples repeat them all. `parts` (L,) says into how many equal parts each level splits
    those above it, `concentration` (L,) how evenly: the concentration of a symmetric Dirichlet law over the parts,
    infinite for Poisson, small for bursts. Within the smallest parts arrivals are uniform; with a clock of `tick_s`
    > 0 the smallest part is one tick, at which all its arrivals fall. `dispersion` is that of the trace's counts by
    window in s.
    """

    window_s: float
    counts: NDArray[np.int64]
    last_window: float
    parts: tuple[int, ...]
    concentration: tuple[float, ...]
    tick_s: float
    dispersion: Mapping[str, float]

    def __post_init__(self) -> None:
        """Refuse counts or levels that cannot be sampled."""
        if min(self.counts) < 0 or sum(self.counts) <= 0 or not self.window_s > 0 or not self.tick_s >= 0:
            raise ValueError("windows need a width and counts")
        if not 0 < self.last_window <= 1:
            raise ValueError("the share of the last window must lie in (0, 1]")
        if len(self.parts) != len(self.concentration) or min((*self.parts, *self.concentration), default=1) <= 0:
            raise ValueError("every level of the arrivals needs parts and a concentration")

    def sample(self, requests: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """`requests` arrival times in seconds, sorted, the first at 0.

        How much a few bursty windows disperse differs from draw to draw. Where the sample is as long as the trace, the
        draw whose dispersion is nearest to the trace's is taken out of several.
        """
        held = int(self.counts.sum())
        copies, rest = divmod(requests, held)
        begun = 1 + int(np.searchsorted(self.counts.cumsum(), rest)) if rest else 0
        windows = np.concatenate((np.tile(self.counts, copies), self.counts[:begun]))
        if len(windows) * self._cells_per_window > MOST_CELLS:
            raise InputError(f"{requests:,} arrivals fall into more than {MOST_CELLS:,} parts of windows")
        draws = min(DRAWS, max(1, DRAWS * held // requests)) if copies else 1
        splits = (self._split(windows, rng) for _ in range(draws))
        cells = min(splits, key=self._misfit) if draws > 1 else next(splits)
        cell = np.repeat(np.arange(len(cells)), cells)
        within = rng.random(len(cell)) if self.tick_s == 0 else np.zeros(len(cell))
        arrival = np.sort(self._time(cell + within), kind="stable")[:requests]
        arrival[0] = 0.0  # the others keep their places in the windows
        return np.round(arrival, 6)

    @property
    def _cells_per_window(self) -> int:
        return math.prod(self.parts)

    def _time(self, cell: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds at (fractional) cells; in the last window of each copy the clock runs faster."""
        copy, window = np.divmod(cell / self._cells_per_window, len(self.counts))
        whole = len(self.counts) - 1
        beyond = np.maximum(window - whole, 0)
        return self.window_s * (
            copy * (whole + self.last_window) + np.minimum(window, whole) + beyond * self.last_window
        )

    def _split(self, windows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Arrivals in the smallest parts of each window."""
        counts = windows
        for parts, concentration in zip(self.parts, self.concentration, strict=True):
            counts = _split(counts, parts, concentration, rng).reshape(-1)
        return counts

    def _misfit(self, cells: NDArray[np.int64]) -> float:
        """By how much, relatively, the dispersion of a draw is off at worst."""
        start = self._time(np.arange(len(cells), dtype=np.float64) + (0.0 if self.tick_s else 0.5))
        worst = 0.0
        for window, wanted in self.dispersion.items():
            counts = np.bincount((start // float(window)).astype(np.int64), weights=cells)[:-1]
            found = float(counts.var()) / max(float(counts.mean()), 1e-9)
            worst = max(worst, abs(found - wanted) / max(wanted, 0.1))
        return worst


def fit_arrivals(arrival_s: NDArray[np.float64]) -> ArrivalModel:
    """Arrivals per window and the concentration of each split below it, by the method of moments."""
    since = arrival_s - arrival_s[0]
    duration = float(since[-1])
    tick = clock_tick(arrival_s)
    levels = _levels(duration, tick)
    window, cell = levels[0], levels[-1]
    windows = np.bincount((since // window).astype(np.int64))
    whole = max(1, int(duration // window))  # the last window is cut short, its splits would look uneven
    covered = max(duration / window - (len(windows) - 1), cell / window) if tick == 0 else 1.0
    if tick > 0:
        since = (np.round(since / tick) + 0.5) * tick  # clocks tick a little early or late
    per_window = round(window / cell)
    counts = np.bincount((since / cell).astype(np.int64), minlength=whole * per_window)[: whole * per_window]
    parts, concentration = [], []
    for above, below in pairwise(levels):
        parts.append(round(above / below))
        concentration.append(_concentration(counts.reshape(-1, parts[-1], round(below / cell)).sum(axis=2)))
    judged = [wide for wide in LEVELS_S if cell <= wide <= duration / MIN_COUNTS]
    spread = {f"{wide:g}": dispersion(arrival_s, wide) for wide in judged}
    return ArrivalModel(window, windows, min(covered, 1.0), tuple(parts), tuple(concentration), tick, spread)


def _levels(duration_s: float, tick_s: float) -> list[float]:
    """Widths from the window down, each a whole multiple of the next and none below the tick."""
    levels = [level for level in LEVELS_S if level <= duration_s / 4] or [duration_s / 4]
    if tick_s > 0:
        ticks = max(1, round(levels[0] / tick_s))
        steps = [step for step in range(2, ticks) if ticks % step == 0]
        middle = min(steps, key=lambda step: abs(step * tick_s - LEVELS_S[1]), default=1)
        levels = sorted({ticks * tick_s, middle * tick_s, tick_s}, reverse=True)
    stretch = int(np.ceil(duration_s / (MAX_WINDOWS * levels[0])))
    return levels if stretch == 1 else [stretch * levels[0], *levels]


def _concentration(table: NDArray[np.int64]) -> float:
    """A of Dirichlet-multinomial rows c (J, m) of sums N: m / (m - 1) sum_k (c_k - N / m)^2 is N (N + A) / (1 + A)."""
    total = table.sum(axis=1)
    parts = table.shape[1]
    spread = float(((table - total[:, None] / parts) ** 2).sum()) * parts / (parts - 1)
    if spread <= 1.001 * total.sum():
        return float("inf")
    squares = float((total.astype(np.float64) ** 2).sum())
    return max(1e-2, (squares - spread) / (spread - total.sum()))


def _split(counts: NDArray[np.int64], parts: int, concentration: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Dirichlet-multinomial splits of `counts` (C,) into (C, parts); an infinite concentration is multinomial."""
    if np.isinf(concentration):
        return rng.multinomial(counts, np.full(parts, 1 / parts))
    share = rng.standard_gamma(concentration / parts, size=(len(counts), parts))
    total = share.sum(axis=1, keepdims=True)
    lost = np.flatnonzero(total[:, 0] < 1e-200)  # every share underflowed: one part has it all
    share[lost, rng.integers(parts, size=len(lost))] = 1.0
    total[lost] = share[lost].sum(axis=1, keepdims=True)
    return rng.multinomial(counts, share / total)
