"""Seats and token budget are counted by data-parallel rank, as servers count them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig, Implementation
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, RankChoice
from framework.system.parallelism import Parallelism
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers import warm
from tests.helpers.bounds import server
from tests.helpers.processes import run
from tests.helpers.scenarios import MODEL, RowTiming

PROMPT = 4


def on_two_ranks(rank_choice: RankChoice, implementation: Implementation) -> Result:
    """Four requests at once on one instance of two ranks, each with a seat and a budget of one prompt."""
    workload = Workload(np.zeros(4), np.full(4, PROMPT), np.full(4, 8))
    pool = PoolSpec("all", "mixed", 1, server("gpu", 1000), Parallelism(dp=2), rank_choice=rank_choice)
    engine = EngineConfig(
        token_budget=PROMPT, max_batch=1, block_tokens=1, kv_fraction=1.0, implementation=implementation
    )
    timing = RowTiming({"gpu": StepRow(base_s=1.0)})
    return simulate(workload, ClusterSpec((pool,), LinkSpec(8.0, 1.0)), MODEL, timing, engine)


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
@pytest.mark.parametrize("rank_choice", ["even", "kv", "requests", "round_robin"])
def test_each_rank_has_its_seats_and_budget(rank_choice: RankChoice, implementation: Implementation) -> None:
    result = on_two_ranks(rank_choice, implementation)
    assert result.step_log["batch"].max() == 2
    assert result.step_log["prefill_tokens"].max() == 2 * PROMPT
    assert np.unique(result.requests["first_token_s"]).tolist() == [1.0, 9.0]


def test_a_run_says_what_an_instance_of_several_ranks_has(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        "policy=chunked", "trace=synthetic", "trace.requests=20", "cluster.instances=1", "cluster.dp=2",
        "timing=roofline", "engine.max_batch=8", python=str(warm.path() / "python"),
    )  # fmt: skip
    assert "has 2 data-parallel ranks" in finished.stderr
    assert "16 seats and 4,096 tokens a step in all" in finished.stderr
