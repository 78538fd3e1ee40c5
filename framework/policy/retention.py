"""An answer about the KV of a call that has ended, checked and turned into numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framework.codes import LOWEST_RANK, NO_RANK, RANKS
from framework.policy.actions import Retain
from framework.policy.values import as_floats, index


def retention_of(answer: Any, error: Callable[[str], Exception]) -> tuple[float, int]:
    """The TTL of a pin, seconds, 0: there is none; and the rank of the blocks. Raises `error` of what is wrong."""
    if answer is None:
        return 0.0, NO_RANK
    if not isinstance(answer, Retain):
        raise error("return Retain(ttl_s, rank), or None")
    ttl_s, rank, last = as_floats(answer.ttl_s), index(answer.rank), LOWEST_RANK + RANKS - 1
    if ttl_s is None or ttl_s.shape != () or not ttl_s >= 0:
        raise error("ttl_s is 0 or more seconds")
    if rank is None or not LOWEST_RANK <= rank <= last:
        raise error(f"a rank is from {LOWEST_RANK} to {last}")
    return float(ttl_s), rank
