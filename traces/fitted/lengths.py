"""Joint distribution of prompt and output lengths, and its change over a trace, in a fitted trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.fitted.arrangement import arranged

FEATURES = 6
DRIFT_UNIT = 1000
LONG = 0.99  # quantile of prompts beyond which they are long

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class LengthModel:
    """Joint distribution of prompt and output lengths, and its drift.

    `levels` (Q,) are probabilities, `input_tokens` and `output_tokens` (Q,) the quantiles there; between knots the
    quantile function is linear. `copula` (B, B) has the number of requests of each pair of rank classes (a checkerboard
    copula), inputs as rows, outputs as columns. No request is longer than `max_total_tokens`. `drift` (W, FEATURES) has
    the means of `features` over the requests of each window, in thousandths of their standard deviations from the mean.
    """

    levels: Floats
    input_tokens: Floats
    output_tokens: Floats
    copula: Tokens
    max_total_tokens: int
    drift: Tokens

    def __post_init__(self) -> None:
        """Refuse tables that do not fit together."""
        shapes = {self.levels.shape, self.input_tokens.shape, self.output_tokens.shape}
        if len(shapes) != 1 or np.diff(self.levels).min() <= 0 or min(self.input_tokens[0], self.output_tokens[0]) < 1:
            raise ValueError("levels must rise, and each needs a quantile of at least 1 token")
        if self.copula.ndim != 2 or self.copula.min() < 0 or self.copula.sum(axis=1).min() <= 0:
            raise ValueError("the copula must hold numbers of requests, and no row of it may be empty")

    def sample(self, counts: Tokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """Prompt and output lengths of windows with `counts` (W,) requests, window by window; both (counts.sum(),)."""
        input_rank, output_rank = self._ranks(int(counts.sum()), rng)
        inputs = np.rint(np.interp(input_rank, self.levels, self.input_tokens)).astype(np.int64)
        outputs = np.rint(np.interp(output_rank, self.levels, self.output_tokens)).astype(np.int64)
        self._trade_outputs(inputs, outputs, rng)
        outputs = np.minimum(outputs, np.maximum(self.max_total_tokens - inputs, 1))
        order = arranged(features(inputs, outputs), counts, self.drift / DRIFT_UNIT, rng)
        return inputs[order], outputs[order]

    def _trade_outputs(self, inputs: Tokens, outputs: Tokens, rng: np.random.Generator) -> None:
        """Swap, in place, the outputs of requests that are too long with those of others, so that both fit."""
        for request in np.flatnonzero(inputs + outputs > self.max_total_tokens).tolist():
            others = rng.integers(len(inputs), size=64)
            longest = np.maximum(inputs[request] + outputs[others], inputs[others] + outputs[request])
            if longest.min() <= self.max_total_tokens:
                other = others[np.argmax(longest <= self.max_total_tokens)]
                outputs[request], outputs[other] = outputs[other], outputs[request]

    def _ranks(self, requests: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Two stratified sets of ranks in (0, 1), paired by the copula."""
        classes = len(self.copula)
        input_rank = (rng.permutation(requests) + rng.random(requests)) / requests
        edges = self.copula.sum(axis=1).cumsum() / self.copula.sum()
        row = np.searchsorted(edges[:-1], input_rank, side="right")
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


def features(inputs: Tokens, outputs: Tokens) -> Floats:
    """What work and memory of a request depend on, (N, FEATURES), in standard deviations from the mean.

    These are the prompt and its square (attention), the output and its square (KV memory while decoding), their product
    (the same), and whether the prompt is among the longest.
    """
    prompt, output = inputs.astype(np.float64), outputs.astype(np.float64)
    is_long = (prompt > np.quantile(prompt, LONG)).astype(np.float64)
    plain = np.stack((prompt, prompt**2, output, output**2, prompt * output, is_long), axis=1)
    spread = plain.std(axis=0)
    return (plain - plain.mean(axis=0)) / np.where(spread > 0, spread, 1)
