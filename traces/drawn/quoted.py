"""Distributions whose mean, coefficient of variation and percentiles after the cut are those of a source.

A lognormal distribution that is cut to a range loses its mean and its percentiles. Here the figures hold for the drawn
distribution: `cut_lognormal` solves for the two parameters, `by_percentiles` passes through every percentile and bends
between them until the mean is met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri_exp

from framework.checks import is_number
from framework.errors import InputError, shown

Floats = NDArray[np.float64]
Figures = tuple[tuple[str, float], ...]  # (`mean`, `cv` or a percentile such as `p90`; its value)

_GRID = (np.arange(2000) + 0.5) / 2000  # probabilities at which means are summed
_SIGMAS = (1e-3, 12.0)  # sigmas of the logarithm before the cut; at the upper end this is a power law to four digits
_FARTHEST = 300.0  # largest exponent of the power law that a cut lognormal distribution of large sigma approaches


@dataclass(frozen=True)
class Cut:
    """A lognormal distribution within [low, high]: `mu` and `sigma` are of its logarithm before the cut."""

    mu: float
    sigma: float
    low: float
    high: float

    def quantile(self, uniform: Floats) -> Floats:
        """The values below which the distribution has these shares, both (N,)."""
        first, last = ((math.log(end) - self.mu) / self.sigma for end in (self.low, self.high))
        with np.errstate(divide="ignore"):  # a share of 0 or 1
            below, above = np.log(uniform), np.log1p(-uniform)
        if self.mu < (math.log(self.low) + math.log(self.high)) / 2:  # the tail that keeps its digits is the other one
            score = -ndtri_exp(np.logaddexp(log_ndtr(-last) + below, log_ndtr(-first) + above))
        else:
            score = ndtri_exp(np.logaddexp(log_ndtr(last) + below, log_ndtr(first) + above))
        return np.clip(np.exp(self.mu + self.sigma * score), self.low, self.high)

    def figure(self, name: str) -> float:
        """Its mean, its cv, or a percentile such as `p90`."""
        if name in ("mean", "cv"):
            values = self.quantile(_GRID)
            return float(values.mean() if name == "mean" else values.std() / values.mean())
        return float(self.quantile(np.array([float(name[1:]) / 100]))[0])


@lru_cache(maxsize=256)
def cut_lognormal(figures: Figures, low: float, high: float) -> Cut:
    """The lognormal distribution within [low, high] that has both figures. Raises InputError if none has."""
    (first, value), (second, wanted) = figures
    if not low < value < high:
        raise InputError(
            f"distribution cut_lognormal: {first} is {value:g}, must lie between low, {low:g}, and high, {high:g}"
        )

    def of(sigma: float) -> Cut:
        far = _FARTHEST * sigma * max(sigma, 1 / math.log(high / low))
        ends = math.log(low) - far, math.log(high) + far
        return Cut(_root(lambda mu: Cut(mu, sigma, low, high).figure(first) - value, *ends), sigma, low, high)

    ends = sorted(of(sigma).figure(second) for sigma in _SIGMAS)
    if not ends[0] < wanted < ends[1]:
        raise InputError(
            f"distribution cut_lognormal: from {low:g} to {high:g} and with {first} {value:g} no lognormal has {second}"
            f" {wanted:g}; it can be from {ends[0]:.3g} to {ends[1]:.3g}"
        )
    return of(math.exp(_root(lambda x: of(math.exp(x)).figure(second) - wanted, *np.log(_SIGMAS))))


@dataclass(frozen=True)
class Bent:
    """A distribution by percentiles; between `levels` p[i] and p[i + 1] it is v[i] + (v[i + 1] - v[i]) t^`exponent`.

    `t` goes from 0 to 1 between two levels. Both `levels` and `values` are (K,), from 0 to 1 and from low to high.
    """

    levels: Floats
    values: Floats
    exponent: float

    def quantile(self, uniform: Floats) -> Floats:
        """The values below which the distribution has these shares, both (N,)."""
        at = np.clip(np.searchsorted(self.levels, uniform, side="right") - 1, 0, len(self.levels) - 2)
        part = (uniform - self.levels[at]) / (self.levels[at + 1] - self.levels[at])
        return np.asarray(self.values[at] + (self.values[at + 1] - self.values[at]) * part**self.exponent)


@lru_cache(maxsize=256)
def by_percentiles(figures: Figures, low: float, high: float) -> Bent:
    """The distribution from low to high with these percentiles and, if it is given, this mean.

    Without a mean values are uniform between percentiles. Raises InputError for a mean that the percentiles exclude.
    """
    points = sorted((float(name[1:]) / 100, value) for name, value in figures if name != "mean")
    levels = np.array([0.0, *(level for level, _ in points), 1.0])
    values = np.array([low, *(value for _, value in points), high])
    if (np.diff(values) < 0).any():
        raise InputError(
            f"distribution percentiles: values must rise from low to high, got {', '.join(map('{:g}'.format, values))}"
        )
    mean = dict(figures).get("mean")
    if mean is None:
        return Bent(levels, values, 1.0)
    weights = np.diff(levels)
    least, most = float(weights @ values[:-1]), float(weights @ values[1:])
    if not least < mean < most:
        raise InputError(
            f"distribution percentiles: with these percentiles the mean is from {least:.4g} to {most:.4g}, not {mean:g}"
        )
    return Bent(levels, values, (most - least) / (mean - least) - 1)


def quoted(name: str, mean: float | None, cv: float | None, percentiles: Mapping[float, float] | None) -> Figures:
    """The given figures, checked. Raises InputError for invalid ones."""
    figures = [(name, value) for name, value in (("mean", mean), ("cv", cv)) if value is not None]
    for level, value in (percentiles or {}).items():
        percent = float(level) if is_number(level) else _percent(name, level)
        if not 0 < percent < 100:
            raise InputError(f"distribution {name}: a percentile is of {shown(level)} %, must lie between 0 and 100")
        if not is_number(value) or not value > 0:
            raise InputError(f"distribution {name}: percentile {percent:g} is {shown(value)}, must be a number above 0")
        figures.append((f"p{percent:g}", float(value)))
    return tuple(figures)


def require_pair(name: str, figures: Figures) -> None:
    """Raise InputError unless these are two figures that fix a distribution."""
    if len(figures) != 2 or figures[0][0] == "cv":
        raise InputError(
            f"distribution {name} needs two figures: the mean and cv, the mean and a percentile, or two percentiles"
        )


def _percent(name: str, level: object) -> float:
    try:
        return float(str(level).removeprefix("p"))
    except ValueError as error:
        raise InputError(f"distribution {name}: {shown(level)} is no percentile, write 90 or p90") from error


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-10, rtol=1e-12))
