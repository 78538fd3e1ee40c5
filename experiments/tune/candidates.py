"""The points for the next trial: all feasible ones of a finite space, some of a continuum."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from experiments.tune.feasible import Feasibility
from experiments.tune.space import Point, Space
from experiments.tune.surrogate import Surrogate, Tried

_DRAWS = 500  # draws from a continuum
_BEST, _NEARBY = 5, 40  # points around which others are searched, and the number of those


class Candidates:
    """Feasible points of a space, and the model that chooses among them."""

    def __init__(self, space: Space, feasible: Feasibility) -> None:
        self.feasible = feasible
        self._space = space

    @functools.cached_property
    def surrogate(self) -> Surrogate:
        """The model, whose ranges are those of the space's points."""
        return Surrogate(self._space, self.sample)

    @functools.cached_property
    def sample(self) -> Sequence[Point]:
        """All feasible points of a finite space, else some points of the continuum; at least one."""
        rng = np.random.default_rng(0)
        return self.feasible.pool or [self._space.random_point(rng) for _ in range(_DRAWS)]

    def left(self, tried: Sequence[Tried], rng: np.random.Generator) -> list[Point]:
        """Feasible points that have not been tried: all of a finite space, else random ones and some near the best."""
        points = self.feasible.pool
        if points is None:
            best = sorted((one for one in tried if one.values), key=lambda one: one.values or (), reverse=True)[:_BEST]
            drawn = [self._space.random_point(rng) for _ in range(_DRAWS)]
            drawn += [self._space.nearby(one.point, rng) for one in best for _ in range(_NEARBY)]
            points = [point for point in drawn if self.feasible.is_feasible(point)]
        taken = {one.point.overrides for one in tried}
        return [point for point in points if point.overrides not in taken]
