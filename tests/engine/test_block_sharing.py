"""Prefixes shared in KV blocks of 4 tokens, from their allocation on, against timelines worked out by hand, in both
engines. A step lasts 1 s, and 0.25 s more for each prompt token that it computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.engine.setup.config import EngineConfig, PrefixUnit
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload, block_names, consecutive
from policies.vllm_v1 import VllmV1
from tests.helpers.bounds import server
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL, RowTiming

COMPILED = EngineConfig(
    block_tokens=4, watermark=0.0, kv_fraction=1.0, kv_tokens=400, prefix_cache=True, prefix_unit="engine"
)
TIMING = RowTiming({"gpu": StepRow(base_s=1.0, per_prefill_token_s=0.25)})
Row = tuple[float, int, int, Sequence[int]]  # arrival, prompt, output, ids of the trace blocks of its prompt


@pytest.fixture(params=["compiled", "reference"])
def engine(request: pytest.FixtureRequest) -> EngineConfig:
    return replace(COMPILED, implementation=request.param)


def trace(*rows: Row, block_tokens: int = 8, previous: Sequence[int] | None = None) -> Workload:
    arrival_s, prompts, outputs, ids = zip(*rows, strict=True)
    return Workload(
        np.array(arrival_s, float),
        np.array(prompts),
        np.array(outputs),
        hash_ids=np.array([id for mine in ids for id in mine], np.int64),
        hash_spans=consecutive([len(own) for own in ids]),
        hash_block_tokens=block_tokens,
        previous=None if previous is None else np.array(previous),
        think_s=None if previous is None else np.zeros(len(rows)),
    )


def play(engine: EngineConfig, workload: Workload) -> Result:
    cluster = ClusterSpec((PoolSpec("all", "mixed", 1, server("gpu", 1000)),), LinkSpec(1.0))
    result = simulate(workload, cluster, MODEL, TIMING, engine, VllmV1())
    check_result(result)
    return result


def test_equal_prompts_of_one_instant_are_computed_once(engine: EngineConfig) -> None:
    """16 tokens; the second and third find 3 of 4 blocks and compute the last: 1 + (16 + 4 + 4) / 4 = 7 s."""
    result = play(engine, trace(*[(0.0, 16, 1, [1, 2])] * 3))
    assert result.requests["cached_tokens"].tolist() == [0, 12, 12]
    assert token_times(result) == [[7.0]] * 3


def test_whole_trace_blocks_are_shared_once_they_are_computed(engine: EngineConfig) -> None:
    """By trace blocks of 8 tokens all three are computed, 1 + 48 / 4 s; one that comes later finds 1 of 2 blocks."""
    rows = [*[(0.0, 16, 1, [1, 2])] * 3, (20.0, 16, 1, [1, 2])]
    result = play(replace(engine, prefix_unit="trace"), trace(*rows))
    assert result.requests["cached_tokens"].tolist() == [0, 0, 0, 8]
    assert token_times(result) == [[13.0], [13.0], [13.0], [23.0]]


def test_a_full_hit_recomputes_one_block(engine: EngineConfig) -> None:
    """Of 16 tokens 4: 1 + 4 / 4 s. Of a prompt that ends within a block, 18 tokens with an id for the rest, 2."""
    result = play(engine, trace((0.0, 18, 1, [1, 2, 3]), (10.0, 16, 1, [1, 2]), (20.0, 18, 1, [1, 2, 3])))
    assert result.requests["cached_tokens"].tolist() == [0, 12, 16]
    assert token_times(result) == [[5.5], [12.0], [21.5]]


def test_a_later_turn_finds_what_was_generated(engine: EngineConfig) -> None:
    """8 tokens in and 6 out, of which 8 + 5 are computed: 3 blocks. The next turn, of 16 tokens, finds these 12.

    Token 1 at 3, token 6 at 8; then 1 + 4 / 4 s. One that only has the same prompt finds its first block.
    """
    rows: list[Row] = [(0.0, 8, 6, [1]), (0.0, 16, 1, [1, 2]), (20.0, 8, 1, [1])]
    result = play(engine, trace(*rows, previous=[-1, 0, -1]))
    assert result.requests["cached_tokens"].tolist() == [0, 12, 4]
    assert token_times(result) == [[3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [10.0], [22.0]]


def test_a_turn_that_forgets_what_was_said_finds_the_prompt_alone(engine: EngineConfig) -> None:
    """The next turn has 13 tokens, fewer than prompt and output: only the block of the trace that both have."""
    result = play(engine, trace((0.0, 8, 6, [1]), (0.0, 13, 1, [1]), previous=[-1, 0]))
    assert result.requests["cached_tokens"].tolist() == [0, 8]


def test_a_preempted_request_finds_its_own_blocks(engine: EngineConfig) -> None:
    """5 blocks of 4 tokens. Both prompts, of 4 and 7 tokens, take 1 + 11 / 4 = 3.75 s, and 1 + 2 blocks.

    At 3.75 the first takes a second block. At 4.75 the second has 8 tokens and takes a third: none is left. At 7.75
    the first has 8 tokens too and finds no third block: the second leaves with 11 tokens computed, two blocks of which
    stay known; the first takes the block that is not. It ends at 8.75. Then the second, 12 tokens with the 5 that it
    has generated, finds 8 of them and computes 4: 1 + 4 / 4 s.
    """
    workload = Workload(np.zeros(2), np.array([4, 7]), np.array([6, 6]))
    result = play(replace(engine, kv_tokens=20), workload)
    first, second = token_times(result)
    assert first == [3.75, 4.75, 5.75, 6.75, 7.75, 8.75]
    assert second == [3.75, 4.75, 5.75, 6.75, 7.75, 10.75]
    assert result.requests["preemptions"].tolist() == [0, 1]
    assert result.requests["cached_tokens"].tolist() == [0, 0]
    assert result.instances["prefill_tokens"].tolist() == [11 + 4]


def test_blocks_of_a_name_leave_one_by_one(engine: EngineConfig) -> None:
    """6 blocks of 4 tokens. The second of two equal prompts of 8 tokens finds a block and computes the other anew, so
    that both have one of that name. A third prompt of 12 tokens takes the 3 free blocks. The last one, at 20, finds a
    block still, and after it had taken all but one of the others, too.
    """
    rows: list[Row] = [
        (0.0, 8, 1, [1]),
        (0.0, 8, 1, [1]),
        (10.0, 12, 1, [2, 3]),
        (20.0, 8, 1, [1]),
        (30.0, 16, 1, [4, 5]),
    ]
    result = play(replace(engine, kv_tokens=24), trace(*rows, (40.0, 8, 1, [1])))
    assert result.requests["cached_tokens"].tolist() == [0, 4, 0, 4, 0, 4]


def test_names_of_blocks() -> None:
    """Trace blocks of 8 tokens, engine blocks of 4: by id and place, by the next turn, or nobody else's."""
    workload = trace((0.0, 10, 8, [7]), (0.0, 20, 1, [7, 9]), (0.0, 10, 1, [7, 8]), previous=[-1, 0, -1])
    names, offsets = block_names(workload, 4)
    first, second, third = (names[a:b].tolist() for a, b in itertools.pairwise(offsets))
    assert [len(first), len(second), len(third)] == [4, 5, 2]
    assert first == second[:4]
    assert third == first[:2]
    assert len({*first, *second, *third}) == 5


@pytest.mark.parametrize(("unit", "loaded"), [("trace", 8), ("engine", 12)])
def test_stores_keep_the_same_blocks(engine: EngineConfig, unit: PrefixUnit, loaded: int) -> None:
    """Request 1 takes all 6 blocks of GPU memory. Of the blocks of 4 tokens that the store has, request 2 needs but the
    last of its prompt of 15 tokens, of which a block of the trace has 8.
    """
    stores = PrefixStores({"dram": Tier(capacity_tokens=800, bandwidth_bytes_s=1e9)})
    small = replace(engine, prefix_stores=stores, kv_tokens=24, prefix_unit=unit)
    rows = ((0.0, 16, 1, [1, 2]), (20.0, 23, 1, [3, 4, 5]), (60.0, 15, 1, [1, 2]))
    result = play(small, trace(*rows))
    assert result.requests["cached_tokens"].tolist() == [0, 0, loaded]
    assert result.tiers["hit_tokens"].tolist() == [loaded]


def test_what_was_generated_is_in_a_store_once_it_is_computed_again(engine: EngineConfig) -> None:
    """Turn 2 of a session has 24 tokens, of which turn 1 was prompted with 8 and generated 8. The store has of turn 1
    the 2 blocks of its prompt; once turn 2 is computed it has all 6 of that, 5 of which turn 3 of 24 tokens may take.
    """
    stores = PrefixStores({"dram": Tier(capacity_tokens=800, bandwidth_bytes_s=1e9)})
    small = replace(engine, prefix_stores=stores, kv_tokens=32)
    others = [(20.0, 31, 1, [7, 8, 9, 10]), (80.0, 31, 1, [11, 12, 13, 14])]
    rows = ((0.0, 8, 8, [1]), others[0], (50.0, 24, 1, [1, 2, 3]), others[1], (120.0, 24, 1, [1, 2, 3]))
    result = play(small, trace(*rows))
    assert result.requests["cached_tokens"].tolist() == [0, 0, 8, 0, 20]
