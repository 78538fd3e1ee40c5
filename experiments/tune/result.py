"""The result of a study: its trials in order, the best of them, and what made the difference."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.study import Study
from optuna.trial import TrialState

from experiments.tune.candidates import Candidates
from experiments.tune.feasible import Feasibility
from experiments.tune.goals import Goal
from experiments.tune.space import Point, Space
from experiments.tune.study import REFUSAL, counts
from experiments.tune.surrogate import Tried

_NEAR = 0.01  # distance from the best that is as good for most purposes


@dataclass(frozen=True)
class Row:
    """A trial that has ended. `outcome`: complete, pruned or infeasible; `values` are those of the goals, if complete.

    `figures` are the user attributes of the trial: keys of the summary and their values, and why it was refused.
    """

    number: int
    outcome: str
    values: tuple[float, ...]
    point: Point
    figures: Mapping[str, Any]

    @property
    def refusal(self) -> str:
        return str(self.figures.get(REFUSAL, ""))


@dataclass(frozen=True)
class Findings:
    """A study's trials in order. `feasible`: the number of configurations of the space, None in a continuum.

    `importances`: the share of the first goal's variance over the space that each dimension explains alone, estimated
    from the trials, largest first; empty if there are too few.
    """

    name: str
    space: Space
    feasible: int | None
    goals: tuple[Goal, ...]
    rows: tuple[Row, ...]
    importances: Mapping[str, float]

    @functools.cached_property
    def ranked(self) -> list[Row]:
        """Trials that were run, each configuration once, the best by the first goal first."""
        sign = -1 if self.goals[0].maximize else 1
        run = {row.point.overrides: row for row in reversed(self.rows) if row.outcome == "complete"}
        return sorted(run.values(), key=lambda row: (sign * row.values[0], row.number))

    @functools.cached_property
    def front(self) -> list[Row]:
        """The trials of `ranked` that no other equals or beats in every goal while it beats them in one."""
        return [row for row in self.ranked if not any(self._dominates(other, row) for other in self.ranked)]

    @property
    def near(self) -> int:
        """The number of `ranked` within 1 % of the best, including itself."""
        best = self.ranked[0].values[0]
        return sum(abs(row.values[0] - best) <= _NEAR * abs(best) for row in self.ranked)

    def count(self, outcome: str) -> int:
        return sum(row.outcome == outcome for row in self.rows)

    def _dominates(self, one: Row, other: Row) -> bool:
        signs = [1 if goal.maximize else -1 for goal in self.goals]
        gains = [sign * (a - b) for sign, a, b in zip(signs, one.values, other.values, strict=True)]
        return min(gains) >= 0 and max(gains) > 0


def findings(study: Study, space: Space, feasible: Feasibility, goals: Sequence[Goal]) -> Findings:
    """The results of the trials of `study` so far."""
    rows = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
        outcome = "infeasible" if not counts(trial) else trial.state.name.lower()
        values = tuple(trial.values) if outcome == "complete" else ()
        rows.append(Row(trial.number, outcome, values, space.point(trial.params), dict(trial.user_attrs)))
    candidates = Candidates(space, feasible)
    tried = [Tried(row.point, row.values) for row in rows]
    importances = candidates.surrogate.importances(tried, candidates.sample)
    count = None if feasible.pool is None else len(feasible.pool)
    return Findings(study.study_name, space, count, tuple(goals), tuple(rows), importances)
