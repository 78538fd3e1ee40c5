"""The map: the best family at each value of each axis, each cell tuned and compared anew, and where the answer
flips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from experiments.guide.axes import Axis, Value
from experiments.guide.ranking import Ranking
from experiments.guide.tuning import Trial

Bests = Mapping[str, Trial]  # the best trial of each family, by name
Asked = Callable[[tuple[str, ...], Bests], tuple[Ranking | None, Bests]]


@dataclass(frozen=True)
class Cell:
    """One value of an axis; `ranking` is None if no family serves anything."""

    value: Value
    ranking: Ranking | None


@dataclass(frozen=True)
class Line:
    """An axis with its cells, in order."""

    axis: Axis
    cells: tuple[Cell, ...]

    @property
    def flips(self) -> list[tuple[Cell, Cell]]:
        """Adjacent cells such that the best of neither is among the best of the other."""
        return [(one, other) for one, other in pairwise(self.cells) if is_flip(one.ranking, other.ranking)]


def is_flip(one: Ranking | None, other: Ranking | None) -> bool:
    """Whether the answer certainly changes: no family is as good as the best in both."""
    if one is None or other is None:
        return False
    names = [{entrant.family.name for entrant in ranking.as_good} for ranking in (one, other)]
    return not names[0] & names[1]


def lines(axes: Sequence[Axis], cell: Asked, begin: Bests) -> list[Line]:
    """Every axis; `cell` tunes and ranks at some settings, starting from the bests of a nearby load, once for each.

    An axis is walked from the load of `begin`, or from its middle, to both ends, each cell from the one before.
    """
    known: dict[tuple[str, ...], tuple[Ranking | None, Bests]] = {}
    found = []
    for axis in axes:
        for value, before in _outward(axis):
            if value.overrides not in known:
                known[value.overrides] = cell(value.overrides, begin if before is None else known[before.overrides][1])
        found.append(Line(axis, tuple(Cell(value, known[value.overrides][0]) for value in axis.values)))
    return found


def _outward(axis: Axis) -> Iterator[tuple[Value, Value | None]]:
    """Each value with the one before it on the way from the first; the first with None."""
    values = axis.values
    first = next((place for place, value in enumerate(values) if not value.overrides), len(values) // 2)
    for place in (*range(first, len(values)), *range(first - 1, -1, -1)):
        before = None if place == first else values[place - 1 if place > first else place + 1]
        yield values[place], before
