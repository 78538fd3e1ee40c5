"""Bounds of a trace's values."""

from __future__ import annotations

from typing import Annotated, Any

from framework.checks import at_most, require_positive, up_to

MOST_REQUESTS = 10**8
MAX_TOKENS = 10**9  # most tokens of a request


def require_rate(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a number of requests per second that some cluster could receive."""
    require_positive(name, value)
    at_most(1e6)(name, value)


Requests = Annotated[int, up_to(MOST_REQUESTS)]
Rate = Annotated[float, require_rate]
