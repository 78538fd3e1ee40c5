"""One short search: the policy's own defaults first, then the sampler's draws, which race the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import optuna

from experiments.tune.base import Configuration, with_demand
from experiments.tune.feasible import Feasibility
from experiments.tune.goals import read_goals
from experiments.tune.result import Row, findings
from experiments.tune.sampler import DEFAULT, SamplerKind
from experiments.tune.space_file import read_space
from experiments.tune.storage import Presence
from experiments.tune.study import SETTLED, Search
from experiments.validation.defaults.study import BETTER, Study
from framework.errors import InputError
from framework.run.sweep import Sweep

_STEP = 1.1  # ratio of the rates that a search tries first beyond that


@dataclass(frozen=True)
class Found:
    """Capacities in requests/s: of the defaults, and of the best trial, whose settings are `best`.

    `settled`: both searches decided whether their last rates are sustained; otherwise requests ran out before.
    `race_rps`: the rate that no draw sustained, if each was given up that did not sustain far more than the defaults.
    """

    trace: str
    policy: str
    untuned_rps: float
    tuned_rps: float
    best: tuple[str, ...]
    settled: bool = True
    race_rps: float | None = None

    @property
    def share(self) -> float | None:
        """The share of the tuned capacity that the defaults reach, None if the policy sustains no rate at all."""
        return self.untuned_rps / self.tuned_rps if self.tuned_rps > 0 else None


def search(study: Study, trace: str, policy: str, out: Path) -> Found:
    """Run the trials; a draw that does not sustain more than the defaults counts as 0.

    Stored results are not run again. Raises InputError if the defaults do not run.
    """
    overrides = study.overrides(trace, policy)
    base = Configuration(overrides)
    given = [word.partition("=")[0] for word in overrides]
    space = read_space(study.policies[policy], {**base.choices, **base.settings}, given, {"gpus": str(study.gpus)})
    space = with_demand(space, base)
    goals = read_goals(None, base.config)
    feasible = Feasibility(space, base)
    trials = optuna.create_study(direction=goals[0].direction)
    kind, presence = SamplerKind(DEFAULT, 0), Presence(trials)

    def run(count: int, *race: str) -> None:
        sweep = Sweep((*overrides, *race), out)
        Search(trials, space, feasible, kind, goals, (), sweep, presence).run(count, workers=1)

    run(1)
    first = findings(trials, space, feasible, goals).rows[0]
    if not first.values:
        raise InputError(f"policy={policy} trace={trace}: its defaults do not run: {first.refusal}")
    untuned_rps = first.values[0]
    run(study.trials, *race_above(untuned_rps, study.race))
    best = findings(trials, space, feasible, goals).ranked[0]
    settled = all(bool(row.figures.get(SETTLED, True)) for row in (first, best))
    is_unbeaten = study.race > BETTER and best.values[0] == untuned_rps
    race_rps = study.race * untuned_rps if is_unbeaten else None
    return Found(trace, policy, untuned_rps, best.values[0], changed(first, best), settled, race_rps)


def race_above(untuned_rps: float, ratio: float) -> tuple[str, ...]:
    """The settings of a search for that ratio to the capacity of the defaults; none if they sustain no rate."""
    if untuned_rps <= 0:
        return ()
    return f"objective.at_least={ratio * untuned_rps:.6g}", f"objective.first_step={_STEP}"


def changed(first: Row, best: Row) -> tuple[str, ...]:
    """The settings of the best trial that differ from those of the first."""
    return tuple(word for word in best.point.overrides if word not in first.point.overrides)
