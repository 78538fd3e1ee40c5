"""Fits a few parameters of a simulator to measured times; the prior decides where the data say little.

A simulated time is not a smooth function of the parameters: if a step ends a little later, the scheduler may decide
otherwise, and single times jump. So the simulator runs at points spread over a box around the estimate, a quadratic
surface is fitted to each predicted log time, and the estimate moves to the best point of the surfaces (Box, Wilson, "On
the experimental attainment of optimum conditions", J. R. Stat. Soc. B 13(1), 1951); then the box shrinks. The scatter
around a surface is the simulator's own. The measured time has it too, as one draw of the same kind.

The best point is the maximum of the posterior: residuals over their standard deviation, with a loss that is linear in
outliers (soft L1), and a normal prior for each parameter. Residuals have, in addition to the scatter, a noise that is
estimated from them. Standard errors come from the slopes of the surfaces and the prior, by the sandwich formula (White,
"Maximum likelihood estimation of misspecified models", Econometrica 50(1), 1982), because scatter is correlated among
times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.calibration.surfaces import Box, Surfaces, added_noise, coefficients_of
from framework.checks import NotNegative, Positive, check_fields
from framework.errors import InputError

Floats = NDArray[np.float64]
Predict = Callable[[Mapping[str, float]], Floats]  # values of the terms -> predicted log times, (M,)

_FIRST_RADIUS, _LAST_RADIUS = 1.0, 0.5  # radii of the box, in widths of the prior
_MOVES = 8  # most moves of the box
POINTS = 6  # points of a box for each coefficient of a surface
_FIRST_NOISE = 0.02  # noise of a log time while the box is large, so that the prior does not stop the search
_MARGIN = 0.25  # share of a box's width within which earlier simulations count
_FAR = 0.9  # share of the radius beyond which a best point counts as on the edge, so the box moves
_NOISE_SETTLED = 0.2
_KNOWN = 0.5  # share of the prior's width: with a larger standard error the prior determined the term
_ALIKE = 0.95  # correlation of two terms that the data hardly separate


@dataclass(frozen=True)
class Term:
    """A parameter, and what is known of it before any data: a normal prior around `centre`, cut at the bounds.

    `width` is the standard deviation of the prior: that of the logarithm if `factor` is true (a multiplier), else in
    the term's own unit. Raises InputError for bounds that exclude the centre.
    """

    name: str
    centre: float
    width: Positive
    lowest: NotNegative
    highest: float
    factor: bool = False

    def __post_init__(self) -> None:
        check_fields(self, f"{self.name}: ")
        if not self.lowest <= self.centre <= self.highest or (self.factor and self.lowest <= 0):
            raise InputError(f"{self.name}: the bounds {self.lowest:g} to {self.highest:g} must hold {self.centre:g}")

    def value(self, z: float) -> float:
        """The value that lies `z` widths from the centre, or the nearest bound if that lies beyond it."""
        value = self.centre * np.exp(self.width * z) if self.factor else self.centre + self.width * z
        return float(np.clip(value, self.lowest, self.highest))

    def z(self, value: float) -> float:
        """The distance of a value from the centre, in widths of the prior."""
        return float((np.log(value / self.centre) if self.factor else value - self.centre) / self.width)

    def error(self, value: float, z_error: float) -> float:
        """The standard error in the term's own unit, from `z_error` in widths of the prior."""
        return float(z_error * self.width * (value if self.factor else 1.0))


@dataclass(frozen=True)
class Fitted:
    """The result of a fit of K terms to M log times, with the terms in the order of the prior.

    `values` and `errors` are by term, in its unit; errors are standard errors, at most the prior's width. `known` says
    by term whether the data, not the prior, determined it. `idle` has the names of the terms without effect. `before`
    and `after` are predicted - measured log times at the prior's centres and at `values`, shape (M,). `scatter` is the
    standard deviation of each log time among similar simulations, shape (M,), and `noise` is the additional standard
    deviation of residuals. `correlation` is that of the errors, shape (K, K). `evaluations` counts the predictions.
    """

    values: Mapping[str, float]
    errors: Mapping[str, float]
    known: Mapping[str, bool]
    idle: tuple[str, ...]
    before: Floats
    after: Floats
    scatter: Floats
    noise: float
    correlation: Floats
    evaluations: int

    def warnings(self) -> tuple[str, ...]:
        """One line on each term that the data do not determine, and on each pair that they hardly separate."""
        names = list(self.values)
        lines = [f"{name}: has no effect here and stays what it was" for name in self.idle]
        unknown = [name for name, known in self.known.items() if not known and name not in self.idle]
        lines += [f"{name}: these measurements hardly tell it; it is near what was assumed" for name in unknown]
        for i, j in zip(*np.triu_indices(len(names), 1), strict=True):
            if abs(self.correlation[i, j]) > _ALIKE:
                lines.append(
                    f"{names[i]} and {names[j]}: hardly distinguishable (correlation {self.correlation[i, j]:.2f})"
                )
        return tuple(lines)


def fit(
    predict: Predict,
    measured: Floats,
    prior: Sequence[Term],
    weights: Floats | None = None,
    points: int = POINTS,
) -> Fitted:
    """Fit the terms of `prior` so that `predict` meets the `measured` log times, shape (M,).

    `predict` takes the value of every term and returns M log times. It is called some hundred times: for three to ten
    boxes, `points` times for each of the (K + 1) (K + 2) / 2 coefficients of a surface. More points mistake less
    scatter for effects, and show weak effects better. `weights`, shape (M,), says how many independent measurements
    each time stands for, by default 1. A term without effect keeps its centre. The same arguments give the same fit.
    Raises InputError if there is nothing to fit, and for times that are not finite.
    """
    measured = np.asarray(measured, np.float64)
    if len(measured) == 0 or len(prior) == 0:
        raise InputError("calibration: there is nothing to fit")
    if not np.all(np.isfinite(measured)):
        raise InputError("calibration: measured log times must be finite")
    simulator = _Simulator(predict, measured, prior)
    if points < 2:
        raise InputError(f"calibration: points must be at least 2, got {points}")
    origin = np.zeros(len(prior))
    before = simulator.residuals(origin)
    active = simulator.active(origin, before)
    estimate = _Search(simulator, active, np.ones_like(measured) if weights is None else weights, points).estimate()
    z = estimate.z
    values = simulator.values(z)
    z_errors = np.sqrt(np.diag(estimate.covariance))
    return Fitted(
        values=values,
        errors={term.name: term.error(values[term.name], min(e, 1.0)) for term, e in zip(prior, z_errors, strict=True)},
        known={term.name: bool(e < _KNOWN) for term, e in zip(prior, z_errors, strict=True)},
        idle=tuple(term.name for index, term in enumerate(prior) if index not in active),
        before=before,
        after=simulator.residuals(z),
        scatter=estimate.scatter,
        noise=estimate.noise,
        correlation=estimate.covariance / np.outer(z_errors, z_errors),
        evaluations=simulator.evaluations,
    )


class _Simulator:
    """Predictions against measurements in widths of the prior (z): all terms have one scale, and the prior is unit
    normal.
    """

    def __init__(self, predict: Predict, measured: Floats, prior: Sequence[Term]) -> None:
        self._predict, self._measured, self._prior = predict, measured, prior
        self.lowest = np.asarray([term.z(term.lowest) for term in prior])
        self.highest = np.asarray([term.z(term.highest) for term in prior])
        self.evaluations = 0
        self._known: list[tuple[Floats, Floats]] = []  # points and their residuals

    def values(self, z: Floats) -> dict[str, float]:
        return {term.name: term.value(at) for term, at in zip(self._prior, z, strict=True)}

    def residuals(self, z: Floats) -> Floats:
        """Predicted - measured log times, (M,)."""
        self.evaluations += 1
        predicted = np.asarray(self._predict(self.values(z)), np.float64)
        if predicted.shape != self._measured.shape or not np.all(np.isfinite(predicted)):
            raise InputError("calibration: predicted log times must be finite, and as many as were measured")
        residuals = predicted - self._measured
        self._known.append((z, residuals))
        return residuals

    def within(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """All simulated points between two corners, (N, K), and their residuals, (N, M)."""
        known = [(z, residuals) for z, residuals in self._known if np.all((low <= z) & (z <= high))]
        return np.stack([z for z, _ in known]), np.stack([residuals for _, residuals in known])

    def active(self, origin: Floats, residuals: Floats) -> NDArray[np.int64]:
        """Indices of the terms that have an effect."""
        steps = np.minimum(self.highest - origin, 1.0) * np.eye(len(origin))
        return np.flatnonzero([np.any(self.residuals(origin + step) != residuals) for step in steps])


@dataclass(frozen=True)
class _Estimate:
    """`z` (K,), its `covariance` (K, K), and the noise of the residuals, see `Fitted`."""

    z: Floats
    covariance: Floats
    scatter: Floats
    noise: float


class _Search:
    """The search: boxes that move and shrink, over the active terms."""

    def __init__(self, simulator: _Simulator, active: NDArray[np.int64], weights: Floats, points: int) -> None:
        self._simulator, self._active, self._weights = simulator, active, weights
        self._count = points * coefficients_of(len(active))
        self._seed = 0

    def estimate(self) -> _Estimate:
        """The end of the search, and its uncertainty."""
        z = np.zeros(len(self._simulator.lowest))
        if len(self._active) == 0:
            residuals = self._simulator.residuals(z)
            scatter = np.zeros_like(residuals)
            return _Estimate(z, np.eye(len(z)), scatter, added_noise(residuals, scatter, self._weights, 0))
        return self._settled(z)

    def _settled(self, z: Floats) -> _Estimate:
        """The estimate, from the prior's centre until the box is small, holds the best point, and the noise is
        known.
        """
        radius, noise = _FIRST_RADIUS, _FIRST_NOISE
        for _ in range(_MOVES):
            found = self._in_box(z, radius, noise)
            moved, z = float(np.abs(found.z - z).max()), found.z
            if moved > _FAR * radius:
                continue
            if radius > _LAST_RADIUS:
                radius /= 2
                continue
            previous, noise = noise, found.noise
            if abs(np.log(noise / previous)) < _NOISE_SETTLED:
                break
        return found

    def _in_box(self, z: Floats, radius: float, noise: float) -> _Estimate:
        """The best point of a box around z under that noise, and the noise that it leaves."""
        active = self._active
        box = Box.around(z[active], radius, self._simulator.lowest[active], self._simulator.highest[active])
        surfaces = self._surfaces(z, box)
        best = surfaces.optimum(box, self._weights, noise)
        left = surfaces.noise(best, self._weights)
        found, covariance = z.copy(), np.eye(len(z))
        found[active] = best
        covariance[np.ix_(active, active)] = surfaces.covariance(best, left, self._weights)
        return _Estimate(found, covariance, surfaces.scatter, left)

    def _surfaces(self, z: Floats, box: Box) -> Surfaces:
        """Surfaces through new simulations all over the box and earlier ones near it; other terms stay as in `z`."""
        active = self._active
        self._seed += 1
        for point in box.points(self._count, self._seed):
            at = z.copy()
            at[active] = point
            self._simulator.residuals(at)
        margin = _MARGIN * (box.high - box.low)
        low, high = z.copy(), z.copy()
        low[active], high[active] = box.low - margin, box.high + margin
        known, outcomes = self._simulator.within(low, high)
        return Surfaces.through(known[:, active], outcomes, (box.low + box.high) / 2)
