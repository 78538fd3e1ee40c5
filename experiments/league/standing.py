"""Who stands where: shares of the bound, ranks and regrets, from capacities alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from experiments.league.results import Entry, Played
from framework.metrics.statistics import compare


@dataclass(frozen=True)
class Place:
    """A policy in a cell.

    `share`: its capacity as a share of the bound. `rank`: 1 + the number of policies with a higher one. `below`: how
    far it is below the best, as a share of the best. `is_as_good`: whether it cannot be told from the best, by paired
    differences over the samples.
    """

    share: float
    rank: int
    below: float
    is_as_good: bool


@dataclass(frozen=True)
class Standing:
    """A policy: its place in each cell in which it could be run, by the name of the cell; at least one."""

    policy: str
    places: Mapping[str, Place]
    answer_us: float

    @functools.cached_property
    def mean_share(self) -> float:
        """The geometric mean of its shares of the bound; 0 if one is 0."""
        shares = [one.share for one in self.places.values()]
        return math.exp(sum(map(math.log, shares)) / len(shares)) if min(shares) > 0 else 0.0

    @property
    def mean_rank(self) -> float:
        return sum(one.rank for one in self.places.values()) / len(self.places)

    @property
    def best(self) -> str:
        """The cell in which it is nearest to the best."""
        return min(self.places, key=lambda cell: (self.places[cell].below, self.places[cell].rank))

    @property
    def worst(self) -> str:
        """The cell in which it is farthest below the best."""
        return max(self.places, key=lambda cell: self.places[cell].below)

    @property
    def regret(self) -> float:
        """How far it is below the best where it is worst."""
        return self.places[self.worst].below


def standings(cells: Mapping[str, Played]) -> list[Standing]:
    """Every policy that could be run in a cell: those that ran in most cells first, by their mean share."""
    places = {name: _places(cell) for name, cell in cells.items()}
    found = []
    for policy in sorted({policy for cell in places.values() for policy in cell}):
        own = {name: cell[policy] for name, cell in places.items() if policy in cell}
        answers_us = [cells[name].entries[policy].answer_us for name in own]
        found.append(Standing(policy, own, float(np.median(answers_us))))
    return sorted(found, key=lambda one: (-len(one.places), -one.mean_share, one.policy))


def ranked(cell: Played) -> list[tuple[str, Entry]]:
    """The entries that could be run, the best first."""
    run = [(name, entry) for name, entry in cell.entries.items() if entry.capacities_rps]
    return sorted(run, key=lambda pair: (-pair[1].mean_rps, pair[0]))


def _places(cell: Played) -> dict[str, Place]:
    order = ranked(cell)
    if not order:
        return {}
    best = order[0][1]
    found = {}
    for name, entry in order:
        rank = 1 + sum(other.mean_rps > entry.mean_rps for _, other in order)
        below = 1 - entry.mean_rps / best.mean_rps
        found[name] = Place(entry.mean_rps / cell.bound_rps, rank, below, not _is_worse(entry, best))
    return found


def _is_worse(entry: Entry, best: Entry) -> bool:
    """Whether the 95 % interval of the paired differences excludes 0."""
    if len(best.capacities_rps) < 2:  # one sample tells no difference
        return False
    found = compare(best.values - entry.values)
    return found.mean > 0 and not found.mean <= found.half_width  # NaN: they do not vary
