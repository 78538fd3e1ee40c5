"""Prefills and decodes that share a GPU in a stream each, by hand, and what the policy makes of it."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.bound.bound import any_stream, bound, streams_apart
from framework.bound.setting import Setting
from framework.compiler.decorators import compiled
from framework.engine.memory.attach import DECISION
from framework.engine.parallel.sm_sharing import Sharing
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError, PolicyError
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from framework.policy import Aggregated, Disaggregated, Plan
from framework.policy.hooks import decode_plan
from framework.policy.view import Cluster
from framework.report.timeline.perfetto import write_timeline
from framework.result import Result
from framework.run.output import step_table
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec
from framework.timing.affine import Affine
from framework.workload import Workload
from policies.nexus import Nexus, divided
from servelab.testing.worlds import CLUSTERS, MODEL, SCENARIOS
from servelab.testing.worlds import TIMING as AFFINE
from tests.helpers.recovery import step_times, token_times

ONE = CLUSTERS["one mixed"]
TIMING = Affine(base_s=1.0, per_prefill_token_s=0.25)  # a prefill of t tokens: 1 + t / 4; a decode step: 1
HALVES = Sharing(50, {50: 2.0, 100: 1.0}, {50: 1.5, 100: 1.0}, contention=False)


class Plain(Aggregated):
    """Round by round, without decisions."""


def play(
    rows: Sequence[tuple[float, int, int]],
    sharing: Sharing = HALVES,
    policy: Any = None,
    timing: Any = TIMING,
    cluster: ClusterSpec = ONE,
    **settings: Any,
) -> Result:
    """Rows: arrival, prompt, output."""
    arrival_s, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    options: dict[str, Any] = {"batching": "concurrent", "kv_tokens": 4096, "sharing": sharing}
    engine = EngineConfig(**(options | settings))
    workload = Workload(arrival_s.astype(float), prompts, outputs)
    result = simulate(workload, cluster, MODEL, timing, engine, policy or Plain())
    check_result(result)
    return result


def test_each_stream_has_its_part_whether_or_not_the_other_runs() -> None:
    result = play([(0, 4, 3)])
    assert token_times(result) == [[4.0, 5.5, 7.0]]  # (1 + 1) * 2, then 1.5 each


def test_an_arrival_is_prefilled_while_others_decode_and_joins_at_their_boundary() -> None:
    result = play([(0, 4, 6), (5, 4, 3)])
    # 0 prefills to 4 and decodes at 5.5, 7, 8.5, 10, 11.5; 1 prefills from 5, in the middle of a step, to 9, and
    # decodes from the boundary at 10 on.
    assert token_times(result) == [[4.0, 5.5, 7.0, 8.5, 10.0, 11.5], [9.0, 11.5, 13.0]]
    assert step_times(result)[0][3] == (7.0, 8.5, 1, 0, 7)
    joint = result.step_log[result.step_log["stream"] == 1]
    assert [(row["start_s"], row["first_s"], row["prefill_tokens"]) for row in joint] == [(0, 4, 4), (5, 4, 4)]
    assert result.instances["busy_s"][0] == 13.0  # the time in both streams at once counts once
    assert result.instances["prefill_tokens"][0] == 8
    assert result.steps == 2 + 6


def test_chunks_of_a_long_prompt_follow_each_other_with_decodes() -> None:
    result = play([(0, 4, 9), (4, 8, 1)], token_budget=4)
    # From 4 on two chunks of 4 tokens, 2 * 2 s each; decodes do not wait for them.
    assert token_times(result)[1] == [12.0]
    assert token_times(result)[0] == [4.0 + 1.5 * k for k in range(9)]


def test_memory_traffic_of_a_prefill_slows_decode_attention() -> None:
    sharing = replace(HALVES, contention=True)
    timing = Affine(base_s=1.0, per_prefill_token_s=0.25, prefill_quadratic_s=0.125)
    alone, joint = (play([(0, 4, 6), (5, 4, 1)], one, timing=timing) for one in (HALVES, sharing))
    each, weights, bandwidth = MODEL.kv_bytes_per_token, MODEL.weight_bytes, 1e12
    # Request 0 prefills 4 tokens in (1 + 1 + 16 / 8) * 2 s and decodes from 8 on with the prefill of request 1, which
    # began at 8, too: half of its time is attention.
    d, a = 5 * each, 4 * each
    share = 0.5 * d / (d + a) + 0.5 * d / (d + weights)
    expected = 1.5 * (1 / share - 1) * d / bandwidth
    gained = token_times(joint)[0][1] - token_times(alone)[0][1]
    assert gained == pytest.approx(expected, rel=1e-6)
    assert token_times(joint)[1] == token_times(alone)[1]


def test_a_prefill_under_way_may_be_preempted_for_decodes() -> None:
    rows = [(0, 4, 9), (5, 8, 1)]
    result = play(rows, kv_tokens=12, block_tokens=4, watermark=0.0)
    # Request 0 has a block and takes another for its first decode, which leaves one: too little for a prompt of 8.
    assert result.requests["preemptions"].tolist() == [0, 0]
    result = play(rows, kv_tokens=16, block_tokens=4, watermark=0.0)
    # Now 1 is admitted at 5 with the last two blocks. The fifth decode of 0, at 10, needs a third: 1, whose prefill of
    # (1 + 2) * 2 s ends at 11, gives way, and its chunk is lost. It waits until 0 has ended, at 16.
    assert result.requests["preemptions"].tolist() == [0, 1]
    assert token_times(result) == [[4.0 + 1.5 * k for k in range(9)], [22.0]]
    assert result.instances["prefill_tokens"][0] == 4 + 8 + 8


@pytest.mark.parametrize("name", ["tight, recompute", "tight, swap", "roomy"])
def test_where_nothing_is_prefilled_a_run_is_one_of_decodes_alone(name: str) -> None:
    """On decode instances: the same to the bit whether they could share or not."""
    whole = Sharing(50, {1: 1.0, 100: 1.0}, {1: 1.0, 100: 1.0})
    workload, engine = SCENARIOS[name].workload, replace(SCENARIOS[name].engine, sharing=whole, recompute="routed")
    cluster = CLUSTERS["disaggregated"]
    runs = []
    for batching in ("concurrent", "decode_first"):
        pools = [replace(pool, batching=batching if pool.role == "decode" else None) for pool in cluster.pools]
        runs.append(simulate(workload, replace(cluster, pools=tuple(pools)), MODEL, AFFINE, engine, Disaggregated()))
    for part in ("requests", "step_log", "token_log"):
        assert getattr(runs[0], part).tobytes() == getattr(runs[1], part).tobytes()


def test_slowdowns_between_and_below_points() -> None:
    prefill, decode = Sharing(50, {20: 3.0, 60: 2.0, 100: 1.0}, {100: 1.0}).slowdowns()
    assert prefill[[60, 80, 100]].tolist() == [2.0, 1.5, 1.0]
    assert prefill[40] == 2.5
    assert prefill[10] == 6.0
    assert decode[[50, 25]].tolist() == [2.0, 4.0]
    assert prefill[0] == decode[0] == np.inf


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefill_percent": 100}, "engine.sharing.prefill_percent must be from 1 to 99, got 100"),
        ({"prefill_percent": 0}, "engine.sharing.prefill_percent must be a whole number of at least 1"),
        ({"decode_slowdown": {50: 2.0}}, "engine.sharing.decode_slowdown must be slowdowns by percent of the SMs"),
        ({"decode_slowdown": {50: 0.5, 100: 1.0}}, "at 50 % must be a finite number of at least 1"),
        ({"prefill_slowdown": {50: 2.0, 80: 3.0, 100: 1.0}}, "must not rise with the percent and end with 1 at 100"),
        ({"prefill_slowdown": {100: 1.0, 120: 1.0}}, "must not rise with the percent and end with 1 at 100"),
        ({"contention": 1}, "engine.sharing.contention must be true or false"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Sharing(**settings)
    assert message in str(caught.value)


class Divided(Aggregated):
    """The division by the time: `percents` from each moment on."""

    shares_gpus = True

    def __init__(self, percents: dict[float, int | None]) -> None:
        self.percents = percents

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        since = max(at_s for at_s in self.percents if at_s <= cluster.now_s)
        return Plan(64, "concurrent", self.percents[since])


def test_a_stream_takes_up_its_new_part_at_its_own_next_step() -> None:
    sharing = Sharing(50, {20: 5.0, 50: 2.0, 100: 1.0}, {20: 4.0, 50: 1.5, 80: 1.25, 100: 1.0}, contention=False)
    result = play([(0, 4, 6), (5, 4, 1)], sharing, Divided({0.0: None, 5.0: 20}))
    # The plan of 20 % is made at 5, when request 1 comes: its prefill takes 2 * 5 s. The decode step under way ends at
    # 5.5 as it would have; those after it have 80 %.
    assert token_times(result) == [[4.0, 5.5, 6.75, 8.0, 9.25, 10.5], [15.0]]


def test_a_policy_says_that_it_shares_gpus() -> None:
    policy = Divided({0.0: 20})
    vars(policy)["shares_gpus"] = False
    with pytest.raises(PolicyError, match="says shares_gpus = True"):
        play([(0, 4, 2)], policy=policy, batching="decode_first")
    with pytest.raises(PolicyError, match="1 <= prefill_percent <= 99"):
        play([(0, 4, 2)], policy=Divided({0.0: 100}))


def test_a_run_that_shares_stays_below_the_bound() -> None:
    """Both streams at full speed do in a second what an instance alone does in two."""
    rows = [(0.0, 8, 1 + 9 * (k % 2)) for k in range(40)]
    free = Sharing(50, {1: 1.0, 100: 1.0}, {1: 1.0, 100: 1.0}, contention=False)
    result = play(rows, free)
    slo = Slo(None, None)
    found = bound(Setting(result.workload, result.cluster, MODEL, TIMING, result.engine, slo=slo))
    assert 40 / result.requests["end_s"].max() <= found.goodput
    apart = streams_apart(result.cluster, result.engine)
    assert [pool.instances for pool in apart.pools] == [2]
    assert any_stream(ONE).instances == 2


# --- the policy -------------------------------------------------------------------------------------------------------

L20 = Sharing(
    50,
    {40: 2.1429, 50: 1.7143, 60: 1.5, 70: 1.3333, 80: 1.2, 90: 1.0909, 100: 1.0},
    {30: 1.322, 40: 1.19, 50: 1.12, 60: 1.09, 70: 1.065, 80: 1.04, 90: 1.02, 100: 1.0},
    contention=False,
)


DIVIDED: Any = compiled(DECISION)(divided.function)


class Noted(Nexus):
    """Keeps what it planned."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.planned: list[tuple[float, int]] = []
        vars(self)["batching"] = self.noted

    def noted(self, instance: int, cluster: Cluster) -> Plan:
        percent, token_budget, _ = decode_plan(DIVIDED(instance, cluster.view, self.compiled_params, np.zeros(16)))
        self.planned.append((cluster.now_s, percent))
        return Plan(token_budget, "concurrent", percent)


def test_prefills_get_what_decodes_can_spare_and_decodes_when_memory_is_nearly_full() -> None:
    policy = Noted(hysteresis=0)
    play([(0, 4, 60), (10, 4, 1)], L20, policy)
    assert policy.planned[0] == (0.0, 99)  # nothing decodes
    # Decodes keep within 1.1 of their time down to 100 - 43 = 57 % (1.09 + 0.3 * 0.03 = 1.099).
    assert dict(policy.planned)[10.0] == 43
    policy = Noted(hysteresis=0)
    play([(0, 200, 60), (100, 4, 1)], L20, policy, kv_tokens=288)
    # 70 % of the memory is in use: prefills keep within 1.3 from 73 % on (1.3333 - 0.3 * 0.1333 = 1.293).
    assert dict(policy.planned)[100.0] == 73


def test_small_changes_of_the_division_are_left_out() -> None:
    policy = Noted(hysteresis=60, prefill_percent=50)
    play([(0, 4, 60), (10, 4, 1)], L20, policy)
    assert {percent for _, percent in policy.planned} == {50}


def test_short_prompts_go_first_and_age() -> None:
    rows = [(0.0, 64, 2), (1.0, 60, 1), (2.0, 20, 1)]
    for aging, order in ((0.0, [0, 2, 1]), (100.0, [0, 1, 2])):
        result = play(rows, L20, Nexus(aging=aging), token_budget=64)
        assert np.argsort(result.requests["prefill_end_s"]).tolist() == order
    result = play(rows, L20, Nexus(queue="fcfs", split="static"), token_budget=64)
    assert np.argsort(result.requests["prefill_end_s"]).tolist() == [0, 1, 2]


def test_usage_counts_both_streams() -> None:
    result = play([(0, 4, 6), (5, 4, 3)])
    summary = evaluate(result, Slo()).summary
    assert 0 < summary["mfu"] < 1
    assert summary["energy_j"] == pytest.approx(100.0 * 13.0)  # busy throughout, at the TDP


def test_log_and_timeline_tell_the_streams_apart() -> None:
    result = play([(0, 4, 6), (5, 4, 3)])
    table = step_table(result)
    assert table["stream"].to_list() == result.step_log["stream"].tolist()
    assert "stream" not in step_table(play([(0, 4, 6)], batching="decode_first")).columns
    packed = io.BytesIO()
    write_timeline(result, packed)
    events = json.loads(gzip.decompress(packed.getvalue()))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {threads[event["tid"]] for event in slices if event["name"] == "prefill"} == {"concurrent prefills"}
    assert {threads[event["tid"]] for event in slices if event["name"] == "decode"} == {"steps"}
    batches = [event["args"]["requests"] for event in events if event["ph"] == "C" and event["name"] == "batch"]
    assert batches == [1, 2, 1, 0]
