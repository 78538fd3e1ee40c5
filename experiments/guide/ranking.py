"""The ranking: the best of each family on the same fresh samples, and whether the next one is distinguished."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.guide.families import Family
from experiments.guide.runs import Runs, at_price
from experiments.guide.samples import Samples
from experiments.guide.tuning import Task, Tuned
from experiments.tune.space import Point
from framework.metrics.statistics import LEVEL, Estimate, compare, estimate, holm
from framework.run.store import Record

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Entrant:
    """The best of a family: what it is worth (requests/s, or the task's first goal) on each sample, (replicates,).

    `is_settled`: whether all underlying rates could be decided.
    """

    family: Family
    point: Point
    tuned_value: float
    values: Floats
    is_settled: bool = True

    @property
    def estimate(self) -> Estimate:
        return estimate(self.values)


@dataclass(frozen=True)
class Difference:
    """How far an entrant is below the best: mean of paired differences, half its 95 % interval, Holm-adjusted p."""

    mean: float
    half_width: float
    p: float

    @property
    def is_distinguished(self) -> bool:
        """Whether the two differ: the interval excludes 0, and a test that assumes no normality agrees."""
        if math.isnan(self.p):  # differences that do not vary
            return self.mean != 0
        return abs(self.mean) > self.half_width and self.p <= LEVEL


@dataclass(frozen=True)
class Ranking:
    """Entrants, the best first; `behind[k]` says how far entrant k + 1 is below the first."""

    entrants: tuple[Entrant, ...]
    behind: tuple[Difference, ...]

    @property
    def best(self) -> Entrant:
        return self.entrants[0]

    @property
    def is_clear(self) -> bool:
        """Whether the best is distinguished from every other."""
        return all(one.is_distinguished for one in self.behind)

    @property
    def as_good(self) -> tuple[Entrant, ...]:
        """The best entrant and those that are not distinguished from it."""
        others = (
            one for one, behind in zip(self.entrants[1:], self.behind, strict=True) if not behind.is_distinguished
        )
        return (self.best, *others)


def ranked(entrants: Sequence[Entrant]) -> Ranking:
    """The entrants by their means, each compared with the first, sample by sample."""
    order = sorted(entrants, key=lambda one: -one.values.mean())
    compared = [compare(order[0].values - one.values) for one in order[1:]]
    p_values = holm([one.p for one in compared])
    behind = (Difference(one.mean, one.half_width, p) for one, p in zip(compared, p_values, strict=True))
    return Ranking(tuple(order), tuple(behind))


def entered(runs: Runs, tuned: Sequence[Tuned], task: Task, samples: Samples) -> Ranking | None:
    """The ranking of the best of each; None if nothing serves the load."""
    entrants = []
    for one in tuned:
        best = one.best
        if best is None or best.worth <= 0:
            continue
        count = runs.rate_worth(one.family, best.point)
        job = (*at_price(one.family.arguments(task.overrides), count), *best.point.overrides)
        if task.start_rps is None:
            played = samples.records(runs, job)
            values, is_settled = _worths(played, task, count), True
        else:
            found = samples.searched(runs, job, best.worth / count)
            values, is_settled = (None, True) if found is None else (found.values * count, found.is_settled)
        if values is not None:
            entrants.append(Entrant(one.family, best.point, best.worth, values, is_settled))
    return ranked(entrants) if entrants else None


def _worths(records: Sequence[Record] | None, task: Task, rate_worth: float) -> Floats | None:
    return None if records is None else np.array([task.worth(one, rate_worth) for one in records])
