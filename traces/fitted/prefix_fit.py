"""Fits the model of shared prefixes to the block ids of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.fitted.prefix import KNOTS, TURN_CLASSES, PrefixModel
from traces.fitted.quantiles import LEAST_REQUESTS, banded

BIN_ENDS = np.array([*np.arange(1, 8) / 8, 15 / 16, 31 / 32, 63 / 64])  # shares of shorter prompts
ROWS_PER_BIN = 150  # least rows in the last bin
TURN_SLACK_BLOCKS = 5  # a turn leaves at most this many blocks of the previous request unmatched
TRUNKS = 16
TRUNK_SHARE = 0.005  # a first block is a trunk if this share of all requests begins with it
MAX_CENSORING = 5.0  # lags near the trace's duration are seen rarely; their weight is bounded
DRIFT_REQUESTS = 300  # requests of a part of the trace with its own level of sharing
MOST_PARTS = 64


def fit_prefix(arrival_s: NDArray[np.float64], paths: Sequence[Sequence[int]], block_tokens: int) -> PrefixModel:
    """Fits the tables to the block ids `paths` (N of them, root first) of requests in order of arrival.

    A lag can only be seen if the parent lies inside the trace. So each is weighted by duration / (duration - lag), the
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
    kind = (unmatched > TURN_SLACK_BLOCKS).astype(np.int64)

    longest = 1 - ROWS_PER_BIN / max(len(blocks), 2 * ROWS_PER_BIN)
    ends = BIN_ENDS[longest >= BIN_ENDS]
    edges = np.unique(np.quantile(blocks, ends, method="higher")).astype(np.int64)
    length_bin = np.searchsorted(edges, blocks)
    weights = np.zeros((len(edges) + 1, 2))
    added = np.zeros((len(edges) + 1, 2, len(KNOTS)))
    share = 1 - seen.matched[child] / blocks[child]
    for row in range(len(weights)):
        size = max(int(np.sum(length_bin == row)), 1)
        for column in (0, 1):
            here = (length_bin[child] == row) & (kind == column)
            weights[row, column] = weight[here].sum() / size
            if here.sum() < LEAST_REQUESTS:  # Those of all lengths replace them.
                here = kind == column
            added[row, column] = np.minimum(banded(share[here], weight[here], KNOTS), 1)
        weights[row] /= max(1.0, weights[row].sum())
    tables = {
        name: np.stack([banded(values[kind == column], weight[kind == column], KNOTS) for column in (0, 1)])
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
        drift=np.ones(min(max(len(blocks) // DRIFT_REQUESTS, 1), MOST_PARTS)),
        added_share=added,
        parent_turn=turns / max(int(turns.sum()), 1),
        **tables,
    )


@dataclass(frozen=True)
class _Seen:
    """Arrays (N,). `parent`: the last earlier request that holds the deepest known block, -1 if that lies in a trunk.

    `matched`: known blocks, from the root on. `place`: 1 for a new session, one more than the parent's for others.
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
    """First blocks that many requests share, and how many blocks nearly all of these share further."""
    firsts = Counter(path[0] for path in paths if path)
    names = [
        block for block, uses in firsts.most_common(TRUNKS) if uses >= max(LEAST_REQUESTS, TRUNK_SHARE * len(paths))
    ]
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
