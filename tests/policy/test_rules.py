"""Queue orders and placement rules, seen in the order in which one instance serves a burst."""

from __future__ import annotations

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.policy import decision, decode_least_kv
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import disaggregated, mixed
from framework.timing.affine import Affine
from framework.workload import Workload
from policies.chunked import Chunked
from policies.distserve import DistServe
from predictors.oracle import Oracle
from tests.helpers.results import GPU, MODEL

PROMPTS = [900, 300, 700, 100, 500]
OUTPUTS = [2, 9, 5, 7, 3]


def served(order: str, priority: list[int] | None = None) -> list[int]:
    """Requests in the order in which their prefill starts, after one that keeps the only seat busy for a while."""
    workload = Workload(
        arrival_s=np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        input_tokens=np.array([64, *PROMPTS]),
        output_tokens=np.array([20, *OUTPUTS]),
        priority=np.array([0, *(priority or [0] * 5)]),
    )
    engine = EngineConfig(token_budget=4096, max_batch=1, kv_tokens=8192)
    result = simulate(workload, mixed(1, GPU), MODEL, Affine(base_s=1.0), engine, Chunked(order=order), Oracle())
    check_result(result)
    return [int(r) - 1 for r in np.argsort(result.requests["start_s"])[1:]]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fcfs", [0, 1, 2, 3, 4]),
        ("shortest_prompt", [3, 1, 4, 2, 0]),
        ("shortest_predicted", [0, 4, 2, 3, 1]),
    ],
)
def test_orders(order: str, expected: list[int]) -> None:
    assert served(order) == expected


def test_aging_lets_an_old_long_prompt_pass_a_young_short_one() -> None:
    workload = Workload(
        arrival_s=np.array([0.0, 1.0, 60.0]),
        input_tokens=np.array([64, 900, 300]),
        output_tokens=np.array([100, 1, 1]),
    )
    engine = EngineConfig(token_budget=4096, max_batch=1, kv_tokens=8192)
    policies = (Chunked(order="shortest_prompt"), Chunked(order="shortest_prompt_aged"))
    firsts = []
    for policy in policies:
        result = simulate(workload, mixed(1, GPU), MODEL, Affine(base_s=1.0), engine, policy)
        firsts.append(int(np.argmin(result.requests["start_s"][1:])) + 1)
    assert firsts == [2, 1]  # 900 + 15 * 1 < 300 + 15 * 60


def test_priority_comes_first() -> None:
    assert served("highest_priority", [1, 5, 2, 4, 3]) == [1, 3, 4, 2, 0]


def test_unknown_rules_are_listed() -> None:
    with pytest.raises(InputError, match=r"policy\.order must be one of fcfs, shortest_prompt.*'lifo'"):
        Chunked(order="lifo")
    with pytest.raises(InputError, match=r"policy\.placement must be one of round_robin, least_kv"):
        DistServe(placement="nowhere")


def placed(rule: object) -> Result:
    """A run on six decode instances, where this rule places many requests of unlike lengths."""
    drawn = np.random.default_rng(3)
    workload = Workload(
        arrival_s=np.sort(drawn.uniform(0.0, 60.0, 600)),
        input_tokens=drawn.integers(1, 400, 600),
        output_tokens=drawn.integers(1, 200, 600),
    )
    policy = DistServe()
    vars(policy)["route_decode"] = rule
    timing = Affine(base_s=0.01, per_prefill_token_s=1e-5, per_context_token_s=1e-6)
    result = simulate(workload, disaggregated(2, 6, GPU), MODEL, timing, EngineConfig(kv_tokens=8192), policy)
    check_result(result)
    return result


def test_the_engines_way_to_the_least_kv_is_that_of_the_rule() -> None:
    assert decode_least_kv.index == "least_kv"
    direct, asked = placed(decode_least_kv), placed(decision(observes=True)(decode_least_kv.function))
    assert len(set(asked.requests["decode_instance"].tolist())) >= 6
    assert direct.requests.tobytes() == asked.requests.tobytes()
    assert direct.step_log.tobytes() == asked.step_log.tobytes()
