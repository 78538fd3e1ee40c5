"""What distinguishes FailSafe: it goes on where others wait, sends less where GPUs failed, and has a backup of KV."""

from __future__ import annotations

import numpy as np
import pytest

from framework.policy import Policy
from framework.result import Result
from framework.run.compose import compose
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.faults import Crash, FaultSchedule
from framework.system.fewer_gpus import AfterLoss, FewerGpus
from framework.system.parallelism import Parallelism
from framework.timing.table import StepRow
from policies.failsafe import FailSafe
from policies.lmetric import LMetric
from tests.helpers.by_hand import GPU, Rows, play
from tests.helpers.composing import configured

STEP = StepRow(base_s=0.5, per_sequence_s=0.5)


def lose_one(
    policy: Policy, rows: Rows, instances: int, repaired_after_s: float, after_loss: AfterLoss = "wait"
) -> Result:
    """The run of instances of two GPUs, one of which fails at 2.5 s."""
    pool = PoolSpec("mixed", "mixed", instances, GPU, Parallelism(tp=2))
    faults = FaultSchedule(crashes=[Crash(2.5, 0, repaired_after_s, gpus=1)], fewer=FewerGpus(after_loss, 0.5, 1e9))
    return play(policy, rows, ClusterSpec((pool,), LinkSpec(1e15, 1e-6)), row=STEP, faults=faults)


def test_it_serves_while_others_wait_for_the_repair() -> None:
    rows = [(float(k), 2, 4) for k in range(10)]
    goes_on, waits = (lose_one(policy, rows, 1, 100.0) for policy in (FailSafe(), LMetric()))
    assert (goes_on.requests["end_s"] < 60.0).all()
    assert (waits.requests["end_s"] > 100.0).all()


@pytest.mark.parametrize(("grows", "crashes"), [(True, 2), (False, 1)])
def test_it_comes_back_whole_if_that_is_chosen(grows: bool, crashes: int) -> None:
    assert len(lose_one(FailSafe(grows=grows), [(0.0, 2, 40)], 1, 10.0).crashes) == crashes


def test_an_instance_with_half_of_its_gpus_gets_half_as_many_prompts() -> None:
    """Products of tokens and requests are equal for each squared GPU at 4 and 8 requests; LMetric has 6 on each."""
    rows = [(0.0, 2, 1), *[(10.0, 8, 4)] * 12]
    results = [lose_one(policy, rows, 2, 500.0, "go_on") for policy in (FailSafe(), LMetric())]
    chosen = [result.requests["prefill_instance"][1:] for result in results]
    assert [np.bincount(instances).tolist() for instances in chosen] == [[4, 8], [6, 6]]


def test_prompts_are_loaded_from_the_backup() -> None:
    """Without stores all tokens of the requests that were dropped are computed again."""
    words = ("cluster.instances=1", "cluster.tp=2", "trace=synthetic", "trace.limit=40", "timing=roofline")
    loss = ("engine/faults=gpu", "engine.faults.crashes=[{instance:0,at_s:1.0,down_s:500.0,gpus:1}]")
    without = "engine/prefix_stores=none"
    results = [compose(configured("policy=failsafe", *words, *loss, *more)).run() for more in ((), (without,))]
    assert all(len(result.drops) > 0 for result in results)
    assert results[0].tiers["loaded_bytes"].sum() > 0
    computed = [int(result.instances["prefill_tokens"].sum()) for result in results]
    assert computed[0] < computed[1]
