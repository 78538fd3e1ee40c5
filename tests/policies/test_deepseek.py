"""DeepSeek's balancers, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.policy import lay_out
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.parallelism import Parallelism
from framework.workload import Workload
from policies.deepseek import DeepSeek
from servelab.testing.worlds import GPU, MODEL, TIMING

UNITS = ClusterSpec((PoolSpec("p", "prefill", 2, GPU), PoolSpec("d", "decode", 2, GPU)), LinkSpec(2.0**24))


def served(prompts: list[int], gap_s: float) -> Result:
    """Requests of two tokens, so long apart."""
    count = len(prompts)
    workload = Workload(gap_s * np.arange(count, dtype=np.float64), np.array(prompts), np.full(count, 2))
    engine = EngineConfig(kv_tokens=65536)
    result = simulate(workload, UNITS, MODEL, TIMING, engine, DeepSeek())
    check_result(result)
    return result


def test_a_prompt_goes_where_neither_tokens_nor_attention_pile_up() -> None:
    # 400 | 200 + 200: as many tokens, but 160 and 80 thousand pairs: the last one joins the short ones.
    assert served([400, 200, 200, 100], 0.0).requests["prefill_instance"].tolist() == [0, 1, 1, 1]


def test_what_has_been_prefilled_weighs_no_more() -> None:
    assert served([3000, 10, 10], 30.0).requests["prefill_instance"].tolist() == [0, 0, 0]


def test_a_decode_goes_where_neither_kv_nor_requests_pile_up() -> None:
    placed = served([3000, 8, 8, 8], 0.0).requests["decode_instance"].tolist()
    assert sorted(set(placed)) == [0 + 2, 1 + 2]


def test_chunks_have_alike_attention() -> None:
    parallel = PoolSpec("p", "prefill", 2, GPU, Parallelism(dp=4), rank_choice="kv")
    pools = lay_out(DeepSeek(attention_tokens=4096), replace(UNITS, pools=(parallel, UNITS.pools[1]))).pools
    schedule = pools[0].chunk_schedule
    assert schedule is not None
    assert schedule.sizes[0] == 4096
    for stage, size in enumerate(schedule.sizes[:32]):
        done = stage * schedule.stage_tokens
        assert size * (done + size / 2) == pytest.approx(4096**2 / 2, rel=0.02)
    assert pools[1].chunk_schedule is None
    assert lay_out(DeepSeek(attention_tokens=None), replace(UNITS, pools=(parallel, UNITS.pools[1]))).pools[
        0
    ] == replace(parallel, batching="decode_first")
    assert lay_out(DeepSeek(), UNITS).pools[0].chunk_schedule is None


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"policy\.attention_tokens"):
        DeepSeek(attention_tokens=0)
