"""The next trial: one of Optuna's samplers, restricted to feasible and untried configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    NSGAIIISampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.trial import FrozenTrial

from experiments.tune.candidates import Candidates
from experiments.tune.feasible import LARGEST_POOL
from experiments.tune.space import Point, Space
from experiments.tune.surrogate import Tried
from framework.checks import require_choice
from framework.errors import InputError

SAMPLERS = ("tpe", "gp", "cmaes", "nsga", "nsgaiii", "random", "qmc", "grid")
DEFAULT = "tpe"  # default sampler; in a space of thousands of points gp finds more in few trials
_GENERATION = 20  # trials of a generation of NSGA
_ATTEMPTS = 20  # draws before the nearest is taken; more would help little, since the sampler repeats what it has seen


@dataclass(frozen=True)
class SamplerKind:
    """One of SAMPLERS and a seed. Raises InputError for an unknown one, or one that cannot do the search."""

    name: str
    seed: int

    def __post_init__(self) -> None:
        require_choice("sampler", self.name, SAMPLERS)

    def check(self, space: Space, goals: int) -> None:
        """Raise InputError if it cannot search `space` for that many goals."""
        if self.name == "cmaes" and goals > 1:
            raise InputError("sampler=cmaes knows one objective only; choose tpe, gp, nsga or nsgaiii")
        if self.name == "grid" and space.size > LARGEST_POOL:
            raise InputError(
                f"sampler=grid: space {space.name} has {space.size:,.0f} points, more than {LARGEST_POOL:,}; fix some"
                " of what it searches, or choose another sampler"
            )

    def optuna_sampler(self, rank: int) -> BaseSampler | None:
        """The sampler for the trial of that rank; None for `gp`, which is this project's, and for `grid`, any remaining
        point.

        Samplers learn from the study; random numbers are those of the rank, so an interrupted study continues as it
        would have.
        """
        seed = int(np.random.SeedSequence((self.seed, rank)).generate_state(1)[0])
        match self.name:
            case "tpe":
                return TPESampler(seed=seed)
            case "cmaes":
                return CmaEsSampler(seed=seed, warn_independent_sampling=False)
            case "nsga":
                return NSGAIISampler(seed=seed, population_size=_GENERATION)
            case "nsgaiii":
                return NSGAIIISampler(seed=seed, population_size=_GENERATION)
            case "qmc":  # one sequence for the whole study
                return QMCSampler(seed=self.seed, scramble=True, warn_independent_sampling=False)
            case "random":
                return RandomSampler(seed=seed)
        return None


class Proposer(BaseSampler):
    """Names a feasible and untried point: those of `first`, then the sampler's.

    The requirements of a space are known before anything runs, so no trial is spent on learning them. An Optuna sampler
    draws until a draw is usable; if that takes long, the nearest usable point is taken. `failed`: numbers of trials
    that do not count. If all are tried a point is repeated; if a continuum seems to have no feasible point, an
    infeasible one is named.
    """

    def __init__(
        self,
        kind: SamplerKind,
        space: Space,
        candidates: Candidates,
        tried: Sequence[Tried],
        first: Sequence[Point],
        failed: Sequence[int],
    ) -> None:
        self._kind = kind
        self._space = space
        self._candidates = candidates
        self._tried = tried
        self._taken = {one.point.overrides for one in tried}
        self._first = first
        self._failed = failed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return dict(self._space.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        rank = trial.number - sum(number < trial.number for number in self._failed)
        return dict(self._choose(study, trial, rank).drawn)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise AssertionError(f"{param_name} is not in the space")

    def _choose(self, study: Study, trial: FrozenTrial, rank: int) -> Point:
        for point in self._first:
            if self._is_new(point):
                return point
        rng = np.random.default_rng((self._kind.seed, rank))
        optuna_sampler = self._kind.optuna_sampler(rank)
        if optuna_sampler is not None:
            return self._drawn(optuna_sampler, study, trial, rng)
        left = self._candidates.left(self._tried, rng)
        if not left:
            return self._space.random_point(rng)
        if self._kind.name == "gp":
            return self._candidates.surrogate.choose(self._tried, left, rng)
        return left[rng.integers(len(left))]

    def _drawn(self, sampler: BaseSampler, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> Point:
        for _ in range(_ATTEMPTS):
            together = sampler.infer_relative_search_space(study, trial)
            drawn = sampler.sample_relative(study, trial, together)
            for label, distribution in self._space.distributions.items():
                if label not in drawn:
                    drawn[label] = sampler.sample_independent(study, trial, label, distribution)
            point = self._space.point(drawn)
            if self._is_new(point):
                return point
        return min(
            self._candidates.left(self._tried, rng),
            key=lambda other: self._space.distance(point.drawn, other.drawn),
            default=point,
        )

    def _is_new(self, point: Point) -> bool:
        return point.overrides not in self._taken and self._candidates.feasible.is_feasible(point)
