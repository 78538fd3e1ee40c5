"""What distinguishes LMetric from routing by load, or by the cache, alone: it weighs one against the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.policy import Cluster, Policy, Request
from framework.policy.rules import PREFILL_RULES
from framework.workload import consecutive
from policies.lmetric import LMetric
from tests.helpers.by_hand import fleet, play

SHARED = [1, 2, 3, 4]  # blocks of 16 tokens


class OnLast(LMetric):
    """All but the last request are placed on instance 0."""

    def __init__(self, last: int, rule: str = "") -> None:
        self.last = last
        self.rule = PREFILL_RULES[rule].function if rule else None

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        if request.id < self.last:
            return 0
        if self.rule is None:
            return super().route_prefill(request, cluster)
        return int(self.rule(request.id, cluster.view, np.zeros(0), np.zeros(16)))


def placed(running: int, rule: str = "", implementation: str = "compiled") -> int:
    """Where a prompt goes that instance 0 has cached, while so many requests decode there and none on the other."""
    rows = [(0.0, 64, 1), *[(2.0, 8, 40)] * running, (4.5, 64, 2)]
    ids = [SHARED, *[[100 + k] for k in range(running)], SHARED]
    columns = {"hash_ids": np.concatenate(ids), "hash_spans": consecutive([len(row) for row in ids])}
    policy: Policy = OnLast(running + 1, rule)
    options: dict[str, Any] = {"prefix_cache": True, "kv_tokens": 1000, "implementation": implementation}
    result = play(policy, rows, fleet(mixed=2), columns=columns | {"hash_block_tokens": 16}, **options)
    return int(result.requests["prefill_instance"][-1])


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
def test_the_cache_is_worth_some_requests_and_no_more(implementation: str) -> None:
    """16 tokens are new on instance 0, for the last block is always computed, and 64 on instance 1: 16 x 3 < 64 x 1 <
    16 x 5. The queues are empty, so that by these alone the prompt goes to instance 1.
    """
    assert placed(2, implementation=implementation) == 0
    assert placed(4, implementation=implementation) == 1
    assert placed(2, "least_queued") == placed(4, "least_queued") == 1
