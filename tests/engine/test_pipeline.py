"""Pipelines with bubbles, worked out by hand in both engines. A block is 1 token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.durations.attention_overlap import Attention
from framework.engine.durations.speculation import Speculation
from framework.errors import InputError
from framework.metrics.slo import Slo
from framework.metrics.summary import summarize
from framework.policy import Aggregated
from framework.policy.view import Cluster, Request
from framework.simulate import simulate
from framework.system.cluster import ChunkSchedule, ClusterSpec, LinkSpec, PoolSpec
from framework.system.model import Experts
from framework.system.parallelism import Parallelism
from framework.timing.table import StepRow
from framework.workload import Workload
from servelab.testing.worlds import GPU, MODEL
from tests.helpers.agreement import disagreement
from tests.helpers.differences import run_engine
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import RowTiming, Scenario, at_once

Rows = list[tuple[int, int]]
COMPUTE = StepRow(base_s=1.0, per_prefill_token_s=0.125)


def scenario(rows: Rows, row: StepRow, stages: int = 2, budget: int = 1000, **options: Any) -> Scenario:
    """Requests (prompt, output) that arrive at once, at one mixed instance of so many stages."""
    pool = {name: options.pop(name) for name in ("chunk_schedule", "rank_choice") if name in options}
    spec = PoolSpec("all", "mixed", 1, GPU, Parallelism(pp=stages), **pool)
    return at_once(rows, spec, row, MODEL, token_budget=budget, **options)


def times(one: Scenario) -> list[list[float]]:
    """When each request's tokens appear: the same in both engines."""
    assert not disagreement(one, 0.0)
    return [[float(time_s) for time_s in row] for row in token_times(run_engine(one)[0])]


def bubble_s(one: Scenario) -> float:
    return float(run_engine(one)[0].instances["bubble_s"][0])


def test_a_lone_prompt_is_as_slow_as_a_whole_round() -> None:
    for stages in (1, 2, 3, 4):
        one = scenario([(16, 1)], COMPUTE, stages)
        assert times(one) == [[1 + stages * 16 * 0.125]]
        assert bubble_s(one) == (stages - 1) * (1 + stages * 16 * 0.125)  # all stages but one wait


def test_its_chunks_follow_each_other() -> None:
    # 8 tokens a step are 4 in each micro-batch, of which the prompt has one: 16 tokens take 4 steps of 1 + 2 * 4 / 8 s.
    assert times(scenario([(16, 1)], COMPUTE, budget=8)) == [[4 * 2.0]]
    assert times(scenario([(16, 1)], COMPUTE, stages=1, budget=8)) == [[2 * 2.0]]


def test_each_micro_batch_that_holds_something_reads_the_weights() -> None:
    # Of 8 experts a token takes 2, so that it leaves 3/4 of them; 16 tokens leave hardly any.
    model, two, prompt = replace(MODEL, experts=Experts(count=8, per_token=2, intermediate=4)), 2, 1 - 0.75**16
    for stages, rows, passes, reads in (
        (1, [(16, 3)] * two, 1 + 2 * 1, 1 - 0.75**32 + 2 * (1 - 0.75**2)),
        (2, [(16, 3)] * two, 2 + 2 * 2, 2 * prompt + 2 * 2 * 0.25),
        (2, [(16, 3)], 1 + 2 * 1, prompt + 2 * 0.25),  # a lone request fills one of them
        (4, [(16, 2)] * two, 2 + 2, 2 * prompt + 2 * 0.25),
    ):
        one = replace(scenario(rows, COMPUTE, stages), model=model)
        assert not disagreement(one, 0.0)
        (instance,) = run_engine(one)[0].instances
        assert instance["weight_passes"] == passes
        assert instance["expert_reads"] == pytest.approx(reads, rel=1e-12)


def test_two_equal_prompts_leave_no_bubble() -> None:
    one = scenario([(16, 1), (16, 1)], COMPUTE)
    assert times(one) == [[1 + 32 * 0.125]] * 2  # as two prompts take on one stage
    assert bubble_s(one) == 0.0


def test_of_unequal_prompts_the_longer_one_counts() -> None:
    one = scenario([(24, 1), (8, 1)], COMPUTE)
    longest = 1 + 2 * 24 * 0.125
    assert times(one) == [[longest]] * 2
    assert bubble_s(one) == longest - (1 + 2 * 8 * 0.125)


def test_prompts_go_to_the_lightest_micro_batch() -> None:
    # 9 | 5, then 4 to the second, then 3 to the first of two equal ones: 12 | 9
    rows: Rows = [(9, 1), (5, 1), (4, 1), (3, 1)]
    assert times(scenario(rows, COMPUTE)) == [[1 + 2 * 12 * 0.125]] * 4


def test_attention_of_the_slowest_micro_batch() -> None:
    # 4 and 2 tokens: twice 16 pairs against twice 4
    row = StepRow(prefill_quadratic_s=0.25)
    assert times(scenario([(4, 1), (2, 1)], row)) == [[2 * 0.25 * 16]] * 2


def test_the_slowest_need_not_have_most_tokens() -> None:
    # attention counts: 4 | 3 + 3 have 16 and 9 + 9 pairs, 5 | 3 + 3 have 25 and 18
    row = StepRow(prefill_quadratic_s=0.25)
    assert times(scenario([(4, 1), (3, 1), (3, 1)], row))[0] == [2 * 0.25 * 18]
    assert times(scenario([(5, 1), (3, 1), (3, 1)], row))[0] == [2 * 0.25 * 25]


def test_a_chunk_with_decodes() -> None:
    # 4 tokens decode with a prompt of 8, for which a seat comes free, and half of the pipeline computes it; then both
    # decode.
    row = StepRow(base_s=1.0, per_prefill_token_s=0.125, per_sequence_s=0.5, per_context_token_s=0.25)
    one = scenario([(4, 3), (4, 1), (8, 2)], row, max_batch=2)
    start = 1 + 2 * 4 * 0.125
    joint = 1 + 2 * 8 * 0.125 + 0.5 + 0.25 * 5
    both = 1 + 2 * 0.5 + 0.25 * (6 + 9)
    expected = [[start, start + joint, start + joint + both], [start], [start + joint, start + joint + both]]
    assert times(one) == expected
    # The two prompts of 4 kept both stages busy; the last one left one waiting, but for what decodes with it take.
    assert bubble_s(one) == 2 * 8 * 0.125


def test_decodes_alone_take_what_they_take() -> None:
    row = StepRow(base_s=1.0, per_context_token_s=0.25)
    rows: Rows = [(1, 1), (3, 4), (5, 4)]
    one, two = times(scenario(rows, row, stages=1)), times(scenario(rows, row, stages=2))
    assert one == two
    assert bubble_s(scenario([(4, 3)], row)) == 1.0 + 1.0 + 1.25 + 1.0 + 1.5  # one request: one stage always waits


def test_decodes_take_their_part_of_the_budget() -> None:
    # 8 tokens: of each micro-batch 1 | 4, then 3 more with the 1. From then on the first request decodes: 8 tokens
    # less 1 leave 7, of which a micro-batch may have 4: the prompts of 6 have 2 and 3 left.
    one = scenario([(1, 9), (6, 1), (6, 1)], COMPUTE, budget=8)
    full, rest = 1 + 2 * 4 * 0.125, 1 + 2 * 3 * 0.125
    assert [row[0] for row in times(one)] == [full, *[full + rest] * 2]


def test_the_first_prompt_of_each_micro_batch_may_be_longer() -> None:
    # 8 tokens a step are 4 in each of two: 6 | 5, and 3 in the next step
    rows: Rows = [(6, 1), (5, 1), (3, 1)]
    both, last = 1 + 2 * 6 * 0.125, 1 + 2 * 3 * 0.125
    for batching in ("prefill_first", "mixed"):
        found = times(scenario(rows, COMPUTE, budget=8, batching=batching))
        assert [row[0] for row in found] == [both, both, both + last]


def test_a_chunk_schedule_counts_tokens_of_the_step() -> None:
    # a step holds 8 tokens, or 4 for chunks beyond the first 8: of each micro-batch 4, 4, then 2
    schedule = ChunkSchedule((8, 4), 8)
    four, two = 1 + 2 * 4 * 0.125, 1 + 2 * 2 * 0.125
    assert times(scenario([(10, 1)], COMPUTE, chunk_schedule=schedule)) == [[2 * four + two]]


def test_attentions_overlap_in_each_micro_batch() -> None:
    # The long prompt hides what decodes take, the empty micro-batch has nothing to hide it behind.
    row = StepRow(base_s=1.0, prefill_quadratic_s=0.25, per_context_token_s=0.25)
    one = scenario([(4, 3), (1, 1)], row, attention=Attention(1.0))
    start = 1 + 2 * 0.25 * 16
    assert times(one)[0][:2] == [start, start + 1 + max(2 * 0.25, 0.25 * 5)]


def test_drafts_count_as_decodes() -> None:
    row = StepRow(base_s=1.0, per_prefill_token_s=0.125, per_sequence_s=0.5)
    drafts = Speculation(depth=1, acceptance=1.0, draft_cost=0.0)
    one = scenario([(4, 4), (4, 1), (8, 1)], row, speculation=drafts, max_batch=2)
    start, joint = 1 + 2 * 4 * 0.125, 1 + 2 * 8 * 0.125 + 2 * 0.5
    assert times(one)[0][:3] == [start, start + joint, start + joint]


def test_energy_and_the_share_of_bubbles() -> None:
    result = run_engine(scenario([(16, 1)], COMPUTE))[0]
    summary = summarize(result, Slo())
    assert summary["bubble_share"] == 0.5
    duration_s = 1 + 2 * 16 * 0.125
    assert summary["energy_j"] == 2 * (GPU.idle_w * duration_s + (GPU.tdp_w - GPU.idle_w) * duration_s / 2)
    assert "bubble_share" not in summarize(run_engine(scenario([(16, 1)], COMPUTE, stages=1))[0], Slo())


def test_estimates_tell_the_same() -> None:
    seen: dict[str, float] = {}

    class Asking(Aggregated):
        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            seen["whole"] = float(cluster.instances.prefill_s(request)[0])
            seen["chunks"] = float(cluster.instances.prefill_s(request, chunk_tokens=8)[0])
            seen["step"] = float(cluster.instances.estimate_s(16, 2, 10)[0])
            return 0

    row = StepRow(base_s=1.0, per_prefill_token_s=0.125, prefill_quadratic_s=0.25, per_sampled_s=0.5)
    one = scenario([(16, 1)], row)
    simulate(one.workload, one.cluster, MODEL, one.timing, one.engine, Asking())
    assert seen["whole"] == times(scenario([(16, 1)], row))[0][0]
    # All but the last of the chunks emit in the estimate, not in the run.
    assert seen["chunks"] == times(scenario([(16, 1)], row, budget=8))[0][0] + 3 * 2 * 0.5
    assert seen["step"] == 1 + 32 * 0.125 + 2 * 0.25 * 256 + 0.5 * (2 + 2)


@pytest.mark.parametrize(
    ("parallelism", "options", "message"),
    [
        (Parallelism(pp=2), {"batching": "concurrent"}, "pipeline stages do not go together; set cluster.pp=1"),
        (Parallelism(dp=2, pp=2), {"rank_choice": "kv"}, "set cluster.pp=1 or cluster.rank_choice=even"),
    ],
)
def test_what_does_not_go_together(parallelism: Parallelism, options: dict[str, Any], message: str) -> None:
    spec = PoolSpec("all", "mixed", 1, GPU, parallelism, **options)
    workload = Workload(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64))
    with pytest.raises(InputError, match=message):
        simulate(workload, ClusterSpec((spec,), LinkSpec(1e9)), MODEL, RowTiming({GPU.name: COMPUTE}))
