"""Ways to form steps and to hold KV, worked out by hand in both engines. A step lasts 1 s, a block is 1 token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.load import Open
from framework.policy import Aggregated, Plan
from framework.policy.view import Cluster
from framework.result import FINISHED
from framework.simulate import simulate
from framework.system.cluster import ChunkSchedule, ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from policies.chunked import Chunked, Stages
from policies.orca import Orca
from policies.static import Static
from servelab.testing.worlds import GPU, MODEL, TIMING
from tests.helpers.agreement import disagreement
from tests.helpers.differences import run_engine
from tests.helpers.recovery import token_times
from tests.helpers.rulers import Rules
from tests.helpers.scenarios import RowTiming, Scenario

Rows = list[tuple[float, int, int]]


def scenario(rows: Rows, kv_tokens: int = 100, budget: int = 100, max_batch: int = 10, **pool: Any) -> Scenario:
    """Requests (arrival, prompt, output) on one mixed instance."""
    arrival, prompt, output = zip(*rows, strict=True)
    return Scenario(
        Workload(np.array(arrival, float), np.array(prompt), np.array(output)),
        ClusterSpec((PoolSpec("all", "mixed", 1, GPU, **pool),), LinkSpec(1e9)),
        MODEL,
        RowTiming({GPU.name: StepRow(base_s=1.0)}),
        EngineConfig(token_budget=budget, max_batch=max_batch, block_tokens=1, watermark=0.0, kv_tokens=kv_tokens),
        Open(),
        Rules(),
    )


def times(one: Scenario) -> list[list[float]]:
    """When each request's tokens appear: the same in both engines."""
    assert not disagreement(one, 0.0)
    return [list(map(float, row)) for row in token_times(run_engine(one)[0])]


def together(rows: Rows, **options: Any) -> Scenario:
    """Requests that wait while another's one step lasts, from 0 to 1 s: the first iteration sees them all."""
    return scenario([(0, 1, 1), *((max(arrival, 0.5), prompt, output) for arrival, prompt, output in rows)], **options)


# --- reservations -----------------------------------------------------------------------------------------------------


def test_reservations_bound_the_batch_and_never_preempt() -> None:
    rows: Rows = [(0, 2, 4), (0, 2, 4), (0, 2, 4)]
    one = together(rows, kv_tokens=12, reserve_tokens=6)
    assert times(one)[1:] == [[2, 3, 4, 5], [2, 3, 4, 5], [6, 7, 8, 9]]
    result, _ = run_engine(one)
    assert result.requests["preemptions"].sum() == 0
    assert result.instances["kv_block_s"][0] == 6 * 1 + 2 * 6 * 4 + 6 * 4
    assert result.instances["kv_token_s"][0] == 1 + 3 * (2 + 2 + 3 + 4)  # a decode's token is stored at its step's end
    paged, _ = run_engine(together(rows, kv_tokens=12))
    assert paged.requests["preemptions"].sum() > 0


def test_a_request_that_could_exceed_the_reservation_is_rejected() -> None:
    one = scenario([(0, 2, 5), (0, 2, 6)], kv_tokens=12, reserve_tokens=6)
    assert times(one) == [[1, 2, 3, 4, 5], []]
    result, _ = run_engine(one)
    assert result.reasons[result.requests["reason"][1]] == "kv"


def test_a_reservation_is_at_most_what_an_instance_admits() -> None:
    one = scenario([(0, 2, 2), (0, 2, 2)], kv_tokens=12, reserve_tokens=1000)
    assert times(one) == [[1, 2], [3, 4]]


# --- request-level batching -------------------------------------------------------------------------------------------


def test_a_static_batch_ends_with_its_last_request() -> None:
    one = together([(0, 2, 4), (0, 2, 2), (0, 2, 2)], max_batch=2, batching="static")
    assert times(one)[1:] == [[2, 3, 4, 5], [2, 3], [6, 7]]


def test_a_static_batch_prefills_whole_prompts_within_the_budget_before_it_decodes() -> None:
    rows: Rows = [(0, 2, 3), (0, 9, 2), (0, 1, 2), (0, 1, 1)]
    one = together(rows, budget=3, max_batch=3, batching="static")
    # prompts of 2, then 9 alone though it exceeds the budget, then 1; then all decode
    assert times(one)[1:] == [[2, 5, 6], [3, 5], [4, 5], [7]]


def test_who_comes_while_a_static_batch_prefills_waits_for_the_next() -> None:
    one = together([(0, 2, 2), (0, 2, 2), (1.5, 2, 1)], budget=2, max_batch=3, batching="static")
    assert times(one)[1:] == [[2, 4], [3, 4], [5]]


# --- blocks per chunk -------------------------------------------------------------------------------------------------


def test_a_chunk_without_blocks_preempts_its_own_request_if_that_is_the_last() -> None:
    one = together([(0, 1, 6), (0, 6, 1)], kv_tokens=8, budget=3, batching="unified")
    # the second has 2, then 4 blocks when the first one's growth leaves too few for 6; it starts again at 7 s
    assert times(one)[1:] == [[2, 3, 4, 5, 6, 7], [9]]
    result, _ = run_engine(one)
    assert result.requests["preemptions"].tolist() == [0, 0, 1]
    assert result.requests["start_s"].tolist() == [0, 1, 1]


def test_a_chunk_without_blocks_preempts_the_last_in_order() -> None:
    schedule = ChunkSchedule((6, 2), 4)
    one = scenario([(0, 12, 1), (0, 6, 1)], kv_tokens=14, batching="unified", chunk_schedule=schedule)
    # chunks of 6, 2, 2, 2; the other has 4 blocks from 1 s on and loses them to the last chunk at 3 s
    assert times(one) == [[4], [5]]
    assert run_engine(one)[0].requests["preemptions"].tolist() == [0, 1]


def test_blocks_follow_chunks() -> None:
    """While the first half of a prompt is computed, the other half's blocks are free."""
    rows: Rows = [(0, 8, 1)]
    for batching, held in (("decode_first", 8 * 2), ("unified", 4 + 8)):
        result, _ = run_engine(scenario(rows, budget=4, batching=batching))
        assert result.instances["kv_block_s"][0] == held


# --- chunk schedules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", ["decode_first", "unified"])
def test_chunks_shrink_as_a_prompt_goes_on(batching: str) -> None:
    one = scenario([(0, 8, 1)], batching=batching, chunk_schedule=ChunkSchedule((4, 2), 4))
    assert times(one) == [[3]]  # 4, 2, 2
    one = together([(0, 1, 6), (0, 8, 1)], batching=batching, chunk_schedule=ChunkSchedule((4, 2), 4))
    assert times(one)[2] == [5]  # with one other token 3, 3, 1, 1


def test_stages_are_spaced_evenly_in_multiples_of_32() -> None:
    assert Stages(1024, 256, 4, 8192).schedule == ChunkSchedule((1024, 768, 512, 256), 2048)
    assert Stages(512, 128, 3, 1000).schedule == ChunkSchedule((512, 320, 128), 334)
    pool = Chunked(chunks={"high": 512, "low": 128, "stages": 3, "prompt_tokens": 1000})
    spec = pool.layout(scenario([(0, 1, 1)]).cluster).pools[0]
    assert (spec.token_budget, spec.chunk_schedule) == (512, ChunkSchedule((512, 320, 128), 334))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"high": 500}, "policy.chunks.high must be a multiple of 32"),
        ({"high": 96}, "policy.chunks.low=128 must not be above policy.chunks.high=96"),
        ({"stages": 0}, "policy.chunks.stages must be a whole number of at least 1, got 0"),
        ({"steps": 1}, "policy.chunks must have high, low, stages and prompt_tokens, got .*'steps': 1"),
    ],
)
def test_unusable_stages_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Chunked(chunks={"high": 512, "low": 128, "stages": 3, "prompt_tokens": 1000} | change)


# --- plans ------------------------------------------------------------------------------------------------------------


class DecodesAlone(Aggregated):
    """Admits only where nothing decodes."""

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        return Plan(100, "decode_only" if cluster.instances.running[instance] else "decode_first")


def test_an_instance_that_only_decodes_admits_nothing() -> None:
    one = scenario([(0, 1, 3), (0.5, 1, 1)])
    result = simulate(one.workload, one.cluster, one.model, one.timing, one.engine, DecodesAlone())
    assert result.requests["end_s"].tolist() == [3, 4]


def test_decoding_alone_is_no_way_to_serve() -> None:
    with pytest.raises(InputError, match=r"engine\.batching must be one of decode_first, prefill_first, mixed, static"):
        EngineConfig(batching="decode_only")  # type: ignore[arg-type]


# --- policies ---------------------------------------------------------------------------------------------------------


def test_policies_reserve_what_they_are_told_unless_a_pool_says_otherwise() -> None:
    cluster = scenario([(0, 1, 1)]).cluster
    own = replace(cluster, pools=(replace(cluster.pools[0], reserve_tokens=7),))
    for policy in (Static, Orca):
        assert policy(50).layout(cluster).pools[0].reserve_tokens == 50
        assert policy(50).layout(own).pools[0].reserve_tokens == 7
        with pytest.raises(InputError, match=r"policy\.reserve_tokens must be a whole number of at least 1, got 0"):
            policy(0)


def test_a_reservation_is_the_longest_request_of_the_trace_if_nobody_says_how_much() -> None:
    workload = Workload(np.zeros(3), np.array([8, 30, 200]), np.array([20, 4, 1]))
    cluster, model = scenario([(0, 1, 1)]).cluster, replace(MODEL, max_context=100)  # the prompt of 200 is turned away
    engine = EngineConfig(block_tokens=1, kv_tokens=1000)
    for policy in (Static, Orca):
        result = simulate(workload, cluster, model, TIMING, engine, policy())
        assert result.cluster.pools[0].reserve_tokens == 34
        assert result.requests["state"].tolist()[:2] == [FINISHED, FINISHED]
        assert simulate(workload, cluster, model, TIMING, engine, policy(50)).cluster.pools[0].reserve_tokens == 50


@pytest.mark.parametrize(
    ("routing", "max_batch", "instances"),
    [("next_free", 2, [0, 1, 0, 0, 1]), ("next_free", 1, [0, 1, 0, 1, 0]), ("least_queued", 2, [0, 1, 0, 1, 0])],
)
def test_static_batches_gather_where_one_is_free_next(routing: str, max_batch: int, instances: list[int]) -> None:
    """Two come to idle instances; the others wait for the older batch as long as the one behind it has room."""
    workload = Workload(np.array([0, 2.5, 4.2, 4.4, 4.6]), np.full(5, 2), np.full(5, 10))
    one = scenario([(0, 1, 1)], max_batch=max_batch)
    cluster = replace(one.cluster, pools=(replace(one.cluster.pools[0], instances=2),))
    for implementation in ("compiled", "reference"):
        engine = replace(one.engine, implementation=implementation)
        result = simulate(workload, cluster, MODEL, one.timing, engine, Static(routing=routing))
        assert result.requests["prefill_instance"].tolist() == instances


def test_iterations_beat_requests_under_equal_reservations() -> None:
    random = np.random.default_rng(5)
    workload = Workload(np.zeros(200), np.full(200, 16), random.geometric(1 / 40, 200))
    engine = EngineConfig(max_batch=8, kv_tokens=8192)
    cluster = scenario([(0, 1, 1)]).cluster
    ends_s = [
        simulate(workload, cluster, MODEL, TIMING, engine, policy).requests["end_s"].max()
        for policy in (Static(1024), Orca(1024))
    ]
    assert ends_s[0] > 1.8 * ends_s[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reserve_tokens": 0}, "pool all: reserve_tokens must be a whole number of at least 1, got 0"),
        ({"batching": "decode_only"}, "pool all: batching must be one of decode_first, prefill_first, mixed, static"),
    ],
)
def test_unusable_pools_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario([(0, 1, 1)], **change)


@pytest.mark.parametrize(("sizes", "tokens"), [((), 4), ((0,), 4), ((4,), 0)])
def test_unusable_schedules_are_refused(sizes: tuple[int, ...], tokens: int) -> None:
    with pytest.raises(InputError, match="chunk_schedule"):
        ChunkSchedule(sizes, tokens)
