"""What distinguishes FastServe from continuous batching: who has run for long makes room for who comes, and a long
prompt does not even begin among the short ones.

An iteration lasts 1 s and a prompt token as long again where `token_s` says so; there is one seat, and quanta are of 2,
4, 8, ... s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.policy import Policy
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from policies.continuous import Continuous
from policies.fastserve import FastServe
from tests.helpers.bounds import server
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL, RowTiming

GPU = server("gpu", 1000)
ENGINES = pytest.mark.parametrize("engine", ["compiled", "reference"])
Rows = Sequence[tuple[float, int, int]]


def play(policy: Policy, rows: Rows, engine: str = "compiled", token_s: float = 0.0, kv_tokens: int = 100) -> Result:
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    workload = Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs))
    config = EngineConfig(
        block_tokens=1,
        watermark=0.0,
        kv_tokens=kv_tokens,
        token_budget=100,
        max_batch=1,
        implementation=engine,  # type: ignore[arg-type]
    )
    row = StepRow(base_s=1.0, per_prefill_token_s=token_s)
    spec = ClusterSpec((PoolSpec("all", "mixed", 1, GPU, batching="prefill_first"),), LinkSpec(1e9))
    result = simulate(workload, spec, MODEL, RowTiming({"gpu": row}), config, policy)
    check_result(result)
    return result


@ENGINES
def test_a_long_output_makes_room_for_a_short_one(engine: str) -> None:
    """Request 0 has used its 2 s when request 1 comes, at 4.5 s: it falls to the second level, leaves the seat at 5 s
    with its KV, and goes on when request 1 has ended, at 7 s.
    """
    rows = [(0, 2, 12), (4.5, 2, 2)]
    result = play(FastServe(quantum_s=2.0), rows, engine)
    assert token_times(result) == [[1, 2, 3, 4, 5, *range(8, 15)], [6, 7]]
    assert result.instances["prefill_tokens"].tolist() == [4]
    assert token_times(play(Continuous(), rows, engine))[1] == [13, 14]


@ENGINES
def test_a_long_prompt_skips_the_levels_above_its_first_iteration(engine: str) -> None:
    """Request 0 has run for 3 of the 4 s of the second level when the prompt of 6 tokens comes, at 5.5 s. That takes
    7 s, so it joins the third level, and waits until request 0 has fallen there too, behind it, at 8 s.
    """
    rows = [(0, 1, 12), (5.5, 6, 2)]
    result = play(FastServe(quantum_s=2.0), rows, engine, token_s=1.0)
    tokens = token_times(result)
    assert tokens[0][:5] == [2, 3, 4, 5, 6]
    assert tokens[1][0] > 13
    short = token_times(play(FastServe(quantum_s=2.0), [(0, 1, 12), (5.5, 1, 2)], engine, token_s=1.0))
    assert short[1] == [8, 9]


def test_one_that_waits_for_long_comes_to_the_first_level() -> None:
    """Short requests come one after another, and keep the long one out; after 6 s without a turn it
    comes to the first level, behind those that wait there.
    """
    rows = [(0, 1, 9), *((2.5 + k, 1, 1) for k in range(20))]
    patient = token_times(play(FastServe(quantum_s=2.0, starvation_s=1e9), rows))[0]
    lifted = token_times(play(FastServe(quantum_s=2.0, starvation_s=6.0), rows))[0]
    assert max(np.diff(lifted)) <= 12 < 20 < max(np.diff(patient))


def test_kv_leaves_where_the_batch_lacks_room() -> None:
    """Request 0 has 6 of the 12 blocks when request 1 comes, which needs 8: its KV is swapped out, and comes back."""
    result = play(FastServe(quantum_s=2.0), [(0, 2, 6), (4.5, 8, 2)], kv_tokens=12)
    assert result.requests["preemptions"].tolist() == [1, 0]
    assert result.instances["prefill_tokens"].tolist() == [10]
    assert token_times(result)[1] == [pytest.approx(6, abs=0.01), pytest.approx(7, abs=0.01)]
