"""What distinguishes Apex from chunked prefill: each of its five rules against the neighbour's that its word names."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from framework.engine.parallel.sm_sharing import Sharing
from framework.policy import Cluster, Plan
from framework.timing.table import StepRow
from policies._on_time import on_time_first
from policies._step_limits import under_way
from policies.apex import Apex
from policies.chunked import Chunked
from tests.helpers.by_hand import fleet, play
from tests.helpers.scenarios import prefixes

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
PROMPTS = StepRow(base_s=0.0, per_prefill_token_s=2.0**-4)  # 16 prompt tokens in a second
STEP = StepRow(base_s=0.0, per_prefill_token_s=2.0**-6, per_sequence_s=2.0**-2)
PROPORTIONAL = Sharing(50, {100: 1.0}, {100: 1.0}, contention=False)


class Limited(Apex):
    """With limits, which a run by hand has not; keeps its plans for prompts next to decodes."""

    def __init__(self, ttft_s: float, tpot_s: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.allowed_s, self.plans = (ttft_s, tpot_s), list[Plan]()

    def prepare(self, cluster: Cluster) -> None:
        super().prepare(cluster)
        size = len(cluster.requests.arrival_s)
        self.ttft_s, self.tpot_s = (np.full(size, limit_s) for limit_s in self.allowed_s)

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        plan, there = super().batching(instance, cluster), cluster.instances
        if there.running[instance] and there.queued_tokens[instance]:
            self.plans.append(plan)
        return plan


@ENGINES
@pytest.mark.parametrize(("order", "first_s"), [("on_time", [6, 1, 2, 3]), ("arrival", [3, 4, 5, 6])])
def test_the_longest_prompt_waits_so_that_others_are_in_time(
    implementation: str, order: str, first_s: list[float]
) -> None:
    """Of 3 s and three times 1 s, three can be done within 4 s."""
    policy = Limited(4.0, 10.0, order=order)
    rows = [(0.0, 48, 1), (0.0, 16, 1), (0.0, 16, 1), (0.0, 16, 1)]
    result = play(policy, rows, row=PROMPTS, token_budget=16, kv_tokens=4000, implementation=implementation)
    assert result.requests["first_token_s"].tolist() == first_s


@ENGINES
@pytest.mark.parametrize(("other", "instance"), [(16, 0), (80, 1)])
def test_a_prefix_is_weighed_against_the_queue_before_it(implementation: str, other: int, instance: int) -> None:
    """Instance 0 has 64 of 80 tokens: it saves 4 s of 5, and another prompt there costs 1 s, or 5."""
    ids = [list(range(80)), [200 + k for k in range(other)], list(range(64)) + [500 + k for k in range(16)]]
    rows = [(0.0, 80, 1), (9.0, other, 1), (9.0, 80, 1)]
    settings: dict[str, Any] = {"columns": prefixes(ids, 1), "prefix_cache": True, "token_budget": 16}
    settings |= {"kv_tokens": 4000, "row": PROMPTS, "implementation": implementation}
    result = play(Limited(20.0, 10.0), rows, fleet(mixed=2), **settings)
    assert result.requests["prefill_instance"].tolist() == [0, 0, instance]
    neighbour = play(Chunked(), rows, fleet(mixed=2), **settings)
    assert neighbour.requests["prefill_instance"].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("budget", "tpot_s", "tokens"),
    [
        ("slack", 1.5, [129]),  # up to 6 s
        ("slack", 0.5, [65, 65]),  # up to 2 s, then 0.9 * 1.5 s that are left
        ("step", 1.5, [65, 65]),  # 0.9 * 1.5 s
        ("fixed", 0.8, [128, 128]),
    ],
)
def test_the_tightest_decode_sets_the_step(budget: str, tpot_s: float, tokens: list[int]) -> None:
    """A prompt of 128 tokens, of 1 s each 64, comes to a decode that takes 0.25 s and has saved many seconds."""
    policy = Limited(50.0, tpot_s, budget=budget, streams="never")
    play(policy, [(0.0, 16, 40), (2.0, 128, 1)], row=STEP, token_budget=128, kv_tokens=4000)
    assert [plan.token_budget for plan in policy.plans] == tokens


@ENGINES
@pytest.mark.parametrize(
    ("ttft_s", "streams", "mode"),
    [(60.0, "spare", "concurrent"), (2.5, "spare", "decode_first"), (60.0, "never", "decode_first")],
)
def test_streams_share_the_gpu_while_prompts_have_time(
    implementation: str, ttft_s: float, streams: str, mode: str
) -> None:
    """A prompt of 2 s comes to a decode. Within 2.5 s it is done only at nearly full speed."""
    policy = Limited(ttft_s, 2.0, streams=streams)
    options: dict[str, Any] = {"token_budget": 256, "kv_tokens": 4000, "sharing": PROPORTIONAL}
    play(policy, [(0.0, 16, 40), (2.0, 128, 1)], row=STEP, **options, implementation=implementation)
    assert {plan.batching for plan in policy.plans} == {mode}


@ENGINES
@pytest.mark.parametrize(
    ("room", "tokens_per_s", "waits", "preemptions"),
    [("rest", 16, False, [1, 0]), ("wait", 16, True, [0, 0]), ("rest", 4, True, [0, 0])],
)
def test_a_decode_makes_room_for_a_prompt_in_time(
    implementation: str, room: str, tokens_per_s: int, waits: bool, preemptions: list[int]
) -> None:
    """A decode holds KV that a prompt of 84 tokens needs within 60 s. At 4 tokens a second that takes so much of the
    time that nothing is to be computed again.
    """
    row = StepRow(base_s=0.0, per_prefill_token_s=1 / tokens_per_s, per_sequence_s=1.0)
    options: dict[str, Any] = {"row": row, "implementation": implementation}
    result = play(Limited(60.0, 20.0, room=room, streams="never"), [(0.0, 16, 80), (5.0, 84, 2)], **options)
    first_s, end_s = result.requests["first_token_s"], result.requests["end_s"]
    assert (first_s[1] > end_s[0]) == waits
    assert result.requests["preemptions"].tolist() == preemptions
    assert result.requests["emitted"].tolist() == [80, 2]


@ENGINES
@pytest.mark.parametrize(("room", "preemptions"), [("rest", [1, 0]), ("wait", [0, 1])])
def test_the_decode_that_will_hold_most_kv_is_preempted(implementation: str, room: str, preemptions: list[int]) -> None:
    """Both decodes fill the memory after 35 s. The first has 35 tokens, so as many more are expected; the other 25."""
    result = play(Limited(60.0, 4.0, room=room), [(0.0, 10, 70), (10.0, 30, 30)], implementation=implementation)
    assert result.requests["preemptions"].tolist() == preemptions


def test_the_fewest_prompts_are_late() -> None:
    """Moore and Hodgson, against all subsets of small sets of prompts."""
    draws = np.random.default_rng(0)
    for _ in range(200):
        count = int(draws.integers(1, 8))
        own_s, due_s = draws.integers(1, 6, count).astype(float), np.sort(draws.integers(1, 16, count)).astype(float)
        late = np.zeros(count, np.bool_)
        need = on_time_first(due_s, own_s, 0.0, 0.0, late, np.empty(len(late), np.int64))
        sets = [np.array([(mask >> k) & 1 for k in range(count)], bool) for mask in range(1 << count)]
        fit = [int(kept.sum()) for kept in sets if np.all(np.cumsum(own_s * kept)[kept] <= due_s[kept])]
        assert count - int(late.sum()) == max(fit)
        assert need <= 1.0


def test_the_rest_of_a_prompt_is_counted_behind_its_prefix() -> None:
    """Two prompts of 96 and 32 tokens, of which 64 are left: 32 of the first, behind 64."""

    class Measured(Apex):
        found: ClassVar[list[tuple[float, int]]] = []

        def prepare(self, cluster: Cluster) -> None:
            times = cluster.instances.step_times
            self.found.append(under_way(times, 0, np.array([96, 32]), 64, 16))
            self.found.append(under_way(times, 0, np.zeros(0, np.int64), 0, 16))
            super().prepare(cluster)

    play(Measured(), [(0.0, 16, 1)], row=StepRow(base_s=1.0, prefill_quadratic_s=2.0**-10))
    alone_s = [1.0 + (end**2 - (end - 16) ** 2) * 2.0**-10 for end in (80, 96, 16, 32)]
    assert Measured.found == [(sum(alone_s), 64), (0.0, 0)]
