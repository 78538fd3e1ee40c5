"""Rules of thumb next to what was measured: for which families the ranking bears them out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.guide.families import Family
from experiments.guide.ranking import Entrant, Ranking, ranked
from experiments.guide.rules import Load, Rule
from experiments.guide.tuning import Tuned


@dataclass(frozen=True)
class Judged:
    """The rule that recommends `family` over `other`.

    `applies`: whether for this load. `gain`: the share by which the family is above the other, paired, and half its
    95 % interval; NaN if one of the two serves the load at no rate. `is_above`, `is_below`: whether significantly so.
    """

    rule: Rule
    family: Family
    other: Family
    applies: bool
    gain: float
    half_width: float
    is_above: bool
    is_below: bool

    @property
    def holds(self) -> bool:
        """Whether the family is better just where its rule says."""
        return self.applies == self.is_above


def judged(ranking: Ranking, tuned: Sequence[Tuned], load: Load) -> Iterator[Judged]:
    """The rules of all families that were compared with the one over which they are recommended, in their order."""
    compared = {one.family.name: one.family for one in tuned}
    entrants = {one.family.name: one for one in ranking.entrants}
    for family in compared.values():
        other = None if family.rule is None else compared.get(family.rule.over)
        if family.rule is not None and other is not None and (family.name in entrants or other.name in entrants):
            found = _gain(entrants.get(family.name), entrants.get(other.name))
            yield Judged(family.rule, family, other, family.rule.applies(load), *found)


def _gain(one: Entrant | None, other: Entrant | None) -> tuple[float, float, bool, bool]:
    if one is None or other is None:
        return math.nan, math.nan, other is None, one is None
    both = ranked((one, other))
    (difference,), base = both.behind, float(other.values.mean())
    sign = 1 if both.best is one else -1
    is_told = difference.is_distinguished
    return sign * difference.mean / base, difference.half_width / base, is_told and sign > 0, is_told and sign < 0
