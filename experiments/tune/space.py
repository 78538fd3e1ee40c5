"""Spaces of configurations (conf/space): what a search draws, what follows from it, and its requirements."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from experiments.tune.expression import Expression
from framework.checks import is_numeric

Distribution = IntDistribution | FloatDistribution | CategoricalDistribution
Drawn = Mapping[str, Any]  # the parameters of an Optuna trial
_MOVED, _STEP = 1 / 3, 0.1  # a point nearby: share of its dimensions that move, share of the range
_EPSILON = 1e-9
PREFILL_GPUS = "load_prefill_gpus"  # what a start may use in addition to constants: see `demand.with_demand`
_PARTS = 10
_DIGITS = 4  # digits of a number that is drawn from a range
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")


@dataclass(frozen=True)
class Dimension:
    """One drawn quantity. A power of two is drawn as its exponent, so every sampler sees the order."""

    name: str
    distribution: Distribution
    is_exponent: bool = False

    @property
    def is_logarithmic(self) -> bool:
        return not isinstance(self.distribution, CategoricalDistribution) and self.distribution.log

    @property
    def label(self) -> str:
        """Optuna's name for it."""
        return f"log2 {self.name}" if self.is_exponent else self.name

    def value(self, drawn: Any) -> Any:
        """The value of a setting for a drawn number, or choice."""
        if self.is_exponent:
            return 2 ** int(drawn)
        return float(f"{drawn:.{_DIGITS}g}") if isinstance(self.distribution, FloatDistribution) else drawn

    def drawn(self, value: Any) -> Any:
        """What is drawn for `value`; for one that cannot be drawn, the middle."""
        if isinstance(self.distribution, CategoricalDistribution):
            return value if value in self.distribution.choices else self.distribution.choices[0]
        low, high = self.distribution.low, self.distribution.high
        if is_numeric(value) and (value > 0 or not self.is_exponent):
            number = math.log2(value) if self.is_exponent else value
            if low <= number <= high:
                return round(number) if isinstance(self.distribution, IntDistribution) else float(number)
        return self.at(0.5)

    def all(self) -> Sequence[Any] | None:
        """All possible draws; None in a continuum."""
        if isinstance(self.distribution, CategoricalDistribution):
            return self.distribution.choices
        if isinstance(self.distribution, IntDistribution):
            return range(self.distribution.low, self.distribution.high + 1)
        return None

    def at(self, share: float) -> Any:
        """The value at a share, 0 <= share < 1, of the range."""
        if not isinstance(self.distribution, FloatDistribution):
            drawn = self.all() or ()
            return drawn[int(share * len(drawn))]
        low, high = self.distribution.low, self.distribution.high
        return low * (high / low) ** share if self.distribution.log else low + share * (high - low)

    def position(self, drawn: Any) -> float:
        """The position in the range, 0 to 1; among choices, which must be numbers, by their order."""
        if isinstance(self.distribution, CategoricalDistribution):
            below = [choice for choice in self.distribution.choices if is_numeric(choice) and choice < drawn]
            return len(below) / max(1, len(self.distribution.choices) - 1)
        low, high = float(self.distribution.low), float(self.distribution.high)
        if self.distribution.log:
            low, high, drawn = math.log(low), math.log(high), math.log(drawn)
        return (float(drawn) - low) / (high - low) if high > low else 0.0

    def index(self, drawn: Any) -> int:
        """Its index among all possible draws, or among tenths of a continuum."""
        everything = self.all()
        return int(self.position(drawn) * _PARTS) if everything is None else list(everything).index(drawn)

    def numbers(self, drawn: Any) -> list[float]:
        """`drawn` as its position; for names as one number for each choice, any two of them 1 apart."""
        if isinstance(self.distribution, CategoricalDistribution) and not all(
            map(is_numeric, self.distribution.choices)
        ):
            return [math.sqrt(0.5) * (drawn is choice or drawn == choice) for choice in self.distribution.choices]
        return [self.position(drawn)]


@dataclass(frozen=True)
class Point:
    """A configuration of a space: its settings, and by how much it misses the space's requirements (0: not at all)."""

    drawn: Drawn
    settings: Mapping[str, Any]
    shortfall: float
    overrides: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        overrides = tuple(f"{name}={override_text(value)}" for name, value in self.settings.items())
        object.__setattr__(self, "overrides", overrides)


@dataclass(frozen=True)
class Space:
    """The contents of conf/space/NAME.yaml.

    `fixed` are its constants; `derived` are calculated in order, each from what came before it. Names that `settings`
    has are overrides of conf/config.yaml, the others are helpers. `required`: each at least 0. `starts`: values of
    dimensions to try first. `missing`: what would be searched if the policy had it. `asked`: numbers of the load, by
    name; starts that need others are left out.
    """

    name: str
    fixed: Mapping[str, Any]
    dimensions: tuple[Dimension, ...]
    derived: Mapping[str, Expression]
    required: tuple[Expression, ...]
    starts: tuple[Mapping[str, Expression], ...]
    settings: Mapping[str, Any]
    missing: tuple[str, ...] = ()
    asked: Mapping[str, int] = field(default_factory=dict)

    @property
    def distributions(self) -> dict[str, Distribution]:
        """The distributions that `Study.ask` takes."""
        return {dimension.label: dimension.distribution for dimension in self.dimensions}

    @property
    def described(self) -> dict[str, str]:
        """The identity of the space, by name: the places of its points, not their order."""
        constants = {f"space.{name}": str(value) for name, value in self.fixed.items()}
        ranges = {f"space.{one.name}": str(one.distribution) for one in self.dimensions}
        derived = {f"space.{name}": expression.text for name, expression in self.derived.items()}
        return constants | ranges | derived | {"space.require": "; ".join(one.text for one in self.required)}

    @property
    def size(self) -> float:
        """The number of points, feasible or not."""
        sizes = [math.inf if (all_drawn := one.all()) is None else len(all_drawn) for one in self.dimensions]
        return math.prod(sizes)

    def points(self) -> Iterator[Point]:
        """All points of a space of finite size."""
        ranges = [dimension.all() or () for dimension in self.dimensions]
        labels = [dimension.label for dimension in self.dimensions]
        return (self.point(dict(zip(labels, drawn, strict=True))) for drawn in itertools.product(*ranges))

    def point(self, drawn: Drawn) -> Point:
        """The configuration for `drawn`."""
        values = dict(self.fixed)
        for dimension in self.dimensions:
            values[dimension.name] = dimension.value(drawn[dimension.label])
        for name, expression in self.derived.items():
            values[name] = expression(values)
        shortfall = sum(max(0.0, -required(values)) for required in self.required)
        own = [name for name in (*self.derived, *(one.name for one in self.dimensions)) if name in self.settings]
        return Point(dict(drawn), {name: values[name] for name in own}, float(shortfall))

    def random_point(self, rng: np.random.Generator) -> Point:
        """A point drawn uniformly."""
        return self.point({one.label: one.at(rng.random()) for one in self.dimensions})

    def nearby(self, point: Point, rng: np.random.Generator) -> Point:
        """A point that differs from `point` in about a third of the dimensions, by about a tenth of the range."""
        drawn = dict(point.drawn)
        moved = rng.random(len(self.dimensions)) < _MOVED
        moved[rng.integers(len(moved))] = True
        for dimension in (one for one, moves in zip(self.dimensions, moved, strict=True) if moves):
            place = rng.random()
            if not isinstance(dimension.distribution, CategoricalDistribution):
                place = dimension.position(drawn[dimension.label]) + _STEP * rng.standard_normal()
            drawn[dimension.label] = dimension.at(min(max(place, 0.0), 1 - _EPSILON))
        return self.point(drawn)

    def first_points(self) -> list[Point]:
        """Points to try first, each once: `starts`, completed by the configuration's values."""
        known = {*self.fixed, *self.asked}
        starts = [start for start in self.starts if all(value.names <= known for value in start.values())]
        points = [self.point({one.label: self._first(one, start) for one in self.dimensions}) for start in starts]
        return list({point.overrides: point for point in points}.values())

    def _first(self, dimension: Dimension, start: Mapping[str, Expression]) -> Any:
        if dimension.name in start:
            return dimension.drawn(start[dimension.name]({**self.fixed, **self.asked}))
        return dimension.drawn(self.settings.get(dimension.name))

    def distance(self, one: Drawn, other: Drawn) -> float:
        """The squared distance of two drawn points; each dimension is 1 from end to end and between two names."""
        return sum(
            (a - b) ** 2
            for dimension in self.dimensions
            for a, b in zip(*(dimension.numbers(drawn[dimension.label]) for drawn in (one, other)), strict=True)
        )


def override_text(value: Any) -> str:
    """A value as the right-hand side of a Hydra override."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if is_numeric(value):
        return repr(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in ("null", "true", "false", "nan", "inf"):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
