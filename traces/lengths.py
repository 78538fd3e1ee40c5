"""Joint law of prompt and output lengths: what a twin keeps of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LengthModel:
    """Joint law of prompt and output lengths.

    `levels` (Q,) are probabilities, `input_tokens` and `output_tokens` (Q,) the quantiles there; between knots the
    quantile function is linear. `copula` (B, B) is the probability of each pair of rank classes (a checkerboard
    copula), inputs down, outputs across; every row and column sums to 1 / B. No request is longer than
    `max_total_tokens`.
    """

    levels: NDArray[np.float64]
    input_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    copula: NDArray[np.float64]
    max_total_tokens: int

    def __post_init__(self) -> None:
        """Refuse tables that do not fit together."""
        shapes = {self.levels.shape, self.input_tokens.shape, self.output_tokens.shape}
        if len(shapes) != 1 or np.diff(self.levels).min() <= 0 or min(self.input_tokens[0], self.output_tokens[0]) < 1:
            raise ValueError("levels must rise, and each needs a quantile of at least 1 token")
        if self.copula.ndim != 2 or self.copula.min() < 0 or self.copula.sum(axis=1).min() <= 0:
            raise ValueError("the copula must hold probabilities, and no row of it may be empty")

    def sample(
        self, requests: int, with_maximum: bool, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Prompt and output lengths, both (requests,), in random order; `with_maximum` puts the longest of each in."""
        input_rank, output_rank = self._ranks(requests, rng)
        if with_maximum:
            input_rank[input_rank.argmax()] = 1.0
            output_rank[output_rank.argmax()] = 1.0
        inputs = np.rint(np.interp(input_rank, self.levels, self.input_tokens)).astype(np.int64)
        outputs = np.rint(np.interp(output_rank, self.levels, self.output_tokens)).astype(np.int64)
        self._trade_outputs(inputs, outputs, rng)
        return inputs, np.minimum(outputs, np.maximum(self.max_total_tokens - inputs, 1))

    def _trade_outputs(self, inputs: NDArray[np.int64], outputs: NDArray[np.int64], rng: np.random.Generator) -> None:
        """Swaps, in place, the outputs of requests that came out too long with those of others, so that both fit."""
        for request in np.flatnonzero(inputs + outputs > self.max_total_tokens).tolist():
            others = rng.integers(len(inputs), size=64)
            longest = np.maximum(inputs[request] + outputs[others], inputs[others] + outputs[request])
            if longest.min() <= self.max_total_tokens:
                other = others[np.argmax(longest <= self.max_total_tokens)]
                outputs[request], outputs[other] = outputs[other], outputs[request]

    def _ranks(self, requests: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Two stratified sets of ranks in (0, 1), paired by the copula."""
        classes = len(self.copula)
        input_rank = (rng.permutation(requests) + rng.random(requests)) / requests
        row = np.minimum((input_rank * classes).astype(np.int64), classes - 1)
        # Within a row the draws that choose the column are stratified too: sorted by row, then at random.
        order = np.lexsort((rng.random(requests), row))
        size = np.bincount(row, minlength=classes)
        start = np.concatenate(([0], size.cumsum()[:-1]))
        draw = np.empty(requests)
        draw[order] = (np.arange(requests) - start[row[order]] + rng.random(requests)) / size[row[order]]
        reach = (self.copula / self.copula.sum(axis=1, keepdims=True)).cumsum(axis=1)
        column = np.minimum((draw[:, None] >= reach[row]).sum(axis=1), classes - 1)
        output_rank = np.empty(requests)
        output_rank[np.lexsort((rng.random(requests), column))] = (
            np.arange(requests) + rng.random(requests)
        ) / requests
        return input_rank, output_rank
