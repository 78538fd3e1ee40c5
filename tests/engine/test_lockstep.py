"""Ranks that are instances and step together, worked out by hand in both engines. A block is 1 token."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from framework.errors import InputError, PolicyError
from framework.metrics.clock import clock_of
from framework.metrics.slo import Slo
from framework.metrics.usage import pool_table, usage
from framework.policy import Aggregated, Cluster, Request, SetRole
from framework.simulate import simulate
from framework.system.cluster import PoolSpec, disaggregated, mixed
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, Surface
from framework.timing.rank_row import EACH, LIMITS, OVER_SIZES, rank_row
from framework.timing.table import StepRow, stack, step_s
from framework.workload import Workload
from servelab.testing.worlds import GPU, MODEL
from tests.helpers.agreement import disagreement
from tests.helpers.differences import run_engine
from tests.helpers.recovery import token_times
from tests.helpers.rulers import Rules
from tests.helpers.scenarios import Scenario, at_once

Rows = list[tuple[int, int]]
TOKENS = StepRow(base_s=1.0, per_prefill_token_s=0.125, per_context_token_s=0.25)  # of all ranks together


def scenario(rows: Rows, row: StepRow = TOKENS, ranks: int = 2, arrival_s: Any = None, **options: Any) -> Scenario:
    """Requests (prompt, output) in turn on the ranks of one group."""
    spec = PoolSpec("all", "mixed", ranks, GPU, Parallelism(dp=ranks), rank_choice="routed")
    one = at_once(rows, spec, row, MODEL, **options)
    arrivals = np.zeros(len(rows)) if arrival_s is None else np.array(arrival_s, np.float64)
    workload = Workload(arrivals, one.workload.input_tokens, one.workload.output_tokens)
    return replace(one, workload=workload, rules=Rules(route_prefill="turn"))


def times(one: Scenario) -> list[list[float]]:
    """When each request's tokens appear: the same in both engines."""
    assert not disagreement(one, 0.0)
    return [[float(time_s) for time_s in row] for row in token_times(run_engine(one)[0])]


def test_a_step_of_a_group_takes_as_long_as_its_longest() -> None:
    """Prompts of 8 and 2: as if both ranks had 8 tokens, 1 + 0.125 * 16 = 3 s. The short one's own step would be over
    after 1 + 0.125 * 4 = 1.5 s, so it waits for 1.5 s. Then one decodes and reads 9 tokens, the other 3.
    """
    one = scenario([(8, 3), (2, 3)])
    assert times(one) == [[3.0, 3 + 1 + 0.25 * 18, 3 + 5.5 + 1 + 0.25 * 20]] * 2
    result = run_engine(one)[0]
    assert result.instances["bubble_s"].tolist() == [0.0, 1.5 + 0.25 * 12 + 0.25 * 12]
    assert result.instances["busy_s"].tolist() == [3 + 5.5 + 6.0] * 2


def test_who_comes_to_an_idle_rank_waits_for_the_boundary() -> None:
    """The first prompt takes 0 to 3 s. The second arrives at 1 s at the other rank, which has nothing to do, and begins
    with the group at 3 s, with a decode that reads 9 tokens: 1 + 0.25 * 18 = 5.5 s, where its own 4 tokens would
    take 1 + 0.125 * 8 = 2 s.
    """
    one = scenario([(8, 2), (4, 1)], arrival_s=[0.0, 1.0])
    assert times(one) == [[3.0, 8.5], [8.5]]
    log = run_engine(one)[0].step_log
    assert log["instance"].tolist() == [0, 0, 1]
    assert log["start_s"].tolist() == [0.0, 3.0, 3.0]


def test_another_rank_becomes_the_slowest_within_a_leap() -> None:
    """10 on one rank, 2 + 2 on the other: they read 11 + j and 6 + 2 j tokens in step j, alike at j = 5."""
    row = StepRow(base_s=1.0, per_context_token_s=0.25)
    one = scenario([(2, 9), (10, 9), (2, 9)], row)
    expected = [1.0]
    for j in range(8):
        expected.append(expected[-1] + 1 + 0.25 * 2 * max(11 + j, 6 + 2 * j))
    assert times(one) == [expected] * 3
    result = run_engine(one)[0]
    log = result.step_log
    assert log["steps"][log["instance"] == 1].tolist() == [1, 6, 2]
    assert result.instances["bubble_s"].tolist() == [0.5 * (5 + 4 + 3 + 2 + 1), 0.5 * (1 + 2)]


def test_who_comes_to_an_idle_rank_ends_the_leap_of_the_other() -> None:
    """Steps of 1 s: one decodes alone until a prompt comes to the other rank at 3.5 s. The last to arrive, at 20 s, is
    there for no leap to end where the load does.
    """
    one = scenario([(8, 9), (4, 2), (4, 1)], StepRow(base_s=1.0), arrival_s=[0.0, 3.5, 20.0])
    assert times(one) == [[float(k) for k in range(1, 10)], [5.0, 6.0], [21.0]]
    assert run_engine(one)[0].step_log["steps"].tolist() == [1, 3, 1, 1, 1, 1, 3, 1]


def test_a_leap_of_a_group_ends_with_the_step_before_the_end_of_the_load() -> None:
    """The same but for that one: the window ends at 3.5 s, so that of 1 to 4 s the last step is one by itself."""
    one = scenario([(8, 9), (4, 2)], StepRow(base_s=1.0), arrival_s=[0.0, 3.5])
    assert times(one) == [[float(k) for k in range(1, 10)], [5.0, 6.0]]
    assert run_engine(one)[0].step_log["steps"].tolist() == [1, 2, 1, 1, 1, 1, 1, 3]


def test_three_ranks_one_of_which_never_has_work() -> None:
    """As if all three had 4 tokens, 1 + 0.125 * 12. The third rank is not busy, and nothing of it is in the log."""
    result = run_engine(scenario([(4, 1), (4, 1)], ranks=3))[0]
    assert result.instances["busy_s"].tolist() == [2.5, 2.5, 0.0]
    assert result.step_log["instance"].tolist() == [0, 1]
    assert result.instances["weight_passes"].tolist() == [1, 1, 0]


def test_weights_are_read_by_each_rank_once() -> None:
    """Two ranks with a step each read the weights as two instances of one GPU do."""
    together = run_engine(scenario([(4, 1), (4, 1)]))[0]
    alone = PoolSpec("all", "mixed", 2, GPU)
    apart = run_engine(replace(at_once([(4, 1), (4, 1)], alone, TOKENS, MODEL), rules=Rules()))[0]
    assert [pool.gpus for pool in together.cluster.pools] == [2]
    clocks = [replace(clock_of(run, Slo()), lengths_s=np.full(2, 2.0)) for run in (together, apart)]
    runs = list(zip((together, apart), clocks, strict=True))
    for figure in ("mfu", "mbu"):
        assert len({usage(run, clock)[figure] for run, clock in runs}) == 1
        assert len({tuple(pool_table(run, clock)[figure]) for run, clock in runs}) == 1


def test_a_rank_has_its_part_of_the_instance() -> None:
    whole, ranks = mixed(2, GPU, dp=4), mixed(2, GPU, dp=4, rank_choice="routed")
    assert (whole.instances, ranks.instances) == (2, 8)
    assert whole.gpus == ranks.gpus == 8
    assert ranks.groups == (range(4), range(4, 8))
    assert whole.pools[0].kv_tokens(MODEL, 0.9) == 4 * ranks.pools[0].kv_tokens(MODEL, 0.9)
    assert whole.link_bytes_s[0] == 4 * ranks.link_bytes_s[0]
    named = mixed(2, GPU, dp=4, rank_choice="routed", link_bandwidth_bytes_s=4e9)
    assert named.link_bytes_s.tolist() == [1e9] * 8
    both = disaggregated(1, 2, GPU, prefill_dp=1, decode_dp=2, rank_choice="routed")
    assert both.groups == (range(1), range(1, 3), range(3, 5))


def test_every_part_of_a_step_time_has_a_meaning_for_a_rank() -> None:
    of_a_step = {"prefill_step_s", "base_s", "eager_s", "graph_tokens", "host_s", "host_sequence_s"}
    of_prompts_and_kernels = {"waste", "decode_rows", "head_group", "request_s", "intake_s", "intake_token_s"}
    of_prompts_and_kernels |= {"late_share", "late_s"}
    the_same = of_a_step | of_prompts_and_kernels | {"length_limit"}
    assert sorted({*EACH, *OVER_SIZES, *LIMITS, *the_same}) == sorted(field.name for field in fields(StepRow))


def test_a_rank_takes_what_all_take_that_are_like_it() -> None:
    curve = Curve((1.0, 4.0, 16.0), (1.0, 2.0, 8.0))
    row = StepRow(
        linear=curve,
        attention=curve,
        logits=curve,
        waste=Curve((1.0, 8.0, 16.0), (2.0, 1.0, 1.0)),
        decode=Surface((1.0, 8.0), (0.0, 64.0, 256.0), ((1.0, 2.0, 4.0), (2.0, 4.0, 16.0))),
        base_s=1.0,
        per_prefill_token_s=0.5,
        prefill_quadratic_s=0.25,
        per_context_token_s=0.125,
        per_sequence_s=0.5,
        skew_s=0.25,
        prefill_step_s=1.0,
    )
    all_of_them, one = stack([row]), stack([rank_row(row, 4)])
    whole_s = step_s(all_of_them, 0, [3] * 4, [5] * 4, 8, 4 * 30, longest=17)
    assert step_s(one, 0, [3], [5], 2, 30, longest=17) == whole_s


class _Routed(Aggregated):
    """Sends every request where `answer` says."""

    def __init__(self, answer: Any, **values: Any) -> None:
        self.answer = answer
        vars(self).update(values)

    def route_prefill(self, request: Request, cluster: Cluster) -> Any:
        assert list(cluster.group(5)) == [4, 5, 6, 7]
        return self.answer


def run(policy: Aggregated, **options: Any) -> Any:
    one = scenario([(8, 3), (2, 3)])
    cluster = mixed(2, GPU, dp=4, rank_choice="routed")
    return simulate(one.workload, cluster, MODEL, one.timing, replace(one.engine, **options), policy)


def test_a_hook_names_a_rank_by_its_number_or_as_one_of_a_group() -> None:
    for answer in (6, (1, 2)):
        assert run(_Routed(answer)).requests["prefill_instance"].tolist() == [6, 6]
    for wrong in ((2, 0), (0, 4), (-1, 0)):
        with pytest.raises(PolicyError, match="there are groups 0 to 1"):
            run(_Routed(wrong))
    with pytest.raises(PolicyError, match=r"return the number of an instance, or \(group, rank\)"):
        run(_Routed((1, 2, 3)))
    with pytest.raises(PolicyError, match=r"return \(group, rank\), two numbers"):
        run(_Routed((1, "a")))


def test_by_default_requests_go_where_the_least_wait_or_run() -> None:
    # One runs on each rank at first; the fifth of those that arrive at once waits behind another: 4 each.
    for implementation in ("compiled", "reference"):
        one = scenario([(4, 9)] * 5)
        cluster = mixed(1, GPU, dp=4, rank_choice="routed")
        engine = replace(one.engine, implementation=implementation)
        routed = simulate(one.workload, cluster, MODEL, one.timing, engine, Aggregated())
        assert routed.requests["prefill_instance"].tolist() == [0, 1, 2, 3, 0]


class _Switching(Aggregated):
    tick_s = 0.5
    changes_roles = True

    def on_tick(self, cluster: Cluster) -> list[SetRole]:
        return [SetRole(1, "prefill")]


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(PolicyError, match="instance 1 is a rank that steps together with others and keeps its role"):
        run(_Switching())
    with pytest.raises(InputError, match=r"set cluster\.rank_choice=even"):
        run(Aggregated(), batching="concurrent")
    with pytest.raises(InputError, match="3 ranks are no whole number of groups of dp = 2"):
        PoolSpec("all", "mixed", 3, GPU, Parallelism(dp=2), rank_choice="routed")
    with pytest.raises(InputError, match=r"ranks that step together cannot be off; set cluster\.spare=0"):
        mixed(2, GPU, dp=2, rank_choice="routed", spare=1)
    staged = mixed(2, GPU, dp=2, pp=2, rank_choice="routed")
    one = scenario([(8, 3)])
    with pytest.raises(InputError, match=r"set cluster\.pp=1 or cluster\.rank_choice=even"):
        simulate(one.workload, staged, MODEL, one.timing, one.engine, Aggregated())
