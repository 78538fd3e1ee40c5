"""A scenario solved: every point of its space run, and searches among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from hydra.core.utils import JobReturn

from experiments.tune.base import Configuration, with_demand
from experiments.tune.feasible import Feasibility
from experiments.tune.goals import Goal, read_goals
from experiments.tune.sampler import SamplerKind
from experiments.tune.space import Point, Space
from experiments.tune.space_file import read_space
from experiments.tune.storage import Presence
from experiments.tune.study import Search
from experiments.validation.optimum.file import Scenario
from framework.errors import InputError
from framework.run.sweep import Outcome, Sweep


@dataclass(frozen=True)
class Optimum:
    """The results of a scenario.

    `values`: the goodput of every point that can be run, by its overrides; `records` their summaries. `found[k]`: the
    best of each trial so far in search k, shape (trials,).
    """

    scenario: Scenario
    points: Mapping[tuple[str, ...], Point]
    values: Mapping[tuple[str, ...], float]
    summaries: Mapping[tuple[str, ...], Mapping[str, Any]]
    found: Sequence[np.ndarray] = field(default_factory=tuple)

    @property
    def best(self) -> tuple[str, ...]:
        return max(self.values, key=lambda overrides: (self.values[overrides], overrides))

    def share_near(self, near: float) -> float:
        """The share of all points that come within `near` of the best."""
        values = np.fromiter(self.values.values(), np.float64)
        return float(np.mean(values >= (1 - near) * values.max()))

    def gaps(self) -> np.ndarray:
        """How far below the best each search ended, as a share of it, shape (searches,)."""
        best = self.values[self.best]
        return np.array([1 - found[-1] / best for found in self.found])

    def trials_to(self, near: float) -> np.ndarray:
        """The trial at which each search came within `near` of the best; inf if it did not, shape (searches,)."""
        target = (1 - near) * self.values[self.best]
        first = [np.flatnonzero(found >= target)[:1] + 1 for found in self.found]
        return np.array([float(at[0]) if len(at) else np.inf for at in first])


@dataclass(frozen=True)
class Searches:
    """`seeds` searches of `trials` trials, all with one sampler (`experiments.tune.sampler`), from `first_seed` on."""

    sampler: str
    trials: int
    seeds: int
    first_seed: int = 0

    def samplers(self) -> list[SamplerKind]:
        return [SamplerKind(self.sampler, self.first_seed + k) for k in range(self.seeds)]


class _Known(Sweep):
    """A sweep whose outcomes are known."""

    def __init__(self, outcomes: Mapping[tuple[str, ...], Outcome]) -> None:
        self._outcomes = outcomes

    def run(self, jobs: Sequence[Sequence[str]], ended: Callable[[JobReturn], None] | None = None) -> list[Outcome]:
        return [self._outcomes[tuple(job)] for job in jobs]


def solve(scenario: Scenario, searches: Searches, out: Path) -> Optimum:
    """Run every point of the scenario, then search among them."""
    base = Configuration(scenario.overrides)
    given = [word.partition("=")[0] for word in scenario.overrides]
    space = read_space(scenario.space, {**base.choices, **base.settings}, given, {"gpus": str(scenario.gpus)})
    space = with_demand(space, base)
    feasible = Feasibility(space, base)
    points = {point.overrides: point for point in feasible.pool or ()}
    launched = Sweep([*scenario.overrides, "hydra/launcher=joblib"], out).shown(list(points))
    outcomes = {outcome.overrides: outcome for outcome in launched}
    records = {key: outcome.record for key, outcome in outcomes.items() if outcome.record is not None}
    if not records:
        raise InputError(f"{scenario.name}: none of {len(points)} points could be run; {launched[0].refusal}")
    values = {key: record.value for key, record in records.items()}
    goals = read_goals(None, base.config)
    known = _Known(outcomes)
    found = [_search(space, feasible, goals, known, kind, searches.trials) for kind in searches.samplers()]
    return Optimum(scenario, points, values, {key: record.summary for key, record in records.items()}, found)


def _search(
    space: Space, feasible: Feasibility, goals: tuple[Goal, ...], known: Sweep, sampler: SamplerKind, trials: int
) -> np.ndarray:
    study = optuna.create_study(direction=goals[0].direction)
    Search(study, space, feasible, sampler, goals, (), known, Presence(study)).run(trials, workers=1)
    values = [trial.value for trial in study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))]
    return np.maximum.accumulate(np.array(values, np.float64))
