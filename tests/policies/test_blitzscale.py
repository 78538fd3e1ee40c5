"""What distinguishes BlitzScale: all instances that lack are started at once, and stopped soon after."""

from __future__ import annotations

import pytest

from framework.policy import Policy
from framework.result import Result
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from policies.blitzscale import BlitzScale
from policies.llumnix import Llumnix
from tests.helpers.by_hand import GPU, play

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
FLEET = ClusterSpec((PoolSpec("mixed", "mixed", 4, GPU, on_at_start=1),), LinkSpec(1e15, 1e-6))
BURST = [(0.5, 100, 1)] * 6 + [(6.25, 100, 1)] * 3 + [(40.0, 4, 1)]


def played(policy: Policy, implementation: str = "compiled") -> Result:
    return play(policy, BURST, FLEET, kv_tokens=1000, start_s=5.0, implementation=implementation)


@ENGINES
def test_a_burst_starts_all_that_lack_at_once(implementation: str) -> None:
    """Six prompts of 100 tokens, a second each, are 6 s of work on the only instance that is on. At 1 s the other three
    are started, and take a prompt each when they come 5 s later. Llumnix starts one at a time, 10 s apart.
    """
    policy = BlitzScale(wait_s=1.0, period_s=1.0, calm_s=4.0)
    result = played(policy, implementation)
    assert result.requests["prefill_instance"].tolist() == [0] * 6 + [1, 2, 3, 1]
    slow = played(Llumnix(start_below=1e6))
    assert len(set(slow.requests["prefill_instance"][6:9].tolist()) - {0}) <= 1


@ENGINES
def test_instances_without_work_are_stopped_after_the_calm_time(implementation: str) -> None:
    """The run lasts from 0.5 s to 41 s, and three instances are off until 1 s. At 7 s no look of the last 4 s has
    wanted more than three, and instance 0, which has nothing to do, is stopped. At 11 s none has wanted more than one.
    """
    result = played(BlitzScale(wait_s=1.0, period_s=1.0, calm_s=4.0), implementation)
    assert result.instances["off_s"].tolist() == [34.0, 0.5, 30.5, 30.5]


def test_kv_memory_is_a_reason_too() -> None:
    """Five requests hold 250 of 400 tokens from 2 s on, more than half: one instance more is started."""
    rows = [(0.0, 50, 30)] * 5 + [(8.5, 10, 1)]
    policy = BlitzScale(wait_s=100.0, kv=0.5, period_s=1.0)
    result = play(policy, rows, FLEET, kv_tokens=400, start_s=5.0)
    assert result.requests["prefill_instance"].tolist() == [0] * 5 + [1]
    policy = BlitzScale(wait_s=100.0, kv=1.0, period_s=1.0)
    assert play(policy, rows, FLEET, kv_tokens=400, start_s=5.0).requests["prefill_instance"].tolist() == [0] * 6
