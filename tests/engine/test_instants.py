"""The rule of one instant in both engines: all that is due at a time comes about before a step begins at that time.

A step lasts 1 s, and 0.25 s more for each prompt token that it computes; a token of KV has 16 bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.load import Open
from framework.metrics.invariants import check_result
from framework.policy import Disaggregated, Plan, Policy
from framework.policy.actions import SetTokenBudget
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.bounds import server
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL, RowTiming

COMPILED = EngineConfig(block_tokens=1, watermark=0.0, kv_fraction=1.0, kv_tokens=400, token_budget=64)
TIMING = RowTiming({"gpu": StepRow(base_s=1.0, per_prefill_token_s=0.25)})


@pytest.fixture(params=["compiled", "reference"])
def engine(request: pytest.FixtureRequest) -> EngineConfig:
    return replace(COMPILED, implementation=request.param)


def trace(*rows: tuple[float, int, int], **columns: Any) -> Workload:
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    return Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs), **columns)


def mixed(count: int) -> ClusterSpec:
    return ClusterSpec((PoolSpec("all", "mixed", count, server("gpu", 1000)),), LinkSpec(16.0))


def play(engine: EngineConfig, workload: Workload, spec: ClusterSpec, policy: Policy | None = None) -> Result:
    result = simulate(workload, spec, MODEL, TIMING, engine, policy or Policy(), load=Open())
    check_result(result)
    return result


def test_all_that_arrive_at_an_idle_instance_share_a_step(engine: EngineConfig) -> None:
    """8 prompts of 4 tokens: 1 + 8 * 4 / 4 = 9 s, not 2 s for the first and 1 + 28 / 4 = 8 s more for the others."""
    result = play(engine, trace(*[(0.0, 4, 2)] * 8), mixed(1))
    assert token_times(result) == [[9.0, 10.0]] * 8


def test_an_arrival_at_the_end_of_a_step_is_in_the_next_one(engine: EngineConfig) -> None:
    """Steps: [0, 2] the first prompt; [2, 4] its decode and the prompt that arrives at 2; [4, 5] both decode."""
    result = play(engine, trace((0.0, 4, 3), (2.0, 4, 2)), mixed(1))
    assert token_times(result) == [[2.0, 4.0, 5.0], [4.0, 5.0]]


def test_so_it_is_between_two_of_many_equal_steps(engine: EngineConfig) -> None:
    """Tokens at 2, 3, 4, 5; the prompt that arrives at 5 is in the step [5, 7], that of 7.5 in [8, 10]."""
    result = play(engine, trace((0.0, 4, 8), (5.0, 4, 3), (7.5, 4, 1)), mixed(1))
    assert token_times(result) == [[2.0, 3.0, 4.0, 5.0, 7.0, 8.0, 10.0, 11.0], [7.0, 8.0, 10.0], [10.0]]


def test_a_turn_without_time_to_think_is_in_the_step_that_begins_when_the_turn_before_ends(
    engine: EngineConfig,
) -> None:
    """The first turn ends at 2; the second, of 4 tokens, is in [2, 4] with the decode of the other session."""
    sessions = {"session_id": np.array([0, 1, 0]), "turn": np.array([0, 0, 1]), "previous": np.array([-1, -1, 0])}
    workload = trace((0.0, 2, 1), (0.0, 2, 3), (0.0, 4, 1), think_s=np.zeros(3), **sessions)
    assert token_times(play(engine, workload, mixed(1))) == [[2.0], [2.0, 4.0, 5.0], [4.0]]


def test_a_copy_that_ends_with_a_step_joins_the_next_one(engine: EngineConfig) -> None:
    """Prompts of 4 tokens are prefilled in [0, 2] and [2, 4], and copied, 64 bytes at 64 bytes/s, in [2, 3] and [4, 5].

    The first decodes in [3, 4], [4, 5], [5, 6]; the second joins the last of these.
    """
    pools = tuple(PoolSpec(role, role, 1, server("gpu", 1000)) for role in ("prefill", "decode"))
    workload = trace((0.0, 4, 4), (2.0, 4, 2))
    result = play(engine, workload, ClusterSpec(pools, LinkSpec(64.0)), Disaggregated())
    assert result.requests["transfer_end_s"].tolist() == [3.0, 5.0]
    assert token_times(result) == [[2.0, 4.0, 5.0, 6.0], [4.0, 6.0]]


class Narrow(Policy):
    """From the first tick, at 2 s, on a step has 3 tokens."""

    tick_s = 2.0

    def on_tick(self, cluster: Cluster) -> list[SetTokenBudget]:
        return [SetTokenBudget(0, 3)]


def test_what_a_tick_decides_holds_for_the_step_that_begins_then(engine: EngineConfig) -> None:
    """[0, 2] the first prompt; from 2 on 3 tokens a step: a decode and 2 of the 4 prompt tokens, 1.5 s, twice."""
    result = play(engine, trace((0.0, 4, 3), (1.0, 4, 1)), mixed(1), Narrow())
    assert token_times(result) == [[2.0, 3.5, 5.0], [5.0]]


class Noted(Policy):
    """Sends requests to the last instance first, and notes when which instance forms a step, and what waits there."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int, int]] = []

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return 1 - request.id % 2

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        self.asked.append((cluster.now_s, instance, int(cluster.instances.queued[instance])))
        return Plan(64, "decode_first")


def test_instances_schedule_in_the_order_of_their_numbers(engine: EngineConfig) -> None:
    """Two prompts each at 0, instance 1 being the first to get one; each is asked once, about both of its prompts."""
    policy = Noted()
    play(engine, trace(*[(0.0, 4, 1)] * 4), mixed(2), policy)
    assert policy.asked[:2] == [(0.0, 0, 2), (0.0, 1, 2)]


class Watching(Policy):
    """At the arrival of the last request: tokens and free blocks of instance 0, between two of its steps."""

    seen: tuple[int, int] = (-1, -1)

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        if request.id == 1:
            self.seen = int(cluster.instances.kv_tokens[0]), int(cluster.instances.free_blocks[0])
        return request.id


def test_between_two_steps_the_blocks_of_the_next_one_are_free(engine: EngineConfig) -> None:
    """At 5, after tokens at 2, 3, 4, 5, request 0 holds 4 + 3 of 400 tokens; its next step takes one more block."""
    policy = Watching()
    play(engine, trace((0.0, 4, 8), (5.0, 4, 1)), mixed(2), policy)
    assert policy.seen == (7, 393)
