"""How long requests waited at the gateway, and which it refused."""

from __future__ import annotations

from typing import Any

import polars as pl

from framework.codes import REASON_EXPIRED, REASON_SHED, REASONS
from framework.metrics.parts import statistics_ms

_PARTS = {"slo_class": "class", "tenant": "tenant", "priority": "priority"}


def gateway_figures(requests: pl.DataFrame) -> dict[str, Any]:
    """Of a table of requests (`request_table`): `mean_gateway_ms`, `p99_gateway_ms`, `shed` and `expired`, and the same
    of each class, tenant and priority under `gateway`. None without a gateway.

    The waits are those of all requests that count, also of those that were refused.
    """
    if "gateway_s" not in requests.columns:
        return {}
    rows = []
    for column, called in _PARTS.items():
        if column in requests.columns:
            parts = requests.partition_by(column, as_dict=True)
            rows += [{"by": called, "name": name, **_of(own)} for (name,), own in sorted(parts.items())]
    return {**_of(requests), "gateway": rows}


def _of(requests: pl.DataFrame) -> dict[str, Any]:
    waits = statistics_ms("gateway", requests["gateway_s"].to_numpy())
    return {
        "mean_gateway_ms": waits["mean_gateway_ms"],
        "p99_gateway_ms": waits["p99_gateway_ms"],
        "shed": int((requests["reason"] == REASONS[REASON_SHED]).sum()),
        "expired": int((requests["reason"] == REASONS[REASON_EXPIRED]).sum()),
    }
