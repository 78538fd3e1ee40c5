"""The service of requests of a warm-up and a cool-down, which no figure counts.

A policy that knew these requests could serve them badly, and so empty the system for the counted ones. These figures
show that: they compare how the SLO was kept inside and outside the window.
"""

from __future__ import annotations

import math
from typing import Any

import polars as pl

_ERRORS = 1.96  # standard errors: chance alone exceeds them in one run in forty


def left_out(requests: pl.DataFrame) -> dict[str, Any]:
    """`uncounted_attainment`: the share of the uncounted requests that kept the SLO. `uncounted_is_worse`: whether it
    is below the share of the counted ones by more than chance (the pooled test of two shares, as if requests were
    independent). No keys if all requests of a table (`request_table`) count.
    """
    if "counted" not in requests.columns:
        return {}
    good, others = requests.filter("counted")["good"], requests.filter(~pl.col("counted"))["good"]
    kept, share, pooled = int(others.sum()) / len(others), int(good.sum()) / len(good), requests["good"].mean()
    assert isinstance(pooled, float)
    error = math.sqrt(pooled * (1 - pooled) * (1 / len(good) + 1 / len(others)))
    return {"uncounted_attainment": kept, "uncounted_is_worse": share - kept > _ERRORS * error}
