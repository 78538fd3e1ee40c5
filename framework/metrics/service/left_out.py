"""The service of requests of a warm-up and a cool-down, which no figure counts.

A policy that knew these requests could serve them badly, and so empty the system for the counted ones. These figures
show that: they compare how the SLO was kept inside and outside the window.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from framework.metrics.service.overdue import exceeds


def left_out(requests: pl.DataFrame) -> dict[str, Any]:
    """`uncounted_attainment`: the share of the uncounted requests that kept the SLO. `uncounted_is_worse`: whether it
    is below the share of the counted ones by more than chance (`exceeds`). No keys if all requests of a table
    (`request_table`) count.
    """
    if "counted" not in requests.columns:
        return {}
    good, others = requests.filter("counted")["good"], requests.filter(~pl.col("counted"))["good"]
    kept, is_worse = int(others.sum()), exceeds((int(good.sum()), len(good)), (int(others.sum()), len(others)))
    return {"uncounted_attainment": kept / len(others), "uncounted_is_worse": is_worse}
