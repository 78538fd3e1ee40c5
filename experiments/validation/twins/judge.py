"""The tests of a fitted trace, figure by figure: near enough, or within the recording's own variation.

The recording's resamples are judged likewise, each in the place of the fitted trace by all others: what they leave
outside is chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from experiments.validation.twins.run import Found, Pair
from experiments.validation.twins.study import Study

ATTAINMENT = 0.06  # largest difference of a share of all requests
P99_TTFT = 0.20  # relative
CAPACITY = 0.05  # relative

Error = Callable[[Pair, float], float]


def absolute(pair: Pair, fitted: float) -> float:
    """The difference of a share."""
    return fitted - pair.recorded


def relative(pair: Pair, fitted: float) -> float:
    """The relative error of the recorded figure; 0 if both are 0, as without a sustained rate."""
    return fitted / pair.recorded - 1 if pair.recorded else 0.0 if fitted == 0 else float("inf")


@dataclass(frozen=True)
class Rule:
    """The measure of a figure's errors, and how large they may be."""

    error: Error
    most: float

    def is_near(self, pair: Pair, seed: int = 0) -> bool:
        """Whether the sample of that seed, by default 0, differs by no more than it may."""
        return abs(self.error(pair, pair.fitted[seed])) <= self.most

    def holds(self, pair: Pair, seed: int = 0) -> bool:
        """Whether it is near, or lies in the interval of the recording's resamples."""
        low, high = pair.interval
        return self.is_near(pair, seed) or low <= pair.fitted[seed] <= high

    def scores(self, pairs: Iterable[Pair]) -> Scores:
        """Over cells."""
        known = list(pairs)
        errors = np.abs([[self.error(pair, fitted) for fitted in pair.fitted] for pair in known])
        return Scores(
            cells=len(known),
            mean=float(errors[:, 0].mean()),
            worst=float(errors[:, 0].max()),
            near=sum(map(self.is_near, known)),
            held=sum(map(self.holds, known)),
            mean_of_samples=float(errors.mean()),
            held_of_resamples=sum(map(self._held_of_resamples, known)),
        )

    def _held_of_resamples(self, pair: Pair) -> float:
        """The share of resamples that would hold in the place of the fitted trace, each judged by all others."""
        held = [
            self.holds(Pair(pair.recorded, (resample,), [*pair.resampled[:place], *pair.resampled[place + 1 :]]))
            for place, resample in enumerate(pair.resampled)
        ]
        return sum(held) / len(held) if held else float("nan")


@dataclass(frozen=True)
class Scores:
    """Errors over `cells`: for seed 0 the mean and the largest, how many are near and how many hold; the mean over all
    seeds; how many hold of a resample of the recording on average, NaN without any.
    """

    cells: int
    mean: float
    worst: float
    near: int
    held: int
    mean_of_samples: float
    held_of_resamples: float


RULES = {
    "attainment": Rule(absolute, ATTAINMENT),
    "p99_ttft_s": Rule(relative, P99_TTFT),
    "capacity": Rule(relative, CAPACITY),
}


def outside(study: Study, found: Found) -> list[int]:
    """How many shares and P99 TTFT of the cells of the fitting are neither near nor in the interval, by sample."""
    judged = [
        (RULES[figure], pair)
        for figure in ("attainment", "p99_ttft_s")
        for cell, pair in getattr(found, figure).items()
        if cell.policy != study.held_out
    ]
    samples = range(len(judged[0][1].fitted))
    return [sum(not rule.holds(pair, seed) for rule, pair in judged) for seed in samples]
