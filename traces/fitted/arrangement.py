"""Puts drawn requests into windows so that each window has its wanted means."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 120
CANDIDATES = 24  # requests of a window that a round considers


def arranged(
    features: NDArray[np.float64],
    counts: NDArray[np.int64],
    wanted: NDArray[np.float64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """An order of the rows of `features` (N, F) such that consecutive groups of `counts` (W,) have nearly the means
    `wanted` (W, F).

    From a random order on, windows are paired at random. Each pair exchanges two requests, out of some candidates:
    those whose exchange brings both nearest to their wanted means, by squares of features.
    """
    order = rng.permutation(len(features))
    windows = len(counts)
    if windows < 2:
        return order

    start = np.concatenate(([0], np.cumsum(counts)[:-1]))
    window = np.repeat(np.arange(windows), counts)
    excess = np.zeros_like(wanted)
    np.add.at(excess, window, features[order])
    excess -= wanted * counts[:, None]  # sums, not means: an exchange moves both by the same
    weight = 1 / counts.astype(np.float64) ** 2
    change, crossed = np.empty((2, windows // 2, CANDIDATES, CANDIDATES))  # memory of every round
    for _ in range(ROUNDS):
        pair = rng.permutation(windows)[: windows // 2 * 2].reshape(-1, 2)
        slots = start[pair][:, :, None] + (rng.random((*pair.shape, CANDIDATES)) * counts[pair][:, :, None]).astype(int)
        there = features.take(order[slots], axis=0)  # (P, 2, C, F)
        one, other = there[:, 0], there[:, 1]
        weights = weight[pair]
        pull = excess[pair[:, 0]] * weights[:, :1] - excess[pair[:, 1]] * weights[:, 1:]  # (P, F)
        both = weights.sum(axis=1)[:, None]
        # Of moving d = other - one into the first: 2 d.pull + both |d|^2
        alone_one = -2 * np.einsum("pcf,pf->pc", one, pull) + both * (one**2).sum(axis=2)
        alone_other = 2 * np.einsum("pcf,pf->pc", other, pull) + both * (other**2).sum(axis=2)
        np.add(alone_one[:, :, None], alone_other[:, None, :], out=change)
        np.matmul(one, other.transpose(0, 2, 1), out=crossed)
        crossed *= 2 * both[:, :, None]
        change -= crossed
        best = change.reshape(len(pair), -1).argmin(axis=1)
        gains = change.reshape(len(pair), -1)[np.arange(len(pair)), best] < 0
        rows = np.flatnonzero(gains)
        mine, its = slots[rows, 0, best[rows] // CANDIDATES], slots[rows, 1, best[rows] % CANDIDATES]
        moved = features[order[its]] - features[order[mine]]
        excess[pair[rows, 0]] += moved
        excess[pair[rows, 1]] -= moved
        order[mine], order[its] = order[its], order[mine]
    return order
