"""How many distinct prompts a client sent, by the quantiles of their lengths.

The client sends its prompts in turn, so each of n prompts comes floor(N / n) or ceil(N / n) times in N requests. A
quantile that lies between two lengths says exactly how many requests are at most as long as the shorter one: these are
all requests of some of the prompts. A stated n for which that number is impossible was not sent.

kubernetes-sigs/inference-perf had the keys `num_groups` and `num_prompts_per_group` (`SharedPrefix` in its config.py,
10 each by default) before it also took `num_unique_system_prompts` and `num_users_per_system_prompt`. A version that
does not know the latter leaves them out, and sends ten groups of ten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

DEFAULT = (10, 10)  # groups, and prompts of each
SHARES = {"p10": 0.1, "median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_SAME = 1e-6  # of a token


def sent_prompts(stated: tuple[int, int], requests: int, quantiles: Mapping[str, float]) -> tuple[int, int]:
    """The groups and the prompts of each that were sent: `stated`, or `DEFAULT` if that fits the quantiles better.

    `quantiles` are those of the prompts' lengths in tokens over all `requests`, by their names in SHARES.
    """
    counts = [requests_up_to(SHARES[name], requests, value) for name, value in quantiles.items()]
    known = [count for count in counts if count is not None]
    return min(stated, DEFAULT, key=lambda one: sum(misfit(count, one[0] * one[1], requests) for count in known))


def requests_up_to(share: float, requests: int, value: float) -> int | None:
    """How many of `requests` are at most as long as the length below the quantile `value`; None: it is a length.

    The quantile at `share` is interpolated between the two requests next to rank share * (requests - 1), as by NumPy.
    """
    if abs(value - round(value)) < _SAME:
        return None
    return math.floor(share * (requests - 1)) + 1


def misfit(count: int, prompts: int, requests: int) -> int:
    """How far `count` of `requests` are from all requests of some of `prompts` prompts that are sent in turn."""
    each, once_more = divmod(requests, prompts)
    sums = ((k * each + max(0, k - (prompts - once_more)), k * each + min(k, once_more)) for k in range(prompts + 1))
    return min(max(least - count, count - most, 0) for least, most in sums)
