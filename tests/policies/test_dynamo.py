"""Draws by temperature and overloaded workers, as NVIDIA Dynamo documents them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.policy.view import Cluster, Request
from framework.result import FINISHED
from framework.simulate import simulate
from framework.workload import Workload
from policies.dynamo import Dynamo
from servelab.testing.worlds import CLUSTERS, MODEL, SCENARIOS, TIMING

COSTS = np.array([0.0, 18.0, 10.0, 11.0])  # the three of the documentation's example, and a worker that is not asked
WORKERS = np.array([1, 2, 3])
STORM = Workload(np.linspace(0.0, 0.06, 60, dtype=np.float64), np.full(60, 60), np.full(60, 40))


def drawn(temperature: float, count: int = 1) -> list[int]:
    policy = Dynamo(temperature=temperature, seed=1)
    return [policy._drawn(COSTS, WORKERS) for _ in range(count)]


def test_the_cheapest_worker_is_the_documented_one() -> None:
    assert drawn(0.0) == [2]


@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_shares_of_draws_are_a_softmax_of_costs_over_their_range(temperature: float) -> None:
    weights = np.exp(-COSTS[WORKERS] / (8.0 * temperature))
    found = np.bincount(drawn(temperature, 20_000), minlength=4)[WORKERS] / 20_000
    assert found == pytest.approx(weights / weights.sum(), abs=0.015)


def test_workers_of_one_cost_are_drawn_alike() -> None:
    policy = Dynamo(temperature=0.5)
    found = np.bincount([policy._drawn(np.ones(4), WORKERS) for _ in range(3_000)], minlength=4)
    assert found[0] == 0
    assert found[WORKERS] / 3_000 == pytest.approx(1 / 3, abs=0.04)


class Noting(Dynamo):
    """Notes how loaded the chosen worker was, and for each rejection how loaded the least loaded one was."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(local_tokens=1000, **settings)
        self.chosen: list[tuple[int, float]] = []
        self.refused: list[tuple[int, float]] = []

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        answer = super().admit(request, cluster)
        if answer is not True:
            tokens, used = loads(cluster)
            self.refused.append((int(tokens.min()), float(used.min())))
        return answer

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        worker = super().route_prefill(request, cluster)
        tokens, used = loads(cluster)
        self.chosen.append((int(tokens[worker]), float(used[worker])))
        return worker


def loads(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Tokens to prefill and the share of KV blocks in use, of all workers; infinite where none decodes."""
    there = cluster.instances
    used = 1.0 - (there.free_blocks + there.evictable_blocks) / there.total_blocks
    others = np.setdiff1d(there.ids, cluster.decode.ids)
    tokens = there.queued_tokens.astype(np.float64)
    tokens[others] = used[others] = np.inf
    return tokens, used


@pytest.mark.parametrize(
    ("settings", "which", "most"), [({"busy_tokens": 100}, 0, 100), ({"busy_blocks": 0.003}, 1, 0.003)]
)
def test_what_finds_all_workers_overloaded_is_rejected(settings: dict[str, Any], which: int, most: float) -> None:
    policy = Noting(**settings)
    scenario = SCENARIOS["roomy"]
    result = simulate(STORM, CLUSTERS["disaggregated"], MODEL, TIMING, scenario.engine, policy)
    served = result.requests["state"] == FINISHED
    assert 5 < served.sum() < 55
    assert len(policy.refused) == (~served).sum()
    assert min(load[which] for load in policy.refused) > most
    assert max(load[which] for load in policy.chosen) <= most


def test_nothing_is_rejected_by_default() -> None:
    result = simulate(STORM, CLUSTERS["disaggregated"], MODEL, TIMING, SCENARIOS["roomy"].engine, Noting())
    assert (result.requests["state"] == FINISHED).all()
