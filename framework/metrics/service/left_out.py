"""How the requests of a warm-up and a cool-down fared, which no figure counts.

A policy that knew of them could serve them badly, so that those counted find a system which is emptier than the load
asks for. Nothing is gained by that unseen: what the SLO was to them stands beside what it was to the others.
"""

from __future__ import annotations

import math
from typing import Any

import polars as pl

_ERRORS = 1.96  # standard errors: by chance one run in forty has such a difference


def left_out(requests: pl.DataFrame) -> dict[str, Any]:
    """`uncounted_attainment`: the share of the requests left out that kept the SLO; `uncounted_is_worse`: whether that
    is less than the share of those counted by more than chance (the pooled test of two shares, as if requests were
    independent). Nothing where all requests of a table (`request_table`) are counted.
    """
    if "counted" not in requests.columns:
        return {}
    good, others = requests.filter("counted")["good"], requests.filter(~pl.col("counted"))["good"]
    kept, share, pooled = int(others.sum()) / len(others), int(good.sum()) / len(good), requests["good"].mean()
    assert isinstance(pooled, float)
    error = math.sqrt(pooled * (1 - pooled) * (1 / len(good) + 1 / len(others)))
    return {"uncounted_attainment": kept, "uncounted_is_worse": share - kept > _ERRORS * error}
