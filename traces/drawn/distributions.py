"""Distributions of lengths, think times and arrivals, named in a config and sampled by inverse transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from framework.checks import require_at_least, require_positive
from framework.errors import InputError, shown
from traces.drawn.changing_rate import ChangingRate
from traces.drawn.quoted import by_percentiles, cut_lognormal, quoted, require_pair

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Distribution:
    """A distribution of non-negative numbers; parameters that the chosen distribution does not use are ignored.

    `fixed`: mean. `uniform`: low, high. `exponential`: mean. `lognormal`: mean and cv (standard deviation / mean).
    `pareto`: mean and tail index `shape` > 1 (Pareto I). `empirical`: values and optional weights. `low` and `high`
    truncate the exponential, lognormal and Pareto distributions: values outside are never drawn, and the mean moves
    accordingly. Two distributions have the given figures after the cut: `cut_lognormal`, a lognormal distribution
    within [low, high] by two of mean, cv and `percentiles` ({50: 415, 90: 834}), and `percentiles`, which passes
    through any number of them and meets the mean, if one is set. `mixture`: draws from `parts`, each a mapping of such
    parameters, by `weights`. Raises InputError for a parameter that is missing or out of range.
    """

    law: str
    mean: float | None = None
    cv: float | None = None
    shape: float | None = None
    low: float | None = None
    high: float | None = None
    values: Sequence[float] | None = None
    weights: Sequence[float] | None = None
    percentiles: Mapping[float, float] | None = None
    parts: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.law, str) or self.law not in DISTRIBUTIONS:
            raise InputError(f"law={shown(self.law)} is not a known distribution; choose {', '.join(DISTRIBUTIONS)}")
        for name in NEEDS[self.law]:
            if getattr(self, name) is None:
                raise InputError(f"distribution {self.law} needs {', '.join(NEEDS[self.law])}: {name} is not set")
        for name, least in (("mean", 0.0), ("cv", 0.0), ("shape", 1.0), ("low", 0.0), ("high", 0.0)):
            if getattr(self, name) is not None:
                require_at_least(f"distribution {self.law}: {name}", getattr(self, name), least)
        if self.law == "pareto" and self.shape == 1.0:
            raise InputError("distribution pareto: shape is 1, a mean exists for shapes above 1 only")
        if self.law in ("lognormal", "pareto", "exponential") and self.mean == 0.0:
            raise InputError(f"distribution {self.law}: mean is 0, must be positive")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InputError(f"distribution {self.law}: low is {self.low:g}, more than high, {self.high:g}")
        if self.values is not None:
            self._check_values(self.values)
        if self.law in _CHECKED:
            self.quantile(np.array([0.5]))

    def quantile(self, uniform: Floats) -> Floats:
        """The values below which the distribution has these shares, both (N,)."""
        return DISTRIBUTIONS[self.law](self, uniform)

    def components(self) -> list[Distribution]:
        """The distributions of a mixture, in order."""
        if not isinstance(self.parts, Sequence) or not all(isinstance(part, Mapping) for part in self.parts):
            raise InputError("distribution mixture: parts must be a list of distributions, each a mapping")
        known = [item.name for item in fields(Distribution)]
        for part in self.parts:
            if "law" not in part or not set(part) <= set(known):
                raise InputError(
                    f"distribution mixture: a part has {', '.join(map(str, part))}; its keys are {', '.join(known)}"
                )
        return [Distribution(**part) for part in self.parts]

    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        """`count` independent draws."""
        return self.quantile(rng.random(count))

    def shares(self, count: int) -> Floats:
        """The `weights` of `count` values or parts, or equal ones; only their proportions count."""
        if self.weights is None:
            return np.ones(count)
        if not isinstance(self.weights, Sequence) or len(self.weights) != count:
            raise InputError(f"distribution {self.law}: weights must be a list of {count} numbers, one for each value")
        for weight in self.weights:
            require_at_least(f"distribution {self.law}: a weight", weight, 0)
        require_positive(f"distribution {self.law}: the sum of weights", sum(self.weights))
        return np.asarray(self.weights, dtype=np.float64)

    def _check_values(self, values: Sequence[float]) -> None:
        if not isinstance(values, Sequence) or not values:
            raise InputError(f"distribution {self.law}: values is {values!r}, must be a list of numbers")
        for value in values:
            require_at_least(f"distribution {self.law}: a value", value, 0)
        self.shares(len(values))


@dataclass(frozen=True)
class Arrivals:
    """A renewal process of `rate` arrivals per second: `poisson`, `gamma` gaps with a cv, or `fixed` gaps.

    The rate may change as in `ChangingRate`: a ramp to `end_rate` over `ramp_s` seconds, and a `swing` of `period_s`
    with its peak at `peak_s`. Gaps are then drawn in expected arrivals instead of seconds.
    """

    law: str
    rate: float
    cv: float = 1.0
    end_rate: float | None = None
    ramp_s: float = 0.0
    swing: float = 0.0
    period_s: float = 86400.0
    peak_s: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.law, str) or self.law not in ("poisson", "gamma", "fixed"):
            raise InputError(
                f"arrivals: law={shown(self.law)} is not a known distribution; choose poisson, gamma, fixed"
            )
        require_positive("arrivals: cv", self.cv)
        self._changing()

    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        """`count` arrival times in seconds, the first at 0."""
        changing = self._changing()
        rate = self.rate if changing.is_constant else 1.0
        times = self._at(rate, count, rng)
        return times if changing.is_constant else changing.times_s(times)

    def _at(self, rate: float, count: int, rng: np.random.Generator) -> Floats:
        if self.law == "fixed":
            return np.arange(count) / rate
        shape = 1.0 if self.law == "poisson" else 1.0 / self.cv**2
        gaps = rng.gamma(shape, 1.0 / (shape * rate), count - 1)
        return np.concatenate(([0.0], np.cumsum(gaps)))

    def _changing(self) -> ChangingRate:
        return ChangingRate(self.rate, self.end_rate, self.ramp_s, self.swing, self.period_s, self.peak_s)


def _fixed(chosen: Distribution, uniform: Floats) -> Floats:
    return np.full(len(uniform), chosen.mean)


def _uniform(chosen: Distribution, uniform: Floats) -> Floats:
    low, high = _set(chosen.low), _set(chosen.high)
    return low + (high - low) * uniform


def _exponential(chosen: Distribution, uniform: Floats) -> Floats:
    mean = _set(chosen.mean)
    return _truncated(chosen, uniform, lambda x: -np.expm1(-x / mean), lambda p: -mean * np.log1p(-p))


def _lognormal(chosen: Distribution, uniform: Floats) -> Floats:
    sigma = math.sqrt(math.log1p(_set(chosen.cv) ** 2))
    if sigma == 0.0:
        return _fixed(chosen, uniform)
    mu = math.log(_set(chosen.mean)) - sigma**2 / 2

    def cdf(x: Floats) -> Floats:
        with np.errstate(divide="ignore"):  # log(0): the lower end has no mass below it
            return np.asarray(ndtr((np.log(x) - mu) / sigma))

    return _truncated(chosen, uniform, cdf, lambda p: np.exp(mu + sigma * ndtri(p)))


def _pareto(chosen: Distribution, uniform: Floats) -> Floats:
    shape = _set(chosen.shape)
    scale = _set(chosen.mean) * (shape - 1) / shape
    cdf = lambda x: 1 - (scale / np.maximum(x, scale)) ** shape  # noqa: E731
    return _truncated(chosen, uniform, cdf, lambda p: scale * (1 - p) ** (-1 / shape))


def _empirical(chosen: Distribution, uniform: Floats) -> Floats:
    values = np.asarray(chosen.values, dtype=np.float64)
    cumulative = np.cumsum(chosen.shares(len(values)))
    return values[np.searchsorted(cumulative, uniform * cumulative[-1], side="right")]


def _cut_lognormal(chosen: Distribution, uniform: Floats) -> Floats:
    low, high = _range(chosen)
    figures = quoted(chosen.law, chosen.mean, chosen.cv, chosen.percentiles)
    require_pair(chosen.law, figures)
    return cut_lognormal(figures, low, high).quantile(uniform)


def _percentiles(chosen: Distribution, uniform: Floats) -> Floats:
    return by_percentiles(quoted(chosen.law, chosen.mean, None, chosen.percentiles), *_range(chosen)).quantile(uniform)


def _mixture(chosen: Distribution, uniform: Floats) -> Floats:
    """For each number, a value of the part whose share of [0, 1) contains the number, at the same place."""
    components = chosen.components()
    ends = np.concatenate(([0.0], np.cumsum(chosen.shares(len(components)))))
    ends /= ends[-1]
    drawn = np.empty(len(uniform))
    at = np.clip(np.searchsorted(ends, uniform, side="right") - 1, 0, len(components) - 1)
    for number, part in enumerate(components):
        of = at == number
        drawn[of] = part.quantile((uniform[of] - ends[number]) / (ends[number + 1] - ends[number]))
    return drawn


def _truncated(
    chosen: Distribution, uniform: Floats, cdf: Callable[[Floats], Floats], quantile: Callable[[Floats], Floats]
) -> Floats:
    """The distribution within [low, high], by its distribution function there."""
    bounds = np.array([0.0 if chosen.low is None else chosen.low, math.inf if chosen.high is None else chosen.high])
    first, last = cdf(bounds)
    if not first < last:
        raise InputError(f"distribution {chosen.law}: no mass between low {bounds[0]:g} and high {bounds[1]:g}")
    return np.clip(quantile(first + (last - first) * uniform), *bounds)  # clipped against rounding only


def _range(chosen: Distribution) -> tuple[float, float]:
    low, high = _set(chosen.low), _set(chosen.high)
    if not 0 < low < high:
        raise InputError(
            f"distribution {chosen.law}: low is {low:g} and high is {high:g}, must be above 0 and low below high"
        )
    return float(low), float(high)


def _set(value: float | None) -> float:
    """A parameter that the distribution's own check has found set."""
    assert value is not None
    return value


_CHECKED = ("cut_lognormal", "percentiles", "mixture")  # solving shows whether a figure can be met
DISTRIBUTIONS: Mapping[str, Callable[[Distribution, Floats], Floats]] = MappingProxyType(
    {
        "fixed": _fixed,
        "uniform": _uniform,
        "exponential": _exponential,
        "lognormal": _lognormal,
        "pareto": _pareto,
        "empirical": _empirical,
        "cut_lognormal": _cut_lognormal,
        "percentiles": _percentiles,
        "mixture": _mixture,
    }
)
NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fixed": ("mean",),
        "uniform": ("low", "high"),
        "exponential": ("mean",),
        "lognormal": ("mean", "cv"),
        "pareto": ("mean", "shape"),
        "empirical": ("values",),
        "cut_lognormal": ("low", "high"),
        "percentiles": ("percentiles", "low", "high"),
        "mixture": ("parts",),
    }
)
