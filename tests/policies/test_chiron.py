"""What distinguishes Chiron: seats follow the pace, instances are for the deadlines of batch requests, not for their
number.
"""

from __future__ import annotations

import numpy as np
import pytest

from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from policies.blitzscale import BlitzScale
from policies.chiron import Chiron
from policies.vllm_v1 import VllmV1
from tests.helpers.by_hand import GPU, play

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
FLEET = ClusterSpec((PoolSpec("mixed", "mixed", 4, GPU, on_at_start=1),), LinkSpec(1e15, 1e-6))


@ENGINES
def test_an_instance_that_is_too_slow_gets_fewer_seats(implementation: str) -> None:
    """Eight that decode take 2.5 s a step, where 1.5 s are allowed: the backpressure of 5/3 leaves int(8 * 3/5) = 4
    seats. A ninth request has a seat once five have ended, without Chiron once one has.
    """
    rows = [(0.0, 4, 4 + k) for k in range(8)] + [(6.0, 4, 2)]
    row = StepRow(base_s=0.5, per_sequence_s=0.25)
    starts = [
        play(policy, rows, row=row, implementation=implementation).requests["start_s"][-1]
        for policy in (Chiron(tpot_s=1.5, classes_ttft_s=[1.0], period_s=1.0), VllmV1())
    ]
    ends = np.sort(play(VllmV1(), rows[:8], row=row).requests["end_s"])
    assert starts[1] == ends[0]
    assert starts[0] > ends[3]


@ENGINES
@pytest.mark.parametrize(("limit_s", "where"), [(1000.0, [0] * 8), (12.0, [0, 0, 1, 0, 1, 0, 1, 0])])
def test_batch_requests_get_instances_for_their_deadline(limit_s: float, where: list[int], implementation: str) -> None:
    """Eight prompts of 100 tokens and two steps each, and one seat. At 2 s 102 tokens have taken 2 s, and 600 or more
    wait. The instance that is kept for interactive requests can do 510 in the 10 s that are left to them, so that one
    more is started, and takes what waits whenever it has a seat. Within 1,000 s it need not.
    """
    rows, batch = [(0.0, 100, 2)] * 8, {"slo_class": np.array(["batch"] * 8)}
    policy = Chiron(classes_ttft_s=[limit_s], interactive_s=5.0)
    result = play(policy, rows, FLEET, columns=batch, max_batch=1, kv_tokens=1000, implementation=implementation)
    assert result.requests["prefill_instance"].tolist() == where
    assert result.requests["first_token_s"].max() <= max(limit_s, 15.0)
    at_once = play(BlitzScale(wait_s=1.0, period_s=1.0), rows, FLEET, columns=batch, max_batch=1, kv_tokens=1000)
    assert at_once.instances["off_s"].max() < 2.0  # by the number of requests all are started


@ENGINES
def test_batch_requests_step_aside_for_interactive_ones(implementation: str) -> None:
    """There is one seat. The chat request has it from 3 s on, and the batch request's 7 tokens are computed again."""
    rows, columns = [(0.0, 4, 20), (2.5, 4, 2)], {"slo_class": np.array(["batch", "chat"])}
    starts = [
        play(policy, rows, columns=columns, max_batch=1, implementation=implementation).requests["start_s"][1]
        for policy in (Chiron(classes_ttft_s=[1000.0, 1.0]), VllmV1())
    ]
    assert starts == [3, 20]


@pytest.mark.parametrize(("use", "last"), [(1.0, 0), (0.5, 1)])
def test_interactive_requests_need_a_share_of_their_instances(use: float, last: int) -> None:
    """Two take the two seats of the only instance. If they may need half of the instances, one more is started."""
    policy = Chiron(classes_ttft_s=[1.0], use=use)
    rows, columns = [(0.0, 4, 20), (0.0, 4, 20), (5.5, 4, 2)], {"slo_class": np.array(["chat"] * 3)}
    result = play(policy, rows, FLEET, columns=columns, max_batch=2)
    assert result.requests["prefill_instance"].tolist() == [0, 0, last]


@ENGINES
def test_interactive_prompts_need_instances_to_compute_them(implementation: str) -> None:
    """Three prompts of 1 s each come in the first second, which three instances compute in a second; they take three
    of four seats, for which one would do. At 1 s two are started, and one of them gets the fourth prompt.
    """
    rows, columns = [(0.1 * k, 100, 2) for k in range(3)] + [(1.5, 100, 2)], {"slo_class": np.array(["chat"] * 4)}
    policy = Chiron(classes_ttft_s=[1.0], use=1.0)
    row = StepRow(per_prefill_token_s=0.01)
    result = play(
        policy, rows, FLEET, columns=columns, row=row, max_batch=4, kv_tokens=1000, implementation=implementation
    )
    assert result.requests["prefill_instance"].tolist() == [0, 0, 0, 1]
    assert result.instances["off_s"][3] > 1.5
