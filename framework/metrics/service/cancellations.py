"""Requests that were cancelled, and those that their clients gave up and sent again."""

from __future__ import annotations

from typing import Any

import polars as pl

from framework.codes import REASON_GAVE_UP, REASONS


def cancellations(requests: pl.DataFrame) -> dict[str, Any]:
    """Of a table of requests (`request_table`): `cancelled`, if any was; where clients give up `gave_up`, requests that
    ended so, and `sent_again`, how often any was sent again.
    """
    found, cancelled = {}, int((requests["state"] == "cancelled").sum())
    if cancelled:
        found["cancelled"] = cancelled
    if "attempts" in requests.columns:
        found["gave_up"] = int((requests["reason"] == REASONS[REASON_GAVE_UP]).sum())
        found["sent_again"] = int((requests["attempts"] - 1).clip(0).sum())
    return found
