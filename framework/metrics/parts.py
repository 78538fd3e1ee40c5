"""Figures of a part of a run's requests, by the summary's names and definitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.codes import REASON_KV, REASONS
from framework.result import Result

STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")


@dataclass(frozen=True)
class Seconds:
    """The times over which rates are counted: `duration` for those of `vllm bench serve`, `window` for the headline."""

    duration: float
    window: float


def figures(own: pl.DataFrame, seconds: Seconds, statistics: Sequence[str] = STATISTICS) -> dict[str, Any]:
    """The figures of some rows of a request table (`framework.metrics.summary.request_table`), with these STATISTICS.

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
    centre = [values_ms.mean(), np.median(values_ms), values_ms.std()]
    return named_ms(name, [*centre, *np.percentile(values_ms, [90, 95, 99])])


def named_ms(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """One value for each of STATISTICS, by key; None in place of NaN."""
    return {
        f"{statistic}_{name}_ms": None if np.isnan(value) else float(value)
        for statistic, value in zip(STATISTICS, values, strict=True)
    }


def rate(count: float, duration_s: float) -> float:
    """Events a second; 0 in a run without duration."""
    return count / duration_s if duration_s > 0 else 0.0
