"""Why a request went where it did: what waited, and was held, there and at the best other instance of the pool.

These are figures of the run just before the decision. A policy may have decided by others, such as cached prefixes.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.report.timeline.levels import Levels, routed_s
from framework.result import Result

Ints = NDArray[np.int64]
_NS = 1e9


def names_of(result: Result) -> list[str]:
    """Each instance by its pool and its number within it."""
    return [f"{pool.name} {number}" for pool in result.cluster.pools for number in range(pool.instances)]


def routes_of(result: Result, shown: Ints, queued: Levels, context: Levels) -> pl.DataFrame:
    """One row for each request that is `shown`, null where nothing was decided or there was no other instance.

    `prefill_at`, `queued_tokens`: the instance of the prefill and the prompt tokens that waited there when the request
    was routed; `fewest_at`, `fewest_queued_tokens`: of the other instance of the pool with the fewest. `decode_at`,
    `decode_kv_tokens`, `least_at`, `least_kv_tokens`: the same of a request that decodes elsewhere, in KV tokens that
    decodes read when its prefill ended.
    """
    requests = result.requests[shown]
    first, last = (requests[name].astype(np.int64) for name in ("prefill_instance", "decode_instance"))
    entered = _compared(result, queued, first, routed_s(result)[shown])
    moved = np.where((last >= 0) & (last != first), last, -1)
    placed = _compared(result, context, moved, requests["prefill_end_s"])
    there = ("prefill_at", "queued_tokens", "fewest_at", "fewest_queued_tokens")
    later = ("decode_at", "decode_kv_tokens", "least_at", "least_kv_tokens")
    columns = dict(zip((*there, *later), (*entered, *placed), strict=True))
    return pl.DataFrame({"request": shown, **columns})


def _compared(result: Result, levels: Levels, chosen: Ints, time_s: NDArray[np.float64]) -> list[pl.Series]:
    """The chosen instance's name and level, and those of the other instance of its pool with the least level."""
    names = np.array([json.dumps(name)[1:-1] for name in names_of(result)], dtype=object)
    known = (chosen >= 0) & ~np.isnan(time_s)
    ts_ns = np.rint(np.where(known, time_s, 0.0) * _NS).astype(np.int64)
    own, best = np.full(len(chosen), np.nan), np.full(len(chosen), np.nan)
    other = np.full(len(chosen), -1)
    first = 0
    for pool in result.cluster.pools:
        members = range(first, first + pool.instances)
        rows = np.flatnonzero(known & (chosen >= first) & (chosen < first + pool.instances))
        first += pool.instances
        if len(rows) == 0:
            continue
        found = np.stack([levels.at(i, ts_ns[rows]) for i in members])
        at = chosen[rows] - members[0]
        own[rows] = found[at, np.arange(len(rows))]
        found[at, np.arange(len(rows))] = np.inf
        if len(members) > 1:
            other[rows] = found.argmin(axis=0) + members[0]
            best[rows] = found.min(axis=0)
    return [_named(names, np.where(known, chosen, -1)), _tokens(own), _named(names, other), _tokens(best)]


def _named(names: NDArray[Any], instance: Ints) -> pl.Series:
    return pl.Series([names[i] if i >= 0 else None for i in instance.tolist()], dtype=pl.String)


def _tokens(values: NDArray[np.float64]) -> pl.Series:
    return pl.Series(values, nan_to_null=True).cast(pl.Int64)
