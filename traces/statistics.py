"""The figures that compare two traces: lengths, rank correlation, burstiness, prefix reuse."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.frame import Trace

QUANTILES = (0.10, 0.50, 0.90, 0.95, 0.99)
DISPERSION_WINDOWS_S = (1.0, 10.0, 60.0)
CACHE_TOKENS = (10_000, 50_000, 200_000, 1_000_000, 5_000_000, 20_000_000)


def summarize(trace: Trace) -> dict[str, float]:
    """All figures of one trace, by name, in the order of a table.

    Dispersion is left out for windows below the clock tick or too long for the trace; the hit ratios are left out
    for a trace without hash_ids.
    """
    arrival = column(trace, "arrival_s")
    inputs, outputs = column(trace, "input_tokens"), column(trace, "output_tokens")
    duration = float(arrival[-1] - arrival[0])
    figures: dict[str, float] = {"requests": float(len(arrival)), "duration_s": duration}
    if duration > 0:
        figures["rate_per_s"] = len(arrival) / duration
    for name, tokens in (("input", inputs), ("output", outputs)):
        figures |= {f"{name}_p{100 * q:.0f}": float(np.quantile(tokens, q)) for q in QUANTILES}
        figures |= {f"{name}_max": float(tokens.max()), f"{name}_mean": float(tokens.mean())}
    figures["rank_correlation"] = rank_correlation(inputs, outputs)
    tick = clock_tick(arrival)
    for window in DISPERSION_WINDOWS_S:
        if window >= tick and duration >= 2 * window:
            figures[f"dispersion_{window:.0f}s"] = dispersion(arrival, window)
    if "hash_ids" in trace.frame.columns:
        paths = hash_paths(trace)
        figures["ideal_hit_ratio"] = ideal_hit_ratio(paths, inputs, trace.hash_block_tokens)
        for size in CACHE_TOKENS:
            figures[f"lru_hit_{size}_tokens"] = lru_hit_ratio(paths, inputs, trace.hash_block_tokens, size)
    return figures


def column(trace: Trace, name: str) -> NDArray[np.float64]:
    """One column as float64, shape (N,)."""
    return trace.frame[name].to_numpy().astype(np.float64)


def hash_paths(trace: Trace) -> list[list[int]]:
    """The block ids of every request, root first; empty if a row has none."""
    return [ids or [] for ids in trace.frame["hash_ids"].to_list()]


def rank_correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Spearman's rho with average ranks for ties; 0 if either side is constant."""
    ranks = np.stack([pl.Series(side).rank("average").to_numpy() for side in (left, right)])
    if ranks.std(axis=1).min() == 0:
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def dispersion(arrival_s: NDArray[np.float64], window_s: float) -> float:
    """Index of dispersion of counts: variance over mean of the arrivals in the whole windows since the first.

    1 for a Poisson process (Cox and Lewis, The Statistical Analysis of Series of Events, 1966).
    """
    since = arrival_s - arrival_s[0]
    windows = int(since[-1] // window_s)
    counts = np.bincount((since // window_s).astype(np.int64), minlength=windows)[:windows]
    return float(counts.var() / counts.mean())


def clock_tick(arrival_s: NDArray[np.float64]) -> float:
    """Seconds between the ticks of a coarse clock (10 ms or more, with shared timestamps); 0 if there is none."""
    times = np.unique(arrival_s)
    if len(times) < 10 or len(times) > 0.9 * len(arrival_s):
        return 0.0
    gaps = np.diff(times)
    gaps = gaps[gaps > 0.25 * np.median(gaps)]
    tick = float(np.round(np.quantile(gaps, 0.05), 2))
    if tick < 0.01:
        return 0.0
    off_grid = np.abs(gaps / tick - np.round(gaps / tick)) * tick
    return tick if float(np.mean(off_grid < 0.02 * tick)) > 0.98 else 0.0


def ideal_hit_ratio(paths: Sequence[Sequence[int]], input_tokens: NDArray[np.float64], block_tokens: int) -> float:
    """Share of prompt tokens that an unlimited cache would hold: whole blocks seen before, from the root on."""
    return float(ideal_hits(paths, input_tokens, block_tokens).sum()) / float(input_tokens.sum())


def ideal_hits(
    paths: Sequence[Sequence[int]], input_tokens: NDArray[np.float64], block_tokens: int
) -> NDArray[np.float64]:
    """The tokens of each prompt (N,) that an unlimited cache would hold."""
    seen: set[int] = set()
    hits = []
    for path in paths:
        hits.append(_matched(path, seen) * block_tokens)
        seen.update(path)
    return np.minimum(np.array(hits, np.float64), input_tokens)


def lru_hit_ratio(
    paths: Sequence[Sequence[int]], input_tokens: NDArray[np.float64], block_tokens: int, capacity_tokens: int
) -> float:
    """The hit ratio of one cache of `capacity_tokens` that evicts the least recently used block, leaf before root."""
    capacity = capacity_tokens // block_tokens
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0.0
    for path, tokens in zip(paths, input_tokens.tolist(), strict=True):
        hits += min(_matched(path, cache) * block_tokens, tokens)
        for block in reversed(path):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits / float(input_tokens.sum())


def _matched(path: Sequence[int], held: set[int] | OrderedDict[int, None]) -> int:
    for depth, block in enumerate(path):
        if block not in held:
            return depth
    return len(path)
