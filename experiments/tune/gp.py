"""A Gaussian process over settings: the expected result of a configuration, and its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import ndtr

Floats = NDArray[np.float64]
_LENGTH, _LENGTH_SPREAD = 0.5, 1.0  # prior of a length scale, in widths of the range: median, spread of the logarithm
_NOISE, _NOISE_SPREAD = 1e-3, 1.5  # mean and spread of the log of the noise's share of the variance
_BOUNDS = ((-3.0, 4.0), (-4.0, 4.0), (-14.0, 0.0))  # bounds of the logarithms of lengths, variance and noise
_ITERATIONS = 30
_JITTER = 1e-9
_SCALINGS = (0.5, 1.0, 2.0)  # factors of the length scales: few observations do not show how smooth the function is


class GaussianProcess:
    """Matérn 5/2 with a length scale for each group of columns, fitted to observations (maximum a posteriori).

    `x`: (n, d) in widths of the range; `y`: (n,), higher is better; `groups`: (d,), each column's group, from 0.
    Reference: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2, 4 and 5.
    """

    def __init__(self, x: Floats, y: Floats, groups: Sequence[int]) -> None:
        spread = float(y.std())
        self._x = x
        self._z = (y - y.mean()) / (spread if spread > 0 else 1.0)
        self._member = np.eye(max(groups) + 1)[list(groups)]  # (d, groups)
        self._squares = (x[:, None, :] - x[None, :, :]) ** 2
        count = self._member.shape[1]
        start = np.concatenate([np.full(count, math.log(_LENGTH)), [0.0, math.log(_NOISE)]])
        spreads = np.concatenate([np.full(count, _LENGTH_SPREAD), [1.0, _NOISE_SPREAD]])
        bounds = [_BOUNDS[0]] * count + [_BOUNDS[1], _BOUNDS[2]]
        found = minimize(
            self._loss, start, (start, spreads), "L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": _ITERATIONS}
        )
        self._lengths = np.exp(self._member @ found.x[:count])
        self._variance, self._noise = np.exp(found.x[count:])

    def expected(self, at: Floats) -> Floats:
        """The expected value of the function, (m,) at (m, d), as deviations of the observations from their mean."""
        return self._predicted(at, self._lengths, self._x, self._z)[0]

    def improvement(self, candidates: Floats, pending: Floats) -> Floats:
        """Expected improvement on the best observation, (m,) for `candidates` (m, d), over smoother and rougher models.

        Those `pending`, (p, d), are assumed to have their expected values.
        """
        total = np.zeros(len(candidates))
        for scaling in _SCALINGS:
            lengths = scaling * self._lengths
            x, z = self._x, self._z
            if len(pending):
                expected, _ = self._predicted(pending, lengths, x, z)
                x, z = np.concatenate([x, pending]), np.concatenate([z, expected])
            mean, deviation = self._predicted(candidates, lengths, x, z)
            ratio = (mean - self._z.max()) / deviation
            density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
            total += deviation * (ratio * ndtr(ratio) + density)
        return total / len(_SCALINGS)

    def _predicted(self, at: Floats, lengths: Floats, x: Floats, z: Floats) -> tuple[Floats, Floats]:
        noise = (self._noise + _JITTER) * np.eye(len(x))
        factor = cho_factor(self._variance * _matern(x, x, lengths) + noise, lower=True)
        across = self._variance * _matern(at, x, lengths)
        variance = self._variance - np.einsum("ij,ji->i", across, cho_solve(factor, across.T))
        return across @ cho_solve(factor, z), np.sqrt(np.maximum(variance, _JITTER))

    def _loss(self, parameters: Floats, start: Floats, spreads: Floats) -> tuple[float, Floats]:
        """Minus the logarithm of the posterior, up to a constant, and its gradient."""
        count = self._member.shape[1]
        lengths = np.exp(self._member @ parameters[:count])
        variance, noise = np.exp(parameters[count:])
        scaled = self._squares / lengths**2
        q = np.sqrt(5 * scaled.sum(axis=2))
        decay = np.exp(-q)
        signal = variance * (1 + q + q**2 / 3) * decay
        factor = cho_factor(signal + (noise + _JITTER) * np.eye(len(q)), lower=True)
        weights = cho_solve(factor, self._z)
        outer = np.outer(weights, weights) - cho_solve(factor, np.eye(len(q)))
        slope = outer * (variance * 5 / 3 * (1 + q) * decay)
        by_length = -0.5 * self._member.T @ np.einsum("ij,ijd->d", slope, scaled)
        by_others = [-0.5 * (outer * signal).sum(), -0.5 * noise * np.trace(outer)]
        away = (parameters - start) / spreads
        loss = 0.5 * self._z @ weights + np.log(np.diag(factor[0])).sum() + 0.5 * away @ away
        return float(loss), np.concatenate([by_length, by_others]) + away / spreads


def _matern(one: Floats, other: Floats, lengths: Floats) -> Floats:
    squares = np.zeros((len(one), len(other)))
    for column, length in enumerate(lengths):  # one by one: all at once would take too much memory
        squares += ((one[:, column, None] - other[None, :, column]) / length) ** 2
    q = np.sqrt(5 * squares)
    return (1 + q + q**2 / 3) * np.exp(-q)
