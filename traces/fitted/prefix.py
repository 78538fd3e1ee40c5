"""The sharing of prompt prefixes, as a small model that can be fitted to hash_ids and sampled to any length.

A prompt's prefix comes from one of three tiers. A *trunk* is a prefix that many requests share (a system prompt). A
*turn* continues an earlier request: it matches all but the last blocks of it. A *branch* leaves an earlier request well
before its end (an edited or regenerated prompt). What a request adds to its match depends on its length. The time since
the matched request's arrival sets the reuse distance, and with it the hit ratio of a finite cache.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError

NEW, TURN, BRANCH = 0, 1, 2
KNOTS = np.linspace(0, 1, 21)
TURN_CLASSES = 12  # the parents' place in their session, the last class open
CANDIDATES = 4  # candidates considered on either side of the wanted time
SHORTEST_LAG_S = 1e-3
MOST_BLOCKS = 2 * 10**8  # most blocks of all prompts of a sample
DRAWS = 6  # draws for each request

Draws = NDArray[np.float64]


@dataclass(frozen=True)
class PrefixModel:
    """Fitted tables. Axis `kind` is (turn, branch); Q = len(KNOTS) quantiles, B length bins.

    `trunk_blocks`, `trunk_weights` (T,): depth of each trunk and the share of new sessions that begin with it; the rest
    begin alone. `bin_blocks` (B - 1,): ends of the bins of prompt length in blocks, all but the last. `kind_weights`
    (B, 2): shares of requests that are a turn and a branch, times `drift` (G,) for each of G equal parts of the trace.
    `added_share` (B, 2, Q): share of a prompt's blocks beyond the match. `unmatched_blocks` (2, Q): blocks of the
    parent beyond the match. `lag_s` (2, Q): time since the parent arrived. `parent_turn` (TURN_CLASSES,): shares of the
    parent's place in its session.
    """

    block_tokens: int
    trunk_blocks: NDArray[np.int64]
    trunk_weights: NDArray[np.float64]
    bin_blocks: NDArray[np.int64]
    kind_weights: NDArray[np.float64]
    drift: NDArray[np.float64]
    added_share: NDArray[np.float64]
    unmatched_blocks: NDArray[np.float64]
    lag_s: NDArray[np.float64]
    parent_turn: NDArray[np.float64]

    def sample(
        self, arrival_s: NDArray[np.float64], input_tokens: NDArray[np.int64], place: NDArray[np.float64], seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Block ids of requests that arrive at `arrival_s` (N,), sorted, with prompts of `input_tokens` (N,).

        `place` (N,) in [0, 1) is the place of each in the trace. Returns (ids (K,), offsets (N + 1,)): request r holds
        ids[offsets[r]:offsets[r + 1]], root first, ceil(input / block_tokens) of them, numbered by first appearance.
        The first requests do not depend on how many follow.
        """
        blocks = -(-input_tokens // self.block_tokens)
        if blocks.sum() > MOST_BLOCKS:
            raise InputError(f"a sample with {blocks.sum():,} prefix blocks is too large, at most {MOST_BLOCKS:,}")
        draws = np.random.default_rng([seed, 1]).random((len(blocks), DRAWS)).T
        parent, shared = _attach(arrival_s, blocks, self._wishes(arrival_s, blocks, place, draws))
        trunk = np.searchsorted(np.cumsum(self.trunk_weights), draws[0], side="right")
        trunk = np.where((parent >= 0) | (trunk == len(self.trunk_weights)), -1, trunk)
        return _name_blocks(blocks, parent, shared, trunk, self.trunk_blocks)

    def _wishes(
        self, arrival_s: NDArray[np.float64], blocks: NDArray[np.int64], place: NDArray[np.float64], draws: Draws
    ) -> _Wishes:
        """The wanted parent of each request; a parent before the trace begins makes it a new session."""
        length_bin = np.searchsorted(self.bin_blocks, blocks)
        weights = self.kind_weights[length_bin] * self.drift[(place * len(self.drift)).astype(np.int64), None]
        reach = weights.cumsum(axis=1)
        kind = np.where(draws[1] < reach[:, 0], TURN, np.where(draws[1] < reach[:, 1], BRANCH, NEW))
        row = np.maximum(kind - 1, 0)
        added = np.rint(blocks * _interpolate(self.added_share[length_bin, row], draws[2])).astype(np.int64)
        unmatched = np.rint(_interpolate(self.unmatched_blocks[row], draws[3])).astype(np.int64)
        lag = np.maximum(_interpolate(self.lag_s[row], draws[4]), SHORTEST_LAG_S)
        turn = 1 + np.searchsorted(np.cumsum(self.parent_turn)[:-1], draws[5], side="right")
        kind[lag > arrival_s - arrival_s[0]] = NEW
        return _Wishes(kind, np.clip(blocks - added, 1, blocks), unmatched, lag, turn)


@dataclass(frozen=True)
class _Wishes:
    """Arrays (N,): kind, blocks to share, blocks of the parent beyond them, seconds since the parent, its turn."""

    kind: NDArray[np.int64]
    shared: NDArray[np.int64]
    unmatched: NDArray[np.int64]
    lag_s: NDArray[np.float64]
    turn: NDArray[np.int64]


def _interpolate(quantiles: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Row r of `quantiles` (N, Q) at draws[r] in [0, 1)."""
    below = np.searchsorted(KNOTS, draws, side="right") - 1
    rows = np.arange(len(draws))
    low, high = quantiles[rows, below], quantiles[rows, below + 1]
    return low + (draws - KNOTS[below]) / (KNOTS[below + 1] - KNOTS[below]) * (high - low)


def _attach(
    arrival_s: NDArray[np.float64], blocks: NDArray[np.int64], wishes: _Wishes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The parent of each request (-1: none) and the blocks shared with it, both (N,).

    Requests without a continuation wait in one list per length, in order of arrival. A request takes the one nearest to
    its wish; each is taken once, as a conversation has one next turn.
    """
    count = len(blocks)
    parent, shared = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    longest = int(blocks.max())
    waiting: list[list[int]] = [[] for _ in range(longest + 1)]
    since: list[list[float]] = [[] for _ in range(longest + 1)]
    place = [1] * count  # place of each request in its session, at most TURN_CLASSES
    kinds, wanted_shared = wishes.kind.tolist(), wishes.shared.tolist()
    wanted = zip((wishes.shared + wishes.unmatched).tolist(), wishes.lag_s.tolist(), wishes.turn.tolist(), strict=True)
    rows = zip(arrival_s.tolist(), blocks.tolist(), wanted, strict=True)
    for request, (now, own, (length, lag, turn)) in enumerate(rows):
        if kinds[request] != NEW:
            target, best_cost, best, best_slot = now - lag, inf, -1, -1
            for tail, far in _nearby(length, longest):
                if far > best_cost:
                    break
                began = since[tail]
                if not began:
                    continue
                there = waiting[tail]
                middle = bisect_left(began, target)
                for slot in range(max(0, middle - CANDIDATES), min(len(began), middle + CANDIDATES)):
                    ago = now - began[slot]
                    apart = log((ago if ago > SHORTEST_LAG_S else SHORTEST_LAG_S) / lag)
                    cost = abs(apart) + 0.2 * abs(place[there[slot]] - turn) + far
                    if cost < best_cost or (cost == best_cost and tail < best):
                        best_cost, best, best_slot = cost, tail, slot
            if best >= 0:
                chosen = waiting[best].pop(best_slot)
                since[best].pop(best_slot)
                parent[request], place[request] = chosen, min(place[chosen] + 1, TURN_CLASSES)
                shared[request] = min(wanted_shared[request], best)
        waiting[own].append(request)
        since[own].append(now)
    return parent, shared


@cache
def _nearby(length: int, longest: int) -> list[tuple[int, float]]:
    """Lengths from 1 to `longest` that are near to a wanted one, the nearest first, and the cost of their distance."""
    margin = 1 + length // 12
    tails = sorted(
        range(max(1, length - margin), min(longest, length + margin) + 1), key=lambda tail: abs(tail - length)
    )
    return [(tail, 0.1 * abs(tail - length)) for tail in tails]


def _name_blocks(
    blocks: NDArray[np.int64],
    parent: NDArray[np.int64],
    shared: NDArray[np.int64],
    trunk: NDArray[np.int64],
    trunk_blocks: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number every new block by appearance and copy what is shared from the parent or the trunk."""
    shared = shared.copy()
    known = np.zeros(len(trunk_blocks), np.int64)
    owner = np.full(len(trunk_blocks), -1, np.int64)
    for request in np.flatnonzero(trunk >= 0).tolist():
        name = trunk[request]
        parent[request] = owner[name]
        shared[request] = min(known[name], blocks[request])
        reach = min(int(trunk_blocks[name]), int(blocks[request]))
        if reach > known[name]:
            owner[name], known[name] = request, reach
    offsets = np.concatenate(([0], np.cumsum(blocks)))
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    ids = np.cumsum(place >= np.repeat(shared, blocks)) - 1
    first, sources, counts = offsets.tolist(), offsets[parent].tolist(), shared.tolist()
    for request in np.flatnonzero(shared > 0).tolist():
        begin, source, length = first[request], sources[request], counts[request]
        ids[begin : begin + length] = ids[source : source + length]
    return ids, offsets
