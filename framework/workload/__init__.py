"""The requests of a run, and the programs that they belong to."""

from framework.workload.blocks import block_names, dense, filled_blocks, ids_in_order
from framework.workload.requests import (
    Workload,
    at_rate,
    chosen,
    consecutive,
    first,
    longest_tokens,
    period_s,
    rate_rps,
    read_only,
    repeated,
    small,
    within_context,
)

__all__ = [
    "Workload",
    "at_rate",
    "block_names",
    "chosen",
    "consecutive",
    "dense",
    "filled_blocks",
    "first",
    "ids_in_order",
    "longest_tokens",
    "period_s",
    "rate_rps",
    "read_only",
    "repeated",
    "small",
    "within_context",
]
