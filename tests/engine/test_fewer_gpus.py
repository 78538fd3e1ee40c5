"""Instances that lose a GPU and go on with the other, worked out by hand in both engines.

A step of one decode takes 0.5 s and another 0.5 s of the work of two GPUs, or 1 s of one. A prompt takes 0.25 s or
0.5 s a token in place of that. Half of the weights are loaded in 0.5 s, and setting up takes another 0.5 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.parallel.sm_sharing import Sharing
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.clock import clock_of
from framework.metrics.invariants import check_result
from framework.metrics.service.crashes import crash_figures
from framework.metrics.slo import Slo
from framework.metrics.usage import usage
from framework.policy import Action, Policy, Preempt, Resume
from framework.policy.spans import Span
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import Batching, ClusterSpec, LinkSpec, PoolSpec
from framework.system.faults import Crash, FaultSchedule
from framework.system.fewer_gpus import AfterLoss, FewerGpus
from framework.system.gpu import Gpu
from framework.system.model import kv_capacity_tokens
from framework.system.parallelism import Parallelism
from framework.system.random_faults import RandomFaults
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.bounds import server
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL, RowTiming

HEADS = replace(MODEL, heads=8, kv_heads=8)
GPU = server("gpu", 100_000)
TIMING = RowTiming({"gpu": StepRow(base_s=0.5, per_prefill_token_s=0.25, per_sequence_s=0.5)})
ENGINES = pytest.mark.parametrize("engine", ["compiled", "reference"])
LOSS = Crash(2.5, 0, 10.0, gpus=1)


class Scripted(Policy):
    """Acts at ticks as it is told, and notes what it sees then."""

    roles = ("mixed",)
    tick_s = 0.25

    def __init__(self, script: Mapping[float, Sequence[Action]] | None = None) -> None:
        self.script = script or {}
        self.seen: dict[float, tuple[int, int]] = {}

    def on_tick(self, cluster: Cluster) -> Sequence[Action]:
        self.seen[cluster.now_s] = int(cluster.instances.gpus[0]), int(cluster.instances.total_blocks[0])
        return self.script.get(cluster.now_s, ())


class Choosing(Policy):
    """Answers `reconfigure` as it is told, and notes when it was asked and what it saw."""

    roles = ("mixed",)

    def __init__(self, *answers: bool) -> None:
        self.answers, self.asked = list(answers), list[tuple[float, int, int]]()

    def reconfigure(self, instance: int, cluster: Cluster) -> bool:
        self.asked.append((cluster.now_s, instance, int(cluster.instances.gpus[instance])))
        return self.answers.pop(0)


def play(
    engine: str,
    rows: Sequence[tuple[float, int, int]],
    policy: Policy | None = None,
    after_loss: AfterLoss = "go_on",
    crashes: Sequence[Crash] = (LOSS,),
    batching: Batching = "prefill_first",
    gpu: Gpu | None = None,
    **options: Any,
) -> Result:
    pool = PoolSpec("mixed", "mixed", 1, gpu or GPU, Parallelism(tp=2), batching=batching)
    faults = FaultSchedule(crashes=crashes, fewer=FewerGpus(after_loss, 0.5, HEADS.weight_bytes))
    given: dict[str, Any] = {"token_budget": 100, "block_tokens": 1, "watermark": 0.0, "kv_tokens": 100}
    config = EngineConfig(**(given | {"implementation": engine, "faults": faults} | options))
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    workload = Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs))
    result = simulate(workload, ClusterSpec((pool,), LinkSpec(2.0**60)), HEADS, TIMING, config, policy or Policy())
    check_result(result)
    return result


@ENGINES
def test_it_goes_on_with_one_gpu_and_comes_back_with_two(engine: str) -> None:
    """It is down from 2.5 to 3.5 s, computes 4 tokens in 2.5 s, and decodes in 1.5 s. The GPU is repaired at 12.5 s:
    the step under way is lost. From 13.5 s on it computes 9 tokens in 2.75 s, and decodes in 1 s.
    """
    result = play(engine, [(0, 2, 9)])
    assert token_times(result) == [[1, 2, 6, 7.5, 9, 10.5, 12, 16.25, 17.25]]
    rows = [tuple(row) for row in result.crashes[["at_s", "back_s", "noticed_s"]].tolist()]
    assert rows == [(2.5, 3.5, 2.5), (12.5, 13.5, 12.5)]
    figures = crash_figures(result, clock_of(result, Slo()))
    assert figures["availability"] == pytest.approx(1 - 2 / 17.25)
    assert figures["lost_tokens"] == 3 + 8


@ENGINES
def test_it_waits_for_the_repair_if_that_is_chosen(engine: str) -> None:
    result = play(engine, [(0, 2, 6)], after_loss="wait")
    assert token_times(result) == [[1, 2, 14, 15, 16, 17]]
    assert result.crashes[["at_s", "back_s"]].tolist() == [(2.5, 12.5)]


@ENGINES
def test_gpus_that_have_failed_are_paid_for(engine: str) -> None:
    result = play(engine, [(0, 2, 6)])
    assert usage(result, clock_of(result, Slo()))["gpu_hours"] == pytest.approx(2 * 10.5 / 3600)


@ENGINES
def test_a_policy_chooses_at_the_loss_and_at_the_repair(engine: str) -> None:
    """It goes on with one GPU, and stays so when the other is repaired."""
    policy = Choosing(True, False)
    result = play(engine, [(0, 2, 9)], policy, after_loss="wait")
    assert policy.asked == [(2.5, 0, 1), (12.5, 0, 2)]
    assert token_times(result) == [[1, 2, 6, 7.5, 9, 10.5, 12, 13.5, 15]]
    assert result.instances["total_blocks"].tolist() == [100]  # of all GPUs: shares of memory are of what is paid for


@ENGINES
def test_a_policy_may_wait_where_the_setting_goes_on(engine: str) -> None:
    policy = Choosing(False)
    assert token_times(play(engine, [(0, 2, 6)], policy)) == [[1, 2, 14, 15, 16, 17]]
    assert policy.asked == [(2.5, 0, 1)]


@ENGINES
def test_nobody_is_asked_where_the_repair_comes_first(engine: str) -> None:
    policy = Choosing()
    result = play(engine, [(0, 2, 4)], policy, crashes=[Crash(2.5, 0, 1.0, gpus=1)])
    assert policy.asked == []
    assert token_times(result) == [[1, 2, 5, 6]]


@ENGINES
def test_it_has_half_the_memory_meanwhile(engine: str) -> None:
    policy = Scripted()
    play(engine, [(0, 2, 9)], policy)
    changes = [(time_s, seen) for time_s, seen in policy.seen.items() if policy.seen.get(time_s - 0.25) != seen]
    assert changes == [(0.25, (2, 100)), (2.5, (1, 50)), (12.5, (2, 100))]


@ENGINES
def test_decodes_have_the_memory_bandwidth_of_the_gpus_that_are_left(engine: str) -> None:
    """Request 1 is prefilled from 7 to 11.5 s, when decode steps that begin take as much longer as the one GPU takes to
    read the weights: 0.5 s.
    """
    gpu = replace(GPU, bandwidth_bytes_s=2 * HEADS.weight_bytes)
    same = {1: 1.0, 100: 1.0}
    result = play(
        engine,
        [(0, 2, 8), (7, 8, 1)],
        crashes=[replace(LOSS, down_s=99.0)],
        batching="concurrent",
        gpu=gpu,
        sharing=Sharing(50, same, same),
    )
    assert token_times(result) == [[1, 2, 6, 7.5, 9.5, 11.5, 13, 14.5], [11.5]]


@ENGINES
def test_what_no_longer_fits_fails_and_what_comes_is_rejected(engine: str) -> None:
    """A request of 61 blocks fits two GPUs alone; from the loss to the repair there is one."""
    result = play(engine, [(0, 2, 60), (5, 2, 60), (13, 2, 60)])
    assert [result.reasons[reason] for reason in result.requests["reason"]] == ["kv", "kv", ""]
    assert result.requests["end_s"][:2].tolist() == [3.5, 5.0]


@ENGINES
def test_what_no_longer_fits_fails_when_it_is_resumed(engine: str) -> None:
    policy = Scripted({1.5: [Preempt(0, "drop")], 4.0: [Resume(0)]})
    result = play(engine, [(0, 2, 60), (5, 2, 1)], policy)
    assert [result.reasons[reason] for reason in result.requests["reason"]] == ["kv", ""]
    assert result.requests["end_s"][0] == 4.0


@ENGINES
def test_it_waits_where_the_model_does_not_fit_the_others(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(GPU, memory_bytes=HEADS.weight_bytes / 0.9 * 0.75)
    monkeypatch.setitem(play.__globals__, "GPU", small)
    policy = Choosing()
    assert token_times(play(engine, [(0, 2, 4)], policy)) == [[1, 2, 14, 15]]
    assert policy.asked == []


def test_kv_and_attention_are_shared_evenly_or_by_heads() -> None:
    """Seven of eight GPUs with eight KV heads: one has two heads, so twice the attention and the KV of a token."""
    pool = PoolSpec("mixed", "mixed", 1, GPU, Parallelism(tp=8))
    even, heads = (FewerGpus("go_on", 0.5, 1e3, split).of(HEADS, pool, 1, 1.0, 1.0) for split in ("even", "heads"))
    assert even.work == even.attention == heads.work == 8 / 7
    assert heads.attention == 2.0
    free = GPU.memory_bytes - HEADS.weight_bytes / 7
    token_bytes = HEADS.kv_bytes_per_token
    assert (even.kv_tokens, heads.kv_tokens) == (int(free // (token_bytes / 7)), int(free // (token_bytes / 4)))
    assert even.kv_tokens < kv_capacity_tokens(HEADS, GPU, Parallelism(tp=8), 1.0)
    assert even.shrink_s == pytest.approx(0.5 + (1 / 7 - 1 / 8) * HEADS.weight_bytes / 1e3)
    assert even.grow_s == pytest.approx(0.5 + HEADS.weight_bytes / 8 / 1e3)


def test_random_failures_take_gpus_of_instances_that_have_more() -> None:
    pools = [PoolSpec(f"of {tp}", "mixed", 1, GPU, Parallelism(tp=tp)) for tp in (1, 4)]
    faults = RandomFaults(gpu_mtbf_s=100.0, down_s=10.0, until_s=1000.0, gpus=1, seed=1)
    crashes = faults.schedule(ClusterSpec(tuple(pools), LinkSpec(1e9))).crashes
    assert {(crash.instance, crash.gpus) for crash in crashes} == {(0, 0), (1, 1)}
    assert sum(crash.instance == 1 for crash in crashes) > sum(crash.instance == 0 for crash in crashes)


class Together(Policy):
    roles = ("mixed",)

    def span(self, request: Request, cluster: Cluster) -> Span | None:
        return None


@pytest.mark.parametrize(
    ("parallelism", "gpus", "policy", "message"),
    [
        (Parallelism(tp=2), 2, Policy(), "instance 0 has 2 GPUs and cannot lose 2 of them and go on; leave gpus out"),
        (Parallelism(tp=2, pp=2), 1, Policy(), r"\(tp2-pp2\) cannot lose 1 of their GPUs and go on; set cluster.pp=1"),
        (Parallelism(tp=2), 1, Together(), "instances that share requests and instances that lose GPUs"),
    ],
)
def test_what_cannot_go_on_is_refused_in_a_line(
    parallelism: Parallelism, gpus: int, policy: Policy, message: str
) -> None:
    pool = PoolSpec("mixed", "mixed", 1, GPU, parallelism)
    config = EngineConfig(faults=FaultSchedule(crashes=[Crash(1.0, 0, 1.0, gpus=gpus)]))
    workload = Workload(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64))
    with pytest.raises(InputError, match=message):
        simulate(workload, ClusterSpec((pool,), LinkSpec(1e9)), HEADS, TIMING, config, policy)
