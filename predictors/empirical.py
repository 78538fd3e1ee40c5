"""What finished requests say about unfinished ones: conditional mean residual life."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from framework.checks import Count, Positive, at_least, checked
from framework.compiler.decorators import compiled
from framework.policy.predictor import Floats, Integers, Predictor
from framework.workload import Workload

Tokens = Annotated[float, at_least(1)]
_BLOCK = 256  # lengths in a block of the tables below


class Empirical(Predictor):
    """Expects the mean number of further tokens of finished requests that got as far: E[n - g | n > g]. It knows no
    true lengths.

    A prior counts as `prior_weight` finished requests of a memoryless distribution, whose mean remaining length is
    `prior_tokens` at every g; it is the only data before any request has finished and beyond the longest finished one.
    Requests under way are left out. So early in a run, while only short requests can have finished, the estimate is too
    short. Estimates are equal for all requests with the same g. Spread: the deviation of the same mixture.

    Number, sum and sum of squares of the finished lengths n > g lie, exact in int64, in two tables: lengths in g's own
    block, by g, and lengths in later blocks. So an observation is two slice additions, a prediction two lookups.
    """

    @checked("predictor.")
    def __init__(self, prior_tokens: Tokens = 500.0, prior_weight: Positive = 1.0, stride: Count = 20) -> None:
        self.prior_tokens = prior_tokens
        self.prior_weight = prior_weight
        self.stride = stride
        self._forget()

    def prepare(self, workload: Workload, seed: int) -> None:
        self._forget()

    def predict(self, requests: Integers, generated: Integers) -> tuple[Floats, Floats]:
        prior = self.prior_weight, self.prior_weight * self.prior_tokens
        square = self.prior_weight * 2 * self.prior_tokens**2  # memoryless: E[r^2] = 2 E[r]^2
        return _moments(self._near, self._far, generated, float(prior[0]), float(prior[1]), float(square))

    def observe(self, request: int, output_tokens: int) -> None:
        if output_tokens >= len(self._near):
            self._grow(output_tokens)
        moments = np.asarray([1, output_tokens, output_tokens**2], np.int64)
        block = output_tokens // _BLOCK
        self._near[block * _BLOCK : output_tokens] += moments
        self._far[:block] += moments

    def _forget(self) -> None:
        self._near = np.zeros((_BLOCK, 3), np.int64)
        self._far = np.zeros((1, 3), np.int64)

    def _grow(self, output_tokens: int) -> None:
        blocks = max(2 * len(self._far), output_tokens // _BLOCK + 1)
        near, far = np.zeros((blocks * _BLOCK, 3), np.int64), np.zeros((blocks, 3), np.int64)
        near[: len(self._near)] = self._near
        far[: len(self._far)] = self._far
        self._near, self._far = near, far


@compiled
def _moments(
    near: Integers, far: Integers, generated: Integers, prior_count: float, prior_total: float, prior_square: float
) -> tuple[Floats, Floats]:
    """Mean and deviation of the remaining tokens after each number of generated tokens."""
    means, deviations = np.empty(len(generated)), np.empty(len(generated))
    for k in range(len(generated)):
        g = generated[k]
        at = min(g, len(near) - 1)  # the last length exceeds all finished ones
        count = near[at, 0] + far[at // _BLOCK, 0]
        total = near[at, 1] + far[at // _BLOCK, 1]
        squares = near[at, 2] + far[at // _BLOCK, 2]
        mean = (total - count * g + prior_total) / (count + prior_count)
        squared = squares - g * (2 * total - count * g)  # sum of (n - g)^2, still exact
        means[k] = mean
        deviations[k] = np.sqrt(max((squared + prior_square) / (count + prior_count) - mean * mean, 0.0))
    return means, deviations
