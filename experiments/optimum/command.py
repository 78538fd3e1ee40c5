"""Do short searches find the best? Every point of a space is run, then searches with few trials are held against it.

    python -m experiments.optimum [--only WORD] [--out DIR] [KEY=VALUE ...]

conf/optimum/best.yaml names the scenarios. All points go through the results store: what it has is not run again.
Searches draw from the same points, and take their figures from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from omegaconf import OmegaConf

from experiments.tune.base import Configuration
from experiments.tune.feasible import Feasibility
from experiments.tune.goals import Goal, read_goals
from experiments.tune.sampler import SamplerKind
from experiments.tune.space import Point, Space
from experiments.tune.space_file import read_space
from experiments.tune.storage import Presence
from experiments.tune.study import Search
from framework.cli.files import require_writable
from framework.cli.launch import guard
from framework.cli.terminal import results_console
from framework.errors import InputError
from framework.run.sweep import Outcome, Sweep

_FILE = Path(__file__).resolve().parents[2] / "conf" / "optimum" / "best.yaml"


@dataclass(frozen=True)
class Scenario:
    """A policy on a model, a number of GPUs and a trace at a rate; `overrides` are all of its settings."""

    policy: str
    model: str
    gpus: int
    trace: str
    rate: float
    space: str
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.policy} {self.model} {self.trace}"


@dataclass(frozen=True)
class Optimum:
    """What became of a scenario.

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
        """The trial at which each search came within `near` of the best; inf where it did not, shape (searches,)."""
        target = (1 - near) * self.values[self.best]
        first = [np.flatnonzero(found >= target)[:1] + 1 for found in self.found]
        return np.array([float(at[0]) if len(at) else np.inf for at in first])


@dataclass(frozen=True)
class Searches:
    """`seeds` searches of `trials` trials, all with one sampler (`experiments.tune.sampler`)."""

    sampler: str
    trials: int
    seeds: int

    def samplers(self) -> list[SamplerKind]:
        return [SamplerKind(self.sampler, seed) for seed in range(self.seeds)]


class _Known(Sweep):
    """A sweep whose outcomes are known."""

    def __init__(self, outcomes: Mapping[tuple[str, ...], Outcome]) -> None:
        self._outcomes = outcomes

    def run(self, jobs: Sequence[Sequence[str]]) -> list[Outcome]:
        return [self._outcomes[tuple(job)] for job in jobs]


def read_scenarios(
    only: Sequence[str], overrides: Sequence[str], path: Path = _FILE
) -> tuple[dict[str, Any], list[Scenario]]:
    """The settings of the study and its scenarios, those whose names have all words of `only`."""
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    assert isinstance(content, dict)
    scenarios = []
    for entry in content["scenarios"]:
        for policy, rate in entry["rates"].items():
            search = content["policies"][policy]
            own = (
                *(f"policy={policy}", f"trace={entry['trace']}", f"model={entry['model']}", f"trace.rate={rate}"),
                *content["traces"].get(entry["trace"], ()),
                *entry.get("overrides", ()),
                *search["fixed"],
                *overrides,
            )
            scenario = Scenario(policy, entry["model"], entry["gpus"], entry["trace"], rate, search["space"], own)
            if all(word in scenario.name.split() for word in only):
                scenarios.append(scenario)
    if not scenarios:
        raise InputError(
            f"--only {' '.join(only)}: no scenario has these words; they are a policy, a model and a trace"
        )
    return {str(key): value for key, value in content.items()}, scenarios


def solve(scenario: Scenario, searches: Searches, out: Path) -> Optimum:
    """Run every point of the scenario, then search among them."""
    base = Configuration(scenario.overrides)
    given = [word.partition("=")[0] for word in scenario.overrides]
    space = read_space(scenario.space, {**base.choices, **base.settings}, given, {"gpus": str(scenario.gpus)})
    feasible = Feasibility(space, base)
    points = {point.overrides: point for point in feasible.pool or ()}
    launched = Sweep([*scenario.overrides, "hydra/launcher=joblib"], out).run(list(points))
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve the scenarios and print what was found; the exit code."""
    from experiments.optimum.report import draw, table, write

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    options = _parser().parse_intermixed_args(arguments)

    def solve_all() -> None:
        require_writable(options.out)
        study, scenarios = read_scenarios(options.only or (), options.overrides)
        searches = Searches(study["sampler"], study["trials"], study["seeds"])
        solved = []
        for scenario in scenarios:
            solved.append(solve(scenario, searches, options.out))
            print(f"{len(solved)} of {len(scenarios)}: {scenario.name}", file=sys.stderr)
        results_console().print(table(solved, study["near"]))
        write(options.out, solved, study["near"])
        draw(options.out, solved)
        print(f"results in {options.out}", file=sys.stderr)

    return guard(solve_all)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.optimum", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of every run, as for run.py")
    parser.add_argument(
        "--only", action="extend", nargs="+", metavar="WORD", help="scenarios of this policy, model or trace"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/optimum"), metavar="DIR")
    return parser
