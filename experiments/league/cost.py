"""What a league costs, from the CPU time that earlier entries took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.league.plan import Plan
from experiments.league.play import Entrant
from experiments.league.results import Entry, Results
from experiments.league.study import Cell

_RUN_S, _RUNS_OF_A_RATE = 0.7, 2.6  # of an entry about which nothing is known
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Cost:
    """The entries that are left, their runs, and their CPU time on one core; `unknown`: entries of policies that were
    never measured, which count like those of all policies.
    """

    entries: int
    runs: float
    cpu_s: float
    unknown: int = 0

    def __str__(self) -> str:
        said = f"{self.entries:,} entries, about {self.runs:,.0f} runs, {self.cpu_s / _HOUR_S:.2f} hours of one core"
        if not self.unknown:
            return said
        return (
            f"{said}; never measured, and far longer if they decide in Python at every event: {self.unknown:,} entries"
        )


def cost(pairs: Sequence[tuple[Cell, Entrant]], plan: Plan, known: Results | None) -> Cost:
    """The cost of these entries; `known`: measured ones, which are scaled to the plan."""
    found = [_of_entry(cell, entrant, plan, known) for cell, entrant in pairs]
    measured = set() if known is None else {name for one in known.cells.values() for name in one.entries}
    unknown = sum(entrant.name not in measured for _, entrant in pairs)
    return Cost(len(found), sum(runs for runs, _ in found), sum(cpu_s for _, cpu_s in found), unknown)


def _of_entry(cell: Cell, entrant: Entrant, plan: Plan, known: Results | None) -> tuple[float, float]:
    plays = plan.terms.trials + plan.terms.replicates
    similar, scale = _similar(cell, entrant, known), cell.setup.gpus / 8
    if known is None or not similar:
        return plays * _RUNS_OF_A_RATE, plays * _RUNS_OF_A_RATE * _RUN_S * scale
    scale *= plays / (known.made["trials"] + known.made["replicates"])
    return (
        float(np.mean([one.runs for one in similar])) * scale / (cell.setup.gpus / 8),
        float(np.mean([one.cpu_s for one in similar])) * scale,
    )


def _similar(cell: Cell, entrant: Entrant, known: Results | None) -> list[Entry]:
    """The policy's own entry on that load, else all of its entries, else those of all policies."""
    if known is None:
        return []
    entries = [(one.load, name, entry) for one in known.cells.values() for name, entry in one.entries.items()]
    own = [(load, entry) for load, name, entry in entries if name == entrant.name]
    of_load = [entry for load, entry in own if load == cell.load.name]
    return of_load or [entry for _, entry in own] or [entry for _, _, entry in entries]
