"""Choice by a model of the objective: the configuration with the largest expected improvement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.tune.gp import GaussianProcess
from experiments.tune.space import Point, Space

Floats = NDArray[np.float64]
_STARTUP = 10  # observations before there is a model
_SPREAD_OVER = 30  # candidates of which the one farthest from all others is tried until then
_OBSERVED = 300  # observations in a model, the best and the latest: its cost grows with the cube
_FLOOR = 0.01  # share of the best to which anything worse is raised
_AUGMENTATION = 0.05


@dataclass(frozen=True)
class Tried:
    """A point and its result, by goal, higher is better; None while unknown.

    A point that could not be run has no values.
    """

    point: Point
    values: tuple[float, ...] | None


@dataclass(frozen=True)
class _Derived:
    """A derived setting as a number: 0 to 1 by its place, in logarithms, in its range."""

    name: str
    low: float
    high: float

    def numbers(self, value: Any) -> list[float]:
        return [(math.log(max(value, self.low)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))]


class Surrogate:
    """Bayesian optimisation over a list of points: expected improvement by a Gaussian process over their settings.

    `reference` gives the ranges of the settings. Several goals get new weights in each trial (ParEGO: Knowles, IEEE
    Transactions on Evolutionary Computation, 2006). Running trials are assumed to have their expected values.
    """

    def __init__(self, space: Space, reference: Sequence[Point]) -> None:
        self._space = space
        searched = {dimension.name: dimension for dimension in space.dimensions}
        self._drawn = [searched[name] for name in reference[0].settings if name in searched]
        self._derived = []
        for name in (name for name in reference[0].settings if name not in searched):
            positive = [point.settings[name] for point in reference if point.settings[name] > 0]
            if len(set(positive)) > 1:
                self._derived.append(_Derived(name, min(positive), max(positive)))
        widths = [1] * len(self._derived) + [len(one.numbers(one.at(0))) for one in self._drawn]
        self._groups = [group for group, width in enumerate(widths) for _ in range(width)]
        self._known: dict[tuple[str, ...], list[float]] = {}

    def choose(self, tried: Sequence[Tried], candidates: Sequence[Point], rng: np.random.Generator) -> Point:
        """The most promising of `candidates`; while little is known, one far from all tried ones."""
        ended = [one for one in tried if one.values is not None]
        if not any(one.values for one in tried) or not self._groups:
            return candidates[int(rng.integers(len(candidates)))]
        if len(ended) < _STARTUP:
            return self._farthest([one.point for one in tried], candidates, rng)
        goals = _scalar([one.values or () for one in ended], rng)
        kept = sorted({*np.argsort(-goals, kind="stable")[: _OBSERVED // 2], *range(len(ended))[-_OBSERVED // 2 :]})
        model = GaussianProcess(self._numbers([ended[row].point for row in kept]), goals[kept], self._groups)
        pending = self._numbers([one.point for one in tried if one.values is None])
        return candidates[int(np.argmax(model.improvement(self._numbers(candidates), pending)))]

    def importances(self, tried: Sequence[Tried], points: Sequence[Point]) -> dict[str, float]:
        """The share of the first goal's variance over `points` that each dimension explains alone, by the model.

        These are the first-order shares of a functional ANOVA (Hutter, Hoos and Leyton-Brown, ICML 2014); empty if
        little is known. The rest to 1 is explained by several dimensions together.
        """
        known = [one for one in tried if one.values]
        goals = np.asarray([one.values[0] for one in known if one.values])
        if len(known) < _STARTUP or goals.min() == goals.max() or not self._groups:
            return {}
        model = GaussianProcess(self._numbers([one.point for one in known]), goals, self._groups)
        expected = model.expected(self._numbers(points))
        shares = {}
        for dimension in self._space.dimensions:
            places = np.asarray([dimension.index(point.drawn[dimension.label]) for point in points])
            own = [expected[places == place] for place in np.unique(places)]
            between = sum(len(part) * (part.mean() - expected.mean()) ** 2 for part in own)
            shares[dimension.name] = float(between / (len(points) * expected.var()))
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def _farthest(self, tried: Sequence[Point], candidates: Sequence[Point], rng: np.random.Generator) -> Point:
        some = rng.choice(len(candidates), min(_SPREAD_OVER, len(candidates)), replace=False)
        away = self._numbers([candidates[row] for row in some])[:, None, :] - self._numbers(tried)[None, :, :]
        return candidates[int(some[np.argmax((away**2).sum(axis=2).min(axis=1))])]

    def _numbers(self, points: Sequence[Point]) -> Floats:
        for point in points:
            if point.overrides not in self._known:
                row = [number for one in self._derived for number in one.numbers(point.settings[one.name])]
                row += [number for one in self._drawn for number in one.numbers(point.drawn[one.label])]
                self._known[point.overrides] = row
        return np.asarray([self._known[point.overrides] for point in points]).reshape(len(points), len(self._groups))


def _scalar(values: Sequence[tuple[float, ...]], rng: np.random.Generator) -> Floats:
    """One figure for each observation, (n,), higher is better; those without values are as bad as the worst."""
    goals = max(map(len, values))
    known = np.asarray([value for value in values if value], np.float64)
    columns = [_compressed(known[:, goal]) for goal in range(goals)]
    if goals == 1:
        figure = columns[0]
    else:
        spans = [column.max() - column.min() for column in columns]
        shares = np.asarray([(one - one.min()) / (span or 1.0) for one, span in zip(columns, spans, strict=True)])
        weighed = rng.dirichlet(np.ones(goals))[:, None] * shares
        figure = weighed.min(axis=0) + _AUGMENTATION * weighed.sum(axis=0)
    rows = iter(figure)
    return np.asarray([next(rows) if value else figure.min() for value in values])


def _compressed(values: Floats) -> Floats:
    """Logarithms of figures of one sign, so differences near the best count and far worse figures are equal."""
    best = values.max()
    if best > 0 and values.min() >= 0:
        return np.log(np.maximum(values, _FLOOR * best))
    if best < 0:
        return -np.log(np.minimum(-values, -best / _FLOOR))
    return values
