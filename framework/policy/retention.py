"""An answer about the KV of a call that has ended, checked and turned into numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from framework.codes import LOWEST_RANK, NO_RANK, RANKS
from framework.policy.actions import Retain
from framework.policy.hooks import NO_INSTANCE
from framework.policy.values import as_floats, index


class Retention(NamedTuple):
    """What becomes of KV, in numbers: the TTL of a pin, seconds, 0: there is none; the rank of the blocks; the seconds
    until they are prefetched, None: they are not; and the instance to which they move, -1: they stay.
    """

    ttl_s: float = 0.0
    rank: int = NO_RANK
    prefetch_s: float | None = None
    move_to: int = NO_INSTANCE


def retention_of(answer: Any, instances: int, error: Callable[[str], Exception]) -> Retention:
    """An answer in numbers, of so many `instances`. Raises `error` of what is wrong."""
    if answer is None:
        return Retention()
    if not isinstance(answer, Retain):
        raise error("return Retain(ttl_s, rank), or None")
    ttl_s, rank, last = as_floats(answer.ttl_s), index(answer.rank), LOWEST_RANK + RANKS - 1
    if ttl_s is None or ttl_s.shape != () or not ttl_s >= 0:
        raise error("ttl_s is 0 or more seconds")
    if rank is None or not LOWEST_RANK <= rank <= last:
        raise error(f"a rank is from {LOWEST_RANK} to {last}")
    move_to = NO_INSTANCE if answer.move_to is None else index(answer.move_to)
    if move_to is None or (answer.move_to is not None and not 0 <= move_to < instances):
        raise error(f"move_to is an instance, from 0 to {instances - 1}, or None")
    if answer.prefetch_s is None:
        return Retention(float(ttl_s), rank, None, move_to)
    if answer.move_to is not None:
        raise error("prefetch_s and move_to exclude each other; the hook `prefetch` says where")
    prefetch_s = as_floats(answer.prefetch_s)
    if prefetch_s is None or prefetch_s.shape != () or not 0 <= prefetch_s < math.inf:
        raise error("prefetch_s is 0 or more seconds, or None")
    return Retention(float(ttl_s), rank, float(prefetch_s))
