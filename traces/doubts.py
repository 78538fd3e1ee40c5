"""What makes a trace doubtful though each of its rows can be read: told, not refused."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.frame import flat_ids

_FASTEST_RPS = 1000.0  # of one recording: more is more likely a wrong unit
_ENOUGH = 100  # requests, of which a rate says something
_MOST_ROWS = 5_000  # looked at: a format is wrong from its beginning


def doubted_clock(arrival_s: pl.Series) -> tuple[str, ...]:
    """A note where milliseconds are more likely seconds: fractions of one, or requests come impossibly fast."""
    times = arrival_s.to_numpy()
    ticks = 1000.0 * times
    span_s = float(times.max() - times.min()) if len(times) else 0.0
    share = float(np.mean(np.abs(ticks - np.round(ticks)) > 1e-4)) if len(times) else 0.0
    rate_rps = len(times) / span_s if span_s > 0 else 0.0
    if len(times) >= _ENOUGH and rate_rps > _FASTEST_RPS:
        return (f"timestamps count as milliseconds, {rate_rps:,.0f} requests/s; if they are seconds, multiply by 1000",)
    if share > 0.5:
        return ("timestamps count as milliseconds and have fractions of them; if they are seconds, multiply by 1000",)
    return ()


def doubted_chain(rows: pl.DataFrame) -> tuple[str, ...]:
    """A note where one hash id follows two others: ids must stand for whole prefixes, not for blocks alone."""
    if "hash_ids" not in rows.columns:
        return ()
    ids, offsets = flat_ids(rows.head(_MOST_ROWS))
    if offsets is None or not len(ids):
        return ()
    before: NDArray[np.int64] = np.empty(len(ids), np.int64)
    before[1:] = ids[:-1]
    before[offsets[offsets < len(ids)]] = -1
    first = np.full(int(ids.max()) + 1, -2, np.int64)
    first[ids] = before
    split = np.flatnonzero(first[ids] != before)
    if not len(split):
        return ()
    one = int(ids[split[0]])
    count = len(np.unique(ids[split]))
    where = f"{count:,} hash ids stand behind several others, such as {one}"
    return (f"{where}: where ids name blocks and not prefixes, reuse is counted too high",)
