"""Fits the distribution of lengths and its drift to the requests of a trace."""

from __future__ import annotations

import math

import numpy as np

from traces.fitted.lengths import DRIFT_UNIT, Floats, LengthModel, Tokens, features
from traces.fitted.quantiles import LEAST_REQUESTS

QUANTILE_STEPS = 160
LONGEST = 1 / 32  # share of requests for which quantiles approach 1, each by NEARER
NEARER = 0.8
COPULA_CLASSES = 24
ROWS_PER_PAIR = 8  # mean rows of a pair of classes
TAIL = np.array([0.8, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.0])  # shares of the requests beyond the last quantile
TAIL_END = 0.01  # share of the tail at its longest value
SHAPES = (-1.0, 0.4)  # bounds of the shape of the tail
CONTEXT_STEPS = 16  # steps per doubling to which the longest request is rounded up


def fit_lengths(inputs: Tokens, outputs: Tokens, counts: Tokens) -> LengthModel:
    """Quantile functions, the checkerboard copula and the drift of two paired samples (N,) in windows of `counts`.

    Quantiles lie at least LEAST_REQUESTS rows apart, and the ends are not the shortest and the longest request. Instead
    a line ends there that has the mean of the requests beyond the last quantile. Short traces get fewer classes.
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
        drift=np.rint(DRIFT_UNIT * means).astype(np.int64),
    )


def _class_edges(count: int) -> Tokens:
    """Ranks at which classes begin, except the first: even ones, and finer ones for the longest requests."""
    side = min(max(int(np.sqrt(count / ROWS_PER_PAIR)), 4), COPULA_CLASSES)
    even = np.arange(1, side) / side
    finer = 1 - np.array([part / side / 2**halving for halving in range(1, 40) for part in (1.5, 1)])
    return np.concatenate((even, finer[finer <= 1 - LEAST_REQUESTS / count])) * count // 1


def _levels(count: int) -> Floats:
    """0, even levels, levels that approach 1 for the longest requests, and those of TAIL beyond the last."""
    step = max(LEAST_REQUESTS, count / QUANTILE_STEPS)
    beyond = [LONGEST * count]  # requests longer than the quantile
    while (fewer := min(beyond[-1] - LEAST_REQUESTS, beyond[-1] * NEARER)) >= LEAST_REQUESTS:
        beyond.append(fewer)
    longest = beyond if beyond[0] >= LEAST_REQUESTS else []
    rows = np.arange(1, math.ceil((count - sum(longest[:1]) - LEAST_REQUESTS) / step)) * step
    inner = np.concatenate((rows, count - np.array(longest)))
    return np.concatenate(([0.0], inner / count, 1 - TAIL * (1 - inner[-1] / count)))


def _quantiles(values: Tokens, levels: Floats) -> Floats:
    """Quantiles at `levels`.

    At level 0 ends a line that has the mean of the values below the first inner level. Those of the tail are a
    generalized Pareto distribution's, with the mean and variance of all values beyond the last inner level.
    """
    inner = np.quantile(values, levels[1 : -len(TAIL)])
    ordered = np.sort(values)
    below, above = (round(share * len(values)) for share in (levels[1], 1 - levels[-1 - len(TAIL)]))
    lowest = np.clip(2 * ordered[:below].mean() - inner[0], 1.0, inner[0])
    return np.round(np.concatenate(([lowest], inner, inner[-1] + _tail(ordered[-above:] - inner[-1]))), 1)


def _tail(excess: Floats) -> Floats:
    """Quantiles at 1 - TAIL of the generalized Pareto distribution with mean and variance of `excess`, by moments."""
    mean, variance = max(float(excess.mean()), 0.0), float(excess.var())
    if mean == 0 or variance == 0:
        return np.full(len(TAIL), mean)
    shape = np.clip((1 - mean**2 / variance) / 2, *SHAPES)
    beyond = np.maximum(TAIL, TAIL_END)
    found = mean * (1 - shape) * (beyond**-shape - 1) / shape if shape else -mean * np.log(beyond)
    lines = np.diff(1 - TAIL, prepend=0) @ (found - np.diff(found, prepend=0) / 2)
    return found * mean / lines


def _rounded_up(tokens: int) -> int:
    """The tokens rounded up to CONTEXT_STEPS steps per doubling."""
    step = max(1, 2 ** (tokens.bit_length() - 1) // CONTEXT_STEPS)
    return -(-tokens // step) * step
