"""Figures of a part of a run's requests, such as a class or a bucket of lengths, by the summary's definitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.checks import require_count
from framework.codes import REASON_KV, REASONS
from framework.errors import InputError
from framework.result import Result

STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
_OF_A_BUCKET = ("median", "p95", "p99")


@dataclass(frozen=True)
class Seconds:
    """The times over which rates are counted: `duration` for those of `vllm bench serve`, `window` for the headline."""

    duration: float
    window: float


def figures(own: pl.DataFrame, seconds: Seconds, statistics: Sequence[str] = STATISTICS) -> dict[str, Any]:
    """The figures of some rows of a request table (`framework.metrics.request_table`), with these STATISTICS.

    Rates are over the run's time, so those of all parts add up to the run's. None if undefined.
    """
    duration_s = seconds.duration
    completed = own.filter(pl.col("state") == "finished")
    good, output_tokens = int(own["good"].sum()), int(completed["output_tokens"].sum())
    latencies = {
        key: value
        for name, column in (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("e2el", "e2e_s"), ("queue", "queue_s"))
        for key, value in statistics_ms(name, completed[column].to_numpy()).items()
        if key.partition("_")[0] in statistics
    }
    return {
        "offered": len(own),
        "completed": len(completed),
        "out_of_memory": out_of_memory(own),
        "goodput_rps": rate(good, seconds.window),
        "slo_attainment": good / len(own) if len(own) else None,
        "request_throughput": rate(len(completed), duration_s),
        "request_goodput": rate(good, duration_s),
        "output_throughput": rate(output_tokens, duration_s),
        "total_token_throughput": rate(int(completed["input_tokens"].sum()) + output_tokens, duration_s),
        **latencies,
    }


def out_of_memory(requests: pl.DataFrame) -> int:
    """The requests that were not served because KV memory was lacking."""
    return int((requests["reason"] == REASONS[REASON_KV]).sum())


def too_large(result: Result, requests: pl.DataFrame) -> dict[str, int]:
    """The KV tokens of the largest request that no instance could hold, and of one that it could; empty if all fit."""
    size, engine, pools = result.engine.block_tokens, result.engine, result.cluster.pools
    largest = 0
    for number, blocks in zip(
        result.instances["pool"].tolist(), result.instances["total_blocks"].tolist(), strict=True
    ):
        most, reserved = size * engine.largest_request(blocks), pools[number].reserve_tokens
        largest = max(largest, most if reserved is None else min(most, size * -(-reserved // size)))
    refused = requests.filter(pl.col("reason") == REASONS[REASON_KV])
    peak = (refused["input_tokens"] + refused["output_tokens"]).max()
    if not isinstance(peak, int) or peak - 1 <= largest:
        return {}
    return {"refused_kv_tokens": peak - 1, "largest_kv_tokens": largest}


def by_class(requests: pl.DataFrame, seconds: Seconds) -> dict[str, dict[str, Any]]:
    """The figures of each class of requests, by its name; `requests` has the column `slo_class`."""
    parts = requests.partition_by("slo_class", as_dict=True)
    return {str(name): figures(own, seconds) for (name,), own in sorted(parts.items())}


def statistics_ms(name: str, values_s: NDArray[np.float64]) -> dict[str, float | None]:
    """All of STATISTICS of the values that are not NaN, as in `{"mean_ttft_ms": 12.5, ...}`; None without values."""
    values_ms = values_s[~np.isnan(values_s)] * 1e3
    if len(values_ms) == 0:
        return named_ms(name, [np.nan] * len(STATISTICS))
    mean, std = values_ms.mean(), values_ms.std()
    median = np.median(values_ms, overwrite_input=True)
    return named_ms(name, [mean, median, std, *np.percentile(values_ms, [90, 95, 99], overwrite_input=True)])


def named_ms(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """One value for each of STATISTICS, by key; None in place of NaN."""
    return {
        f"{statistic}_{name}_ms": None if np.isnan(value) else float(value)
        for statistic, value in zip(STATISTICS, values, strict=True)
    }


def rate(count: float, duration_s: float) -> float:
    """Events a second; 0 in a run without duration."""
    return count / duration_s if duration_s > 0 else 0.0


def require_edges(name: str, edges: Any) -> None:
    """Raise InputError unless `edges` is a list of increasing whole numbers of tokens."""
    if not isinstance(edges, (list, tuple)):
        raise InputError(f"{name} must be a list of tokens, such as [512, 4096], got {edges!r}")
    for edge in edges:
        require_count(name, edge)
    if any(one >= other for one, other in pairwise(edges)):
        raise InputError(f"{name} must increase, got {list(edges)}")


def by_length(requests: pl.DataFrame, edges: Sequence[int], seconds: Seconds) -> list[dict[str, Any]]:
    """One entry for each bucket of a request table (`framework.metrics.request_table`), short prompts first.

    A bucket holds prompts of `from_tokens` to below `to_tokens` (None: no end); the increasing `edges` separate
    buckets. The other keys are those of `figures`.
    """
    ends = zip((0, *edges), (*edges, None), strict=True)
    return [
        {"from_tokens": low, "to_tokens": high, **figures(_within(requests, low, high), seconds, _OF_A_BUCKET)}
        for low, high in ends
    ]


def _within(requests: pl.DataFrame, low: int, high: int | None) -> pl.DataFrame:
    tokens = pl.col("input_tokens")
    return requests.filter(tokens >= low if high is None else (tokens >= low) & (tokens < high))
