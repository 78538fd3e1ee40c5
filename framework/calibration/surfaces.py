"""Quadratic surfaces through the predictions of a simulator with scatter, and the best point on them.

The estimate is the maximum of the posterior with a unit normal prior, in widths of the prior (z). In shapes, K is the
number of active terms, C of coefficients of a surface, M of measured log times and N of simulations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

Floats = NDArray[np.float64]

_STEPS, _STILL = 50, 1e-3  # Gauss-Newton steps on the surfaces, and the length of the last one
_ON_BOUND = 1e-6
_CUT_VARIANCE = 0.9205  # variance of a unit normal whose values beyond 2 count as 2
_LEAST_NOISE = 0.002  # least noise of a log time


@dataclass(frozen=True)
class Box:
    """The box in which simulations are spread, within the bounds of the terms; its corners have shape (K,)."""

    low: Floats
    high: Floats

    @classmethod
    def around(cls, centre: Floats, radius: float, lowest: Floats, highest: Floats) -> Box:
        """A box of that radius around the centre, shifted if it would cross a bound; arrays have shape (K,)."""
        low = np.clip(centre - radius, lowest, np.maximum(highest - 2 * radius, lowest))
        return cls(low, np.minimum(low + 2 * radius, highest))

    def points(self, count: int, seed: int) -> Floats:
        """Points of the box, shape (count, K): a Latin hypercube."""
        rng = np.random.default_rng(seed)
        strata = rng.permuted(np.tile(np.arange(count), (len(self.low), 1)), axis=1).T
        return self.low + (strata + rng.random(strata.shape)) / count * (self.high - self.low)


@dataclass(frozen=True)
class Surfaces:
    """Residuals as quadratic functions of the active z, in whose box `centre`, shape (K,), lies.

    `coefficients`, shape (C, M), are those of the products that `_design` lists. `around` is the covariance of the
    residuals among simulations, shape (M, M), and `spread` that of the coefficients, shape (C, C), in units of the
    scatter squared.
    """

    centre: Floats
    coefficients: Floats
    around: Floats
    spread: Floats

    @property
    def scatter(self) -> Floats:
        """The standard deviation of each residual among simulations, shape (M,)."""
        return np.sqrt(np.diag(self.around))

    @classmethod
    def through(cls, points: Floats, outcomes: Floats, centre: Floats) -> Surfaces:
        """The least-squares surfaces through the residuals `outcomes`, shape (N, M), at `points`, shape (N, K)."""
        design = _design(points - centre)
        coefficients = np.asarray(np.linalg.lstsq(design, outcomes, rcond=None)[0], np.float64)
        left = outcomes - design @ coefficients
        around = np.asarray(left.T @ left / (len(design) - design.shape[1]), np.float64)
        return cls(centre, coefficients, around, np.asarray(np.linalg.inv(design.T @ design), np.float64))

    def residuals(self, z: Floats) -> Floats:
        """The residuals at a point z of the box, shape (M,)."""
        return self._row(z) @ self.coefficients

    def noise(self, z: Floats, weights: Floats) -> float:
        """The noise of the residuals at a point z of the box, as `added_noise` defines it."""
        return added_noise(self.residuals(z), self.scatter, weights, len(z))

    def optimum(self, box: Box, weights: Floats, noise: float) -> Floats:
        """The best point of the box, shape (K,), by Gauss-Newton steps that reweight outliers for the loss."""
        z = np.clip(self.centre, box.low, box.high)
        for _ in range(_STEPS):
            known, slope, _ = self._information(z, weights, noise)
            root = np.linalg.cholesky(known + np.eye(len(z))).T
            target = z - np.linalg.solve(root.T @ root, slope + z)
            following = lsq_linear(root, root @ target, (box.low, box.high)).x
            moved, z = np.abs(following - z).max(), following
            if moved < _STILL:
                break
        return np.where(z - box.low < _ON_BOUND, box.low, z)  # lsq_linear stays just inside the bound

    def covariance(self, z: Floats, noise: float, weights: Floats) -> Floats:
        """The covariance of the active z, shape (K, K), including the prior."""
        known, _, pull = self._information(z, weights, noise)
        bread = np.linalg.inv(known + np.eye(len(z)))
        leverage = self._row(z) @ self.spread @ self._row(z)
        spread = self.around * (1 + leverage) + np.diag(noise**2 / weights)
        return np.asarray(bread @ (pull.T @ spread @ pull + np.eye(len(z))) @ bread, np.float64)

    def _information(self, z: Floats, weights: Floats, noise: float) -> tuple[Floats, Floats, Floats]:
        """What the data say at z: information (K, K), gradient (K,), and weighted slopes (M, K).

        A surface has scatter: its expected square is too large by the scatter squared times the leverage of z. Slopes
        that are only scatter would separate terms that nothing separates, and the centre of the box, with the least
        leverage, would attract the estimate. So both are subtracted (errors in variables: Fuller, "Measurement Error
        Models", 1987, chapter 2).
        """
        residuals, row, change = self.residuals(z), self._row(z), self._change(z)
        inverse = weights / (self.scatter**2 + noise**2)
        inverse = inverse / np.sqrt(1 + inverse * residuals**2)  # what soft L1 leaves of an outlier
        slopes = (change @ self.coefficients).T
        pull = inverse[:, None] * slopes
        excess = float(inverse @ self.scatter**2)
        values, vectors = np.linalg.eigh(pull.T @ slopes - excess * change @ self.spread @ change.T)
        known = (vectors * np.maximum(values, 0.0)) @ vectors.T
        return known, pull.T @ residuals - excess * change @ self.spread @ row, pull

    def _row(self, z: Floats) -> Floats:
        return _design((z - self.centre)[None])[0]

    def _change(self, z: Floats) -> Floats:
        """Derivatives of `_row` by z, (K, C)."""
        away, terms = z - self.centre, np.eye(len(z))
        pairs = [terms[i] * away[j] + terms[j] * away[i] for i, j in _pairs(len(z))]
        return np.stack([np.zeros(len(z)), *terms, *pairs], axis=1)


def coefficients_of(terms: int) -> int:
    """The number of coefficients of a surface over that many terms."""
    return (terms + 1) * (terms + 2) // 2


def _pairs(terms: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(terms) for j in range(i, terms)]


def _design(away: Floats) -> Floats:
    """1, the distances from the centre (N, K), and their products: (N, C)."""
    products = [away[:, i] * away[:, j] for i, j in _pairs(away.shape[1])]
    return np.column_stack([np.ones(len(away)), away, *products])


def added_noise(residuals: Floats, scatter: Floats, weights: Floats, terms: int) -> float:
    """The noise that, with the scatter, gives residuals the variance of a unit normal, less what `terms` terms took.

    Arrays have shape (M,). Residuals beyond two standard deviations count as two (Huber's proposal 2, "Robust
    estimation of a location parameter", Ann. Math. Stat. 35(1), 1964).
    """
    target = _CUT_VARIANCE * max(1 - terms / len(residuals), 1 / len(residuals))
    low, high = _LEAST_NOISE, max(10 * float(np.abs(residuals).max()), 2 * _LEAST_NOISE)
    for _ in range(40):  # bisection: the more noise, the smaller the scaled residuals
        middle = float(np.sqrt(low * high))
        scaled = residuals**2 * weights / (scatter**2 + middle**2)
        low, high = (middle, high) if np.minimum(scaled, 4.0).mean() > target else (low, middle)
    return high
