"""Splitwise borrows machines where a pool is past its bound, and takes them for their own work again."""

from __future__ import annotations

import numpy as np

from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from policies.splitwise import Splitwise
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL, RowTiming

TIMING = RowTiming({"gpu": StepRow(base_s=1.0, per_prefill_token_s=0.25)})  # of tests/engine/test_layerwise.py
ENGINE = EngineConfig(block_tokens=1, watermark=0.0, kv_fraction=1.0, kv_tokens=40)


def play(policy: Splitwise, rows: list[tuple[float, int, int]], *pools: tuple[str, int]) -> Result:
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    workload = Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs))
    specs = tuple(PoolSpec(role, role, count, server("gpu", 1000)) for role, count in pools)  # type: ignore[arg-type]
    result = simulate(workload, ClusterSpec(specs, LinkSpec(2.0**20)), MODEL, TIMING, ENGINE, policy)
    check_result(result)
    return result


def test_each_phase_has_its_machines_while_there_is_room() -> None:
    rows = [(0.0, 4, 3), (0.0, 4, 3), (0.0, 8, 3)]
    requests = play(Splitwise(prompt_bound=100), rows, ("prefill", 2), ("decode", 1)).requests
    assert requests["prefill_instance"].tolist() == [0, 1, 0]
    assert requests["decode_instance"].tolist() == [2, 2, 2]


def test_a_prompt_past_the_bound_borrows_a_token_machine_and_decodes_there() -> None:
    """Request 3 comes when all is done, and finds the prompt machine's queue empty."""
    rows = [(0.0, 8, 2), (0.0, 8, 2), (0.0, 8, 2), (30.0, 8, 2)]
    requests = play(Splitwise(prompt_bound=10), rows, ("prefill", 1), ("decode", 2)).requests
    assert requests["prefill_instance"].tolist() == [0, 1, 2, 0]
    assert requests["decode_instance"].tolist()[:3] != [0, 0, 0]
    assert requests["decode_instance"].tolist()[1:3] == [1, 2]
    assert requests["decode_instance"][3] in (1, 2)


def test_mixed_machines_come_before_those_of_the_other_pool() -> None:
    rows = [(0.0, 8, 2), (0.0, 8, 2), (0.0, 2, 2)]
    requests = play(Splitwise(prompt_bound=10), rows, ("prefill", 1), ("decode", 1), ("mixed", 1)).requests
    assert requests["prefill_instance"].tolist() == [0, 2, 0]
    assert requests["decode_instance"].tolist() == [1, 2, 1]


def test_kv_past_the_bound_stays_with_prompt_machines() -> None:
    """A token machine of 40 tokens takes 20 of KV, half of it; what comes then decodes on a prompt machine."""
    rows = [(0.0, 16, 20), (0.0, 16, 4)]
    requests = play(Splitwise(token_bound=0.5), rows, ("prefill", 2), ("decode", 1)).requests
    assert sorted(requests["decode_instance"].tolist())[1] == 2
    assert sorted(requests["decode_instance"].tolist())[0] in (0, 1)
