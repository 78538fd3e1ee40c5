"""How long requests waited at the gateway, and which it refused."""

from __future__ import annotations

from typing import Any

import polars as pl

from framework.codes import REASON_EXPIRED, REASON_SHED, REASONS
from framework.metrics.parts import statistics_ms

_PARTS = {"slo_class": "class", "tenant": "tenant", "priority": "priority"}


def gateway_figures(requests: pl.DataFrame) -> dict[str, Any]:
    """Of a table of requests (`request_table`): waits of completed requests at the gateway, how many it refused
    (`shed`, `expired`), and under `gateway` a row for each class, tenant and priority. None without a gateway.
    """
    if "gateway_s" not in requests.columns:
        return {}
    rows = []
    for column, called in _PARTS.items():
        if column in requests.columns:
            parts = requests.partition_by(column, as_dict=True)
            rows += [{"by": called, "name": name, **_row(own)} for (name,), own in sorted(parts.items())]
    return {**_waits_ms(requests), **_refused(requests), "gateway": rows}


def _row(own: pl.DataFrame) -> dict[str, Any]:
    waits = _waits_ms(own)
    kept = {key: waits[key] for key in ("mean_gateway_ms", "p99_gateway_ms")}
    return {"offered": len(own), **_refused(own), **kept}


def _waits_ms(requests: pl.DataFrame) -> dict[str, float | None]:
    completed = requests.filter(pl.col("state") == "finished")
    return statistics_ms("gateway", completed["gateway_s"].to_numpy())


def _refused(requests: pl.DataFrame) -> dict[str, int]:
    return {
        "shed": int((requests["reason"] == REASONS[REASON_SHED]).sum()),
        "expired": int((requests["reason"] == REASONS[REASON_EXPIRED]).sum()),
    }
