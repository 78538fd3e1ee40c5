"""Joint law of prompt and output lengths, and how it changes over a trace: what a fitted trace keeps of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.arrangement import arranged

LEAST_REQUESTS = 36  # between two quantiles, and beyond the last one
QUANTILE_STEPS = 160
COPULA_CLASSES = 24
ROWS_PER_PAIR = 8  # of classes, on average
FEATURES = 6
TAIL = np.array([0.8, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.0])
TAIL_END = 0.01  # share of the tail beyond its longest value
SHAPES = (-1.0, 0.4)  # of the tail
CONTEXT_STEPS = 16  # per doubling: to which the longest request is rounded up

Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class LengthModel:
    """Joint law of prompt and output lengths, and its drift.

    `levels` (Q,) are probabilities, `input_tokens` and `output_tokens` (Q,) the quantiles there; between knots the
    quantile function is linear. `copula` (B, B) has the number of requests of each pair of rank classes (a checkerboard
    copula), inputs down, outputs across. No request is longer than `max_total_tokens`. `drift` (W, 5) has the means of `features` over the requests of each
    window, in hundredths of their standard deviations from the trace's mean.
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
        order = arranged(features(inputs, outputs), counts, self.drift / 100, rng)
        return inputs[order], outputs[order]

    def _trade_outputs(self, inputs: Tokens, outputs: Tokens, rng: np.random.Generator) -> None:
        """Swaps, in place, the outputs of requests that came out too long with those of others, so that both fit."""
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
    """What work and memory of a request depend on, (N, 5), in standard deviations from the mean: prompt, its square
    (attention), output, its square (memory held while decoding), and their product (the same)."""
    one, other = inputs.astype(np.float64), outputs.astype(np.float64)
    plain = np.stack((one, one**2, other, other**2, one * other, (one > np.quantile(one, 0.99)) * 1.0), axis=1)
    spread = plain.std(axis=0)
    return (plain - plain.mean(axis=0)) / np.where(spread > 0, spread, 1)


def fit_lengths(inputs: Tokens, outputs: Tokens, counts: Tokens) -> LengthModel:
    """Quantile functions, the checkerboard copula and the drift of two paired samples (N,) in windows of `counts`.

    Quantiles lie at least LEAST_REQUESTS rows apart, and the ends are not the shortest and the longest request: a line
    ends there that has the mean of the requests beyond the last quantile. Short traces get fewer classes.
    """
    count = len(inputs)
    levels = _levels(count)
    edges = _class_edges(count)
    rank = [np.empty(count, np.int64) for _ in range(2)]
    shuffle = np.random.default_rng(0).permutation(count)  # ties in random order, the same on every fit
    for row, values in zip(rank, (inputs, outputs), strict=True):
        row[shuffle[np.argsort(values[shuffle], kind="stable")]] = np.arange(count)
    side = len(edges) + 1
    classes = [np.searchsorted(edges, row, side="right") for row in rank]
    window = np.repeat(np.arange(len(counts)), counts)
    found = features(inputs, outputs)
    means = np.stack([np.bincount(window, column) / counts for column in found.T], axis=1)
    return LengthModel(
        levels=levels,
        input_tokens=_quantiles(inputs, levels),
        output_tokens=_quantiles(outputs, levels),
        copula=np.bincount(classes[0] * side + classes[1], minlength=side**2).reshape(side, side),
        max_total_tokens=_rounded_up(int((inputs + outputs).max())),
        drift=np.rint(100 * means).astype(np.int64),
    )


def _class_edges(count: int) -> Tokens:
    """Ranks at which classes begin, but for the first: even ones, and finer ones for the longest requests."""
    side = min(max(int(np.sqrt(count / ROWS_PER_PAIR)), 4), COPULA_CLASSES)
    even = np.arange(1, side) / side
    finer = 1 - np.array([part / side / 2**halving for halving in range(1, 40) for part in (1.5, 1)])
    return np.concatenate((even, finer[finer <= 1 - LEAST_REQUESTS / count])) * count // 1


def _levels(count: int) -> Floats:
    """0, even ones, from the last of these on each half as far from 1, and those of TAIL beyond the last."""
    step = max(LEAST_REQUESTS, count / QUANTILE_STEPS)
    rows = np.arange(1, count // step) * step
    nearer = count - step / 2 ** np.arange(1, 40)
    inner = np.concatenate((rows, nearer[nearer <= count - LEAST_REQUESTS])) / count
    return np.concatenate(([0.0], inner, 1 - TAIL * (1 - inner[-1])))


def _quantiles(values: Tokens, levels: Floats) -> Floats:
    """Quantiles at `levels`. The first is where a line ends that has the mean of the values below the second; those of
    the tail are a generalized Pareto law's, with the mean and variance of all values beyond the last of the others."""
    inner = np.quantile(values, levels[1 : -len(TAIL)])
    ordered = np.sort(values)
    below, above = (round(share * len(values)) for share in (levels[1], 1 - levels[-1 - len(TAIL)]))
    lowest = np.clip(2 * ordered[:below].mean() - inner[0], 1.0, inner[0])
    return np.round(np.concatenate(([lowest], inner, inner[-1] + _tail(ordered[-above:] - inner[-1]))), 1)


def _tail(excess: Floats) -> Floats:
    """Quantiles at 1 - TAIL of the generalized Pareto law with mean and variance of `excess`, by moments."""
    mean, variance = max(float(excess.mean()), 0.0), float(excess.var())
    if mean == 0 or variance == 0:
        return np.full(len(TAIL), mean)
    shape = np.clip((1 - mean**2 / variance) / 2, *SHAPES)
    beyond = np.maximum(TAIL, TAIL_END)
    found = mean * (1 - shape) * (beyond**-shape - 1) / shape if shape else -mean * np.log(beyond)
    lines = np.diff(1 - TAIL, prepend=0) @ (found - np.diff(found, prepend=0) / 2)
    return found * mean / lines


def _rounded_up(tokens: int) -> int:
    """To CONTEXT_STEPS steps per doubling."""
    step = max(1, 2 ** (tokens.bit_length() - 1) // CONTEXT_STEPS)
    return -(-tokens // step) * step
