"""Requests told apart by the length of their prompts: a run's figures, bucket by bucket."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from framework.codes import REASON_KV, REASONS
from framework.errors import InputError, require_count


def require_edges(name: str, edges: Any) -> None:
    """Raise InputError unless `edges` is a list of increasing whole numbers of tokens."""
    if not isinstance(edges, (list, tuple)):
        raise InputError(f"{name} must be a list of tokens, such as [512, 4096], got {edges!r}")
    for edge in edges:
        require_count(name, edge)
    if any(one >= other for one, other in pairwise(edges)):
        raise InputError(f"{name} must increase, got {list(edges)}")


def by_length(requests: pl.DataFrame, edges: Sequence[int], duration_s: float) -> list[dict[str, Any]]:
    """One entry a bucket of a request table (`framework.metrics.summary.request_table`), short prompts first.

    A bucket holds prompts of `from_tokens` to below `to_tokens` (None: no end); `edges`, increasing, are where one
    ends and the next begins. Keys and definitions are the summary's; rates are over the run's `duration_s`, so that
    those of all buckets add up. `out_of_memory`: requests not served because KV memory was lacking. None where
    undefined.
    """
    ends = zip((0, *edges), (*edges, None), strict=True)
    return [{"from_tokens": low, "to_tokens": high, **_figures(requests, low, high, duration_s)} for low, high in ends]


def _figures(requests: pl.DataFrame, low: int, high: int | None, duration_s: float) -> dict[str, Any]:
    tokens = pl.col("input_tokens")
    own = requests.filter(tokens >= low if high is None else (tokens >= low) & (tokens < high))
    completed = own.filter(pl.col("state") == "finished")
    good = int(own["good"].sum())
    output_tokens = int(completed["output_tokens"].sum())
    return {
        "offered": len(own),
        "completed": len(completed),
        "out_of_memory": int((own["reason"] == REASONS[REASON_KV]).sum()),
        "slo_attainment": good / len(own) if len(own) else None,
        "request_throughput": _rate(len(completed), duration_s),
        "request_goodput": _rate(good, duration_s),
        "output_throughput": _rate(output_tokens, duration_s),
        "total_token_throughput": _rate(int(completed["input_tokens"].sum()) + output_tokens, duration_s),
        **_statistics_ms("ttft", completed["ttft_s"]),
        **_statistics_ms("tpot", completed["tpot_s"]),
        **_statistics_ms("e2el", completed["e2e_s"]),
    }


def _statistics_ms(name: str, values_s: pl.Series) -> dict[str, float | None]:
    values_ms = values_s.drop_nulls().to_numpy() * 1e3
    names = [f"{statistic}_{name}_ms" for statistic in ("median", "p95", "p99")]
    if len(values_ms) == 0:
        return dict.fromkeys(names)
    values = (np.median(values_ms), *np.percentile(values_ms, [95, 99]))
    return {key: float(value) for key, value in zip(names, values, strict=True)}


def _rate(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
