"""A run's figures by the length of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from framework.checks import require_count
from framework.errors import InputError
from framework.metrics.parts import Seconds, figures

_STATISTICS = ("median", "p95", "p99")


def require_edges(name: str, edges: Any) -> None:
    """Raise InputError unless `edges` is a list of increasing whole numbers of tokens."""
    if not isinstance(edges, (list, tuple)):
        raise InputError(f"{name} must be a list of tokens, such as [512, 4096], got {edges!r}")
    for edge in edges:
        require_count(name, edge)
    if any(one >= other for one, other in pairwise(edges)):
        raise InputError(f"{name} must increase, got {list(edges)}")


def by_length(requests: pl.DataFrame, edges: Sequence[int], seconds: Seconds) -> list[dict[str, Any]]:
    """One entry for each bucket of a request table (`framework.metrics.summary.request_table`), short prompts first.

    A bucket holds prompts of `from_tokens` to below `to_tokens` (None: no end); the increasing `edges` separate
    buckets. The other keys are those of `framework.metrics.parts.figures`.
    """
    ends = zip((0, *edges), (*edges, None), strict=True)
    return [
        {"from_tokens": low, "to_tokens": high, **figures(_within(requests, low, high), seconds, _STATISTICS)}
        for low, high in ends
    ]


def _within(requests: pl.DataFrame, low: int, high: int | None) -> pl.DataFrame:
    tokens = pl.col("input_tokens")
    return requests.filter(tokens >= low if high is None else (tokens >= low) & (tokens < high))
