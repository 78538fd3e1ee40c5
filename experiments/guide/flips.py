"""The map: who is best at each value of each axis, each cell tuned and compared anew, and where the answer flips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from experiments.guide.axes import Axis, Value
from experiments.guide.ranking import Ranking

_COMPARED = 2  # of each cell, on fresh samples: those that tuned best


@dataclass(frozen=True)
class Cell:
    """One value of an axis; `ranking` is None where no family serves anything."""

    value: Value
    ranking: Ranking | None


@dataclass(frozen=True)
class Line:
    """An axis with its cells, in order."""

    axis: Axis
    cells: tuple[Cell, ...]

    @property
    def flips(self) -> list[tuple[Cell, Cell]]:
        """Neighbouring cells of which the best of neither is among the best of the other."""
        return [(one, other) for one, other in pairwise(self.cells) if is_flip(one.ranking, other.ranking)]


def is_flip(one: Ranking | None, other: Ranking | None) -> bool:
    """Whether the answer changes for sure: no family is as good as the best in both."""
    if one is None or other is None:
        return False
    names = [{entrant.family.name for entrant in ranking.as_good} for ranking in (one, other)]
    return not names[0] & names[1]


def lines(axes: Sequence[Axis], cell: Callable[[tuple[str, ...], int], Ranking | None]) -> list[Line]:
    """Every axis; `cell` ranks the best few at some settings, and is asked once for each."""
    known: dict[tuple[str, ...], Ranking | None] = {}
    found = []
    for axis in axes:
        cells = []
        for value in axis.values:
            if value.overrides not in known:
                known[value.overrides] = cell(value.overrides, _COMPARED)
            cells.append(Cell(value, known[value.overrides]))
        found.append(Line(axis, tuple(cells)))
    return found
