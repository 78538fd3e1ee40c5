"""Equal tuning: each family may try as many configurations of its space, with the same searcher, seed and requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import optuna

from experiments.guide.families import Family
from experiments.guide.runs import Runs, Within
from experiments.tune.goals import Goal
from experiments.tune.result import Findings, Row, findings
from experiments.tune.sampler import SamplerKind
from experiments.tune.storage import Presence
from experiments.tune.study import Search
from framework.errors import InputError

CAPACITY = (Goal("capacity"),)
GOODPUT = (Goal("request_goodput"),)


@dataclass(frozen=True)
class Task:
    """What families are tuned for: `overrides` make the load, `goals` say what is good; all get `trials` and `seed`.

    `start_rps`: where searches for the highest rate begin; None where the rate is set.
    """

    overrides: tuple[str, ...]
    goals: tuple[Goal, ...]
    trials: int
    seed: int
    start_rps: float | None = None


@dataclass(frozen=True)
class Tuned:
    """What came of a family's trials; `refusal` says why there are none, "" where there are."""

    family: Family
    found: Findings | None
    refusal: str = ""

    @property
    def best(self) -> Row | None:
        """The best that serves anything at all."""
        ranked = self.found.ranked if self.found is not None else []
        return ranked[0] if ranked and ranked[0].values[0] > 0 else None

    @property
    def trials(self) -> int:
        return 0 if self.found is None else self.found.count("complete")


def tuned(runs: Runs, family: Family, task: Task) -> Tuned:
    """Search the family's space; fewer trials than asked for only where it has no more points."""
    space, feasible = runs.space(family), runs.feasible(family)
    study = optuna.create_study(directions=[goal.direction for goal in task.goals], study_name=family.name)
    sweep = Within(runs, (*family.words(task.overrides), f"seed={task.seed}"), task.start_rps)
    sampler = SamplerKind("gp", task.seed)
    try:
        Search(study, space, feasible, sampler, task.goals, (), sweep, Presence(study)).run(task.trials, workers=1)
    except InputError as error:
        return Tuned(family, None, str(error))
    found = findings(study, space, feasible, task.goals)
    refusals = [row.refusal for row in found.rows if row.refusal]
    return Tuned(family, found, "" if found.ranked else refusals[-1] if refusals else "none of its trials ended")


def all_tuned(runs: Runs, families: Sequence[Family], task: Task) -> list[Tuned]:
    """Every family, tuned equally."""
    return [tuned(runs, family, task) for family in families]
