"""How prompts share prefixes, as a small model that can be fitted to hash_ids and sampled to any length.

Three tiers make up a prompt's prefix. A *trunk* is a prefix that many requests share (a system prompt). A *turn*
goes on where an earlier request ended: it matches all but the last blocks of it. A *branch* leaves an earlier
request well before its end (an edited or regenerated prompt). What a request adds to what it matches depends on its
length; how long ago the matched request arrived is what sets the reuse distance, and with it the hit ratio of a
finite cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError

NEW, TURN, BRANCH = 0, 1, 2
LENGTH_BINS = 24
ROWS_PER_BIN = 200  # fewer bins for short traces
KNOTS = np.array([0, 0.005, 0.01, 0.02, 0.03, *np.arange(5, 96, 5) / 100, 0.97, 0.98, 0.99, 0.995, 1])
TURN_SLACK_BLOCKS = 5  # a turn leaves at most this many blocks of the request before it unmatched
TRUNKS = 16
TRUNK_SHARE = 0.005  # a first block is a trunk if this share of all requests begins with it
TURN_CLASSES = 12  # the parents' place in their session, the last class open
NEIGHBOURS = 4  # candidates looked at on either side of the wanted time
SHORTEST_LAG_S = 1e-3
MOST_BLOCKS = 2 * 10**8  # of all prompts of a sample
MAX_CENSORING = 5.0  # lags near the trace's duration are seen rarely; their weight is bounded


@dataclass(frozen=True)
class PrefixModel:
    """Fitted tables. Axis `kind` is (turn, branch); Q = len(KNOTS) quantiles, B length bins.

    `trunk_blocks`, `trunk_weights` (T,): depth of each trunk and the share of fresh sessions that begin with it;
    the rest begin alone. `bin_blocks` (B,): upper ends of the bins of prompt length in blocks. `kind_weights` (B,
    2). `added_blocks` (B, 2, Q): blocks of a prompt beyond the match. `unmatched_blocks` (2, Q): blocks of the
    parent beyond the match. `lag_s` (2, Q): time since the parent arrived. `parent_turn` (TURN_CLASSES,): shares of
    the parent's place in its session.
    """

    block_tokens: int
    trunk_blocks: NDArray[np.int64]
    trunk_weights: NDArray[np.float64]
    bin_blocks: NDArray[np.int64]
    kind_weights: NDArray[np.float64]
    added_blocks: NDArray[np.float64]
    unmatched_blocks: NDArray[np.float64]
    lag_s: NDArray[np.float64]
    parent_turn: NDArray[np.float64]

    def sample(
        self, arrival_s: NDArray[np.float64], input_tokens: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Block ids of requests that arrive at `arrival_s` (N,), sorted, with prompts of `input_tokens` (N,).

        Returns (ids (K,), offsets (N + 1,)): request r holds ids[offsets[r]:offsets[r + 1]], root first, ceil(input /
        block_tokens) of them, numbered by first appearance.
        """
        blocks = -(-input_tokens // self.block_tokens)
        if blocks.sum() > MOST_BLOCKS:
            raise InputError(f"a sample with {blocks.sum():,} prefix blocks is too large, at most {MOST_BLOCKS:,}")
        parent, shared = _attach(arrival_s, blocks, self._draw(arrival_s, blocks, rng))
        trunk = self._draw_trunks(parent, rng)
        return _name_blocks(blocks, parent, shared, trunk, self.trunk_blocks)

    def _draw(self, arrival_s: NDArray[np.float64], blocks: NDArray[np.int64], rng: np.random.Generator) -> _Wishes:
        """What each request would like to follow; a parent before the trace begins makes it a fresh session."""
        count = len(blocks)
        length_bin = np.minimum(np.searchsorted(self.bin_blocks, blocks), len(self.bin_blocks) - 1)
        reach = self.kind_weights[length_bin].cumsum(axis=1)
        draw = rng.random(count)
        kind = np.where(draw < reach[:, 0], TURN, np.where(draw < reach[:, 1], BRANCH, NEW))
        row = np.maximum(kind - 1, 0)
        added = _pick(self.added_blocks[length_bin, row], rng.random(count))
        unmatched = _pick(self.unmatched_blocks[row], rng.random(count))
        lag = np.maximum(_interpolate(self.lag_s[row], rng.random(count)), SHORTEST_LAG_S)
        turn = 1 + np.searchsorted(np.cumsum(self.parent_turn)[:-1], rng.random(count), side="right")
        kind[lag > arrival_s - arrival_s[0]] = NEW
        return _Wishes(kind, np.clip(blocks - added, 1, blocks), unmatched, lag, turn)

    def _draw_trunks(self, parent: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Index of the trunk that each fresh session begins with, -1 for none and for requests with a parent."""
        trunk = np.searchsorted(np.cumsum(self.trunk_weights), rng.random(len(parent)), side="right")
        return np.where((parent >= 0) | (trunk == len(self.trunk_weights)), -1, trunk)


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


def _pick(quantiles: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(_interpolate(quantiles, draws)).astype(np.int64)


def _attach(
    arrival_s: NDArray[np.float64], blocks: NDArray[np.int64], wishes: _Wishes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The parent of each request (-1: none) and the blocks shared with it, both (N,).

    Requests that nobody has continued yet wait in one list per length, in order of arrival. A request takes the one
    that comes nearest to its wish; each is taken once, as a continued conversation is the one that its next turn
    continues.
    """
    count = len(blocks)
    parent, shared = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    longest = int(blocks.max())
    waiting: list[list[int]] = [[] for _ in range(longest + 1)]
    since: list[list[float]] = [[] for _ in range(longest + 1)]
    place = [1] * count  # in its session
    times, lengths = arrival_s.tolist(), blocks.tolist()
    kinds, lags, turns = wishes.kind.tolist(), wishes.lag_s.tolist(), wishes.turn.tolist()
    wanted_shared, wanted_unmatched = wishes.shared.tolist(), wishes.unmatched.tolist()
    for request in range(count):
        now = times[request]
        if kinds[request] != NEW:
            length = wanted_shared[request] + wanted_unmatched[request]
            margin = 1 + length // 12
            target, best_cost, best = now - lags[request], float("inf"), (-1, -1)
            lag, turn = lags[request], turns[request]
            for tail in range(max(1, length - margin), min(longest, length + margin) + 1):
                began = since[tail]
                if not began:
                    continue
                far = 0.1 * abs(tail - length)
                if far >= best_cost:  # as all costs of this length are
                    continue
                there = waiting[tail]
                middle = bisect_left(began, target)
                for slot in range(max(0, middle - NEIGHBOURS), min(len(began), middle + NEIGHBOURS)):
                    apart = abs(log(max(now - began[slot], SHORTEST_LAG_S) / lag))
                    step = abs(min(place[there[slot]], TURN_CLASSES) - turn)
                    cost = apart + 0.2 * step + far
                    if cost < best_cost:
                        best_cost, best = cost, (tail, slot)
            tail, slot = best
            if tail >= 0:
                chosen = waiting[tail].pop(slot)
                since[tail].pop(slot)
                parent[request], place[request] = chosen, place[chosen] + 1
                shared[request] = min(wanted_shared[request], tail)
        waiting[lengths[request]].append(request)
        since[lengths[request]].append(now)
    return parent, shared


def _name_blocks(
    blocks: NDArray[np.int64],
    parent: NDArray[np.int64],
    shared: NDArray[np.int64],
    trunk: NDArray[np.int64],
    trunk_blocks: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers every new block by appearance and copies what is shared from the parent or the trunk."""
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


def fit_prefix(arrival_s: NDArray[np.float64], paths: Sequence[Sequence[int]], block_tokens: int) -> PrefixModel:
    """Fits the tables to the block ids `paths` (N of them, root first) of requests in order of arrival.

    A lag can only be seen if the parent lies inside the trace, so each is weighted by duration / (duration - lag), the
    inverse of the share of requests early enough or late enough to show it (Horvitz and Thompson, 1952).
    """
    trunks, depths = _find_trunks(paths)
    seen = _observe(paths, dict(zip(trunks, depths, strict=True)))
    blocks = np.array([len(path) for path in paths], np.int64)
    child = np.flatnonzero(seen.parent >= 0)
    lag = arrival_s[child] - arrival_s[seen.parent[child]]
    duration = max(float(arrival_s[-1] - arrival_s[0]), 1e-9)
    weight = np.minimum(1 / np.maximum(1 - lag / duration, 1e-9), MAX_CENSORING)
    unmatched = blocks[seen.parent[child]] - seen.matched[child]
    added = blocks[child] - seen.matched[child]
    kind = (unmatched > TURN_SLACK_BLOCKS).astype(np.int64)

    bins = min(max(len(blocks) // ROWS_PER_BIN, 4), LENGTH_BINS)
    edges = np.unique(np.quantile(blocks, np.arange(1, bins + 1) / bins, method="higher")).astype(np.int64)
    length_bin = np.searchsorted(edges, blocks)
    weights = np.zeros((len(edges), 2))
    added_table = np.zeros((len(edges), 2, len(KNOTS)))
    for row in range(len(edges)):
        size = max(int(np.sum(length_bin == row)), 1)
        for column in (0, 1):
            here = (length_bin[child] == row) & (kind == column)
            weights[row, column] = weight[here].sum() / size
            added_table[row, column] = _weighted_quantiles(added[here], weight[here])
        weights[row] /= max(1.0, weights[row].sum())
    tables = {
        name: np.stack([_weighted_quantiles(values[kind == column], weight[kind == column]) for column in (0, 1)])
        for name, values in (("unmatched_blocks", unmatched), ("lag_s", lag))
    }
    turns = np.bincount(np.minimum(seen.place[seen.parent[child]], TURN_CLASSES), minlength=TURN_CLASSES + 1)[1:]
    fresh = [path[0] for path, source in zip(paths, seen.parent.tolist(), strict=True) if source < 0 and path]
    begun = Counter(fresh)
    return PrefixModel(
        block_tokens=block_tokens,
        trunk_blocks=np.array(depths, np.int64),
        trunk_weights=np.array([begun[name] / max(len(fresh), 1) for name in trunks], np.float64),
        bin_blocks=edges,
        kind_weights=weights,
        added_blocks=added_table,
        parent_turn=turns / max(int(turns.sum()), 1),
        **tables,
    )


@dataclass(frozen=True)
class _Seen:
    """Arrays (N,). `parent`: the last earlier request that holds the deepest known block, -1 if that lies in a trunk.

    `matched`: blocks known, from the root on. `place`: 1 for a fresh session, one more than the parent's for others.
    """

    parent: NDArray[np.int64]
    matched: NDArray[np.int64]
    place: NDArray[np.int64]


def _observe(paths: Sequence[Sequence[int]], trunks: dict[int, int]) -> _Seen:
    holder: dict[int, int] = {}
    parent, matched, place = (np.full(len(paths), start, np.int64) for start in (-1, 0, 1))
    for request, path in enumerate(paths):
        depth = 0
        while depth < len(path) and path[depth] in holder:
            depth += 1
        matched[request] = depth
        if path and depth > trunks.get(path[0], 0):
            parent[request] = holder[path[depth - 1]]
            place[request] = place[parent[request]] + 1
        for block in path:
            holder[block] = request
    return _Seen(parent, matched, place)


def _find_trunks(paths: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """First blocks that many requests share, and how many blocks nearly all of these go on sharing."""
    firsts = Counter(path[0] for path in paths if path)
    names = [block for block, uses in firsts.most_common(TRUNKS) if uses >= max(3, TRUNK_SHARE * len(paths))]
    depths = []
    for name in names:
        members = [path for path in paths if path and path[0] == name]
        depth = 1
        while True:
            longer = Counter(path[depth] for path in members if len(path) > depth)
            if not longer or longer.most_common(1)[0][1] < 0.8 * len(members):
                break
            depth += 1
        depths.append(depth)
    return names, depths


def _weighted_quantiles(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quantiles of weighted values at KNOTS, (Q,); zeros if there are none."""
    if len(values) == 0:
        return np.zeros(len(KNOTS))
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(weights[order])
    middle = (mass - 0.5 * weights[order]) / mass[-1]
    return np.interp(KNOTS, middle, values[order].astype(np.float64))
