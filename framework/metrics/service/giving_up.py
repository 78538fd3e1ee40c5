"""Clients that gave up, and requests that they sent again."""

from __future__ import annotations

from typing import Any

import polars as pl

from framework.codes import REASON_GAVE_UP, REASONS


def giving_up(requests: pl.DataFrame) -> dict[str, Any]:
    """`gave_up`: requests of a table (`request_table`) that ended so; `sent_again`: how often any was sent again.

    Nothing where clients do not give up.
    """
    if "attempts" not in requests.columns:
        return {}
    return {
        "gave_up": int((requests["reason"] == REASONS[REASON_GAVE_UP]).sum()),
        "sent_again": int((requests["attempts"] - 1).clip(0).sum()),
    }
