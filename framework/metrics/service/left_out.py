"""How the requests of a warm-up and a cool-down fared, which no figure counts.

A policy that knew of them could serve them badly, so that those counted find a system which is emptier than the load
asks for. Nothing is gained by that unseen: what the SLO was to them stands beside what it was to the others.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from framework.metrics.service.overdue import exceeds


def left_out(requests: pl.DataFrame) -> dict[str, Any]:
    """`uncounted_attainment`: the share of the requests left out that kept the SLO; `uncounted_is_worse`: whether that
    is less than the share of those counted by more than chance (`exceeds`). Nothing where all requests of a table
    (`request_table`) are counted.
    """
    if "counted" not in requests.columns:
        return {}
    good, others = requests.filter("counted")["good"], requests.filter(~pl.col("counted"))["good"]
    kept, is_worse = int(others.sum()), exceeds((int(good.sum()), len(good)), (int(others.sum()), len(others)))
    return {"uncounted_attainment": kept / len(others), "uncounted_is_worse": is_worse}
