"""Requests cut in two, against timelines worked out by hand: a step lasts 1 s, a copy half a second a token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import PolicyError
from framework.metrics.invariants import check_result
from framework.policy import Action, Policy
from framework.policy.view import Cluster
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.affine import Affine
from framework.timing.estimate import StepTimes
from framework.timing.table import StepRow, stack
from framework.workload import Workload
from policies.dynaserve import DynaServe, balanced_cut, best_pair, largest_chunk
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL

GPU = server("g", 4000)
NAN = pytest.approx(math.nan, nan_ok=True)


class Cutting(Policy):
    """Request r is cut at `cuts[r]` and runs on the instances that `places` names in turn."""

    tick_s = 0.5

    def __init__(
        self, cuts: Sequence[Any], places: Sequence[int] = (0, 1), look: Callable[[Cluster], Any] | None = None
    ) -> None:
        self.cuts, self.places, self.look = cuts, places, look
        self.routed: dict[int, int] = {}
        self.seen: dict[float, Any] = {}

    def split_at(self, request: Any, cluster: Cluster) -> int:
        cut: int = self.cuts[request.id]
        return cut

    def route_prefill(self, request: Any, cluster: Cluster) -> int:
        self.routed[request.id] = self.routed.get(request.id, -1) + 1
        return self.places[self.routed[request.id]]

    def on_tick(self, cluster: Cluster) -> Sequence[Action]:
        if self.look is not None:
            self.seen[cluster.now_s] = self.look(cluster)
        return ()


class CuttingDecodes(Cutting):
    """The same, for cuts in the output."""

    def route_decode(self, request: Any, cluster: Cluster) -> int:
        return self.places[request.generated >= self.cuts[request.id] - request.input_tokens]


def trace(*rows: tuple[float, int, int]) -> Workload:
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    return Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs))


def play(workload: Workload, policy: Policy, pools: Sequence[PoolSpec] = (), **options: Any) -> Result:
    engine = EngineConfig(**({"token_budget": 10, "block_tokens": 1, "watermark": 0.0, "kv_tokens": 400} | options))
    spec = ClusterSpec(tuple(pools) or (PoolSpec("all", "mixed", 2, GPU),), LinkSpec(2.0 * MODEL.kv_bytes_per_token))
    result = simulate(workload, spec, MODEL, Affine(base_s=1.0), engine, policy)
    check_result(result)
    return result


def test_a_cut_in_the_prompt() -> None:
    """Four tokens prefilled by 1, copied by 3, six more prefilled by 4; two decode steps there."""
    policy = Cutting([4], look=lambda view: (*view.instances.queued_tokens, *view.instances.incoming_kv_tokens))
    result = play(trace((0, 10, 3)), policy)
    row = result.requests[0]
    assert (row["prefill_end_s"], row["first_token_s"], row["end_s"]) == (4, 4, 6)
    assert (row["prefill_instance"], row["decode_instance"], row["migrations"]) == (0, 1, 1)
    assert row["transfer_end_s"] == NAN
    assert [*result.instances["prefill_tokens"]] == [4, 6]
    assert [*result.instances["decode_tokens"]] == [0, 2]
    assert result.instances["transferred_bytes"][0] == 4 * MODEL.kv_bytes_per_token
    assert policy.seen[0.5] == (4, 0, 0, 0)
    assert policy.seen[1.5] == policy.seen[2.5] == (0, 6, 0, 4)


def test_kv_of_a_request_that_is_cut() -> None:
    """Four blocks on the first instance until 3; on the second ten from 1 on, eleven in the last decode step."""
    result = play(trace((0, 10, 3)), Cutting([4]))
    assert [*result.instances["kv_block_s"]] == pytest.approx([4 * 3, 10 * 3 + 11 + 12])
    assert [*result.instances["kv_token_s"]] == pytest.approx([4 * 3, 10 + 10 + 11])


def test_a_cut_in_the_output() -> None:
    """Two tokens by 2; eleven tokens of KV copied by 7.5; the third and fourth there."""
    result = play(trace((0, 10, 4)), CuttingDecodes([12]))
    row = result.requests[0]
    assert (row["first_token_s"], row["end_s"], row["migrations"]) == (1, 9.5, 1)
    assert row["transfer_end_s"] == NAN
    assert [*result.instances["decode_tokens"]] == [1, 2]
    assert result.instances["transferred_bytes"][0] == 11 * MODEL.kv_bytes_per_token


@pytest.mark.parametrize("cut", [10, 11])
def test_a_cut_between_prompt_and_output_is_a_transfer(cut: int) -> None:
    result = play(trace((0, 10, 3)), CuttingDecodes([cut]))
    row = result.requests[0]
    assert (row["first_token_s"], row["transfer_end_s"], row["end_s"], row["migrations"]) == (1, 6, 8, 0)


@pytest.mark.parametrize(("cut", "first_s", "end_s"), [(4, 2, 4), (12, 1, 3)])
def test_what_is_sent_nowhere_goes_on(cut: int, first_s: float, end_s: float) -> None:
    """The rest of a prompt is then a chunk of its own."""
    result = play(trace((0, 10, 3)), CuttingDecodes([cut], places=(0, 0)))
    assert (result.requests["first_token_s"][0], result.requests["end_s"][0]) == (first_s, end_s)
    assert result.instances["transferred_bytes"].sum() == 0


@pytest.mark.parametrize("cut", [0, 13, 100])
def test_no_cut(cut: int) -> None:
    result = play(trace((0, 10, 3)), Cutting([cut], places=(0, 9)))
    assert (result.requests["end_s"][0], result.requests["migrations"][0]) == (3, 0)


def test_decodes_leap_to_the_cut() -> None:
    result = play(trace((0, 10, 100)), CuttingDecodes([60]))
    decodes = [row for row in result.step_log if row["batch"] > 0]
    assert [(row["instance"], row["steps"]) for row in decodes] == [(0, 49), (1, 50)]


def test_a_rest_that_fits_nowhere_fails() -> None:
    """The second pool reserves five tokens for a request."""
    pools = [PoolSpec("a", "mixed", 1, GPU), PoolSpec("b", "mixed", 1, GPU, reserve_tokens=5)]
    result = play(trace((0, 10, 3)), Cutting([4]), pools)
    assert result.reasons[result.requests["reason"][0]] == "kv"
    assert result.requests["end_s"][0] == 1


@pytest.mark.parametrize(("cut", "message"), [(-1, "returned -1 for request 0"), ("half", "returned 'half'; return a")])
def test_what_is_no_cut(cut: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=f"split_at {message}"):
        play(trace((0, 10, 3)), Cutting([cut]))


def alike(row: StepRow) -> StepTimes:
    """Of two instances."""
    return StepTimes(*stack([row]), np.zeros(2, np.int64), np.ones(2, np.int64))


@pytest.mark.parametrize(("limit_s", "chunk"), [(6.0, 2), (12.0, 2), (15.0, 5), (99.0, 8)])
def test_the_largest_chunk_within_a_limit(limit_s: float, chunk: int) -> None:
    """With 5 decodes of a second each, 5 s for the step and a second for each token of a prompt."""
    times = alike(StepRow(base_s=5.0, per_sequence_s=1.0, per_prefill_token_s=1.0))
    assert largest_chunk(times, 0, np.array([[0], [100]]), 5, 50, 10, 2, 8, limit_s) == chunk


@pytest.mark.parametrize(
    ("prompts", "longest", "chunk"),
    [
        ([[0], [90]], 0, 10),  # 100 s of attention
        ([[48], [90]], 0, 1),  # the second token after 48 would make it 196
        ([[48, 0], [1, 90]], 0, 2),  # one more of the next prompt is cheap
        ([[0], [90]], 12, 9),  # decodes of unlike contexts take 19 s more
    ],
)
def test_a_chunk_is_priced_with_its_prefix_and_decodes_with_their_longest(
    prompts: list[list[int]], longest: int, chunk: int
) -> None:
    times = alike(StepRow(prefill_quadratic_s=1.0, skew_s=1.0))
    assert largest_chunk(times, 0, np.array(prompts), 2 if longest else 0, 5, longest, 1, 80, 100.0) == chunk


def test_the_pair_is_the_one_whose_busier_instance_is_least_busy() -> None:
    """Of three instances, the second much faster: a prompt of 12 seconds on the others is 3 there."""
    slow, fast = StepRow(per_prefill_token_s=1.0), StepRow(per_prefill_token_s=0.25)
    times = StepTimes(*stack([slow, fast]), np.array([0, 1, 0]), np.ones(3, np.int64))
    load_s, queued, each_s = np.array([0.0, 1.0, 2.5]), np.array([0, 4, 2]), np.ones(3)
    first, second, cut, busier_s = best_pair(load_s, queued, 12, times, each_s, 12)
    assert (first, second) == (0, 1)
    assert (cut, busier_s) == (4, 4.0)


def test_steps_keep_the_limit_however_long_the_prefix() -> None:
    """A chunk of c tokens after p takes ((p + c)^2 - p^2) / 100 s; decodes of other requests run with it."""
    policy = DynaServe(tbt_s=2.0, least_part=10**6, least_chunk=1)
    engine = EngineConfig(token_budget=64, block_tokens=1, watermark=0.0, kv_tokens=2000)
    spec = ClusterSpec((PoolSpec("all", "mixed", 1, GPU),), LinkSpec(2.0**60))
    timing = Affine(base_s=0.5, prefill_quadratic_s=0.01)
    result = simulate(trace((0, 4, 40), (1, 40, 30), (2, 60, 3)), spec, MODEL, timing, engine, policy)
    chunks = result.step_log[result.step_log["prefill_tokens"] > 0]
    assert len(chunks) > 20
    assert chunks["first_s"].max() <= 2.0
    assert chunks["prefill_tokens"].max() > 8


@pytest.mark.parametrize(
    ("before_s", "cut", "busier_s"),
    [((0.0, 0.0), 8, 8.0), ((4.0, 0.0), 6, 10.0), ((0.0, 100.0), 12, 100.0), ((100.0, 0.0), 1, 101.0)],
)
def test_a_cut_balances_two_instances(before_s: tuple[float, float], cut: int, busier_s: float) -> None:
    """Of a prompt of 8 and an output of 4 tokens, a second each in the prompt and two in the output."""
    times, each_s = alike(StepRow(per_prefill_token_s=1.0)), np.full(2, 2.0)
    assert balanced_cut(np.array(before_s), 12, times, np.array([0, 1]), each_s, 8) == (cut, busier_s)


def test_a_long_prompt_is_shared() -> None:
    """Two idle instances share the work of a prompt of which each token takes a second, and nothing else does."""
    policy = DynaServe(tbt_s=1000.0, output_tokens=1, least_part=1)
    engine = EngineConfig(token_budget=100, block_tokens=1, watermark=0.0, kv_tokens=400)
    spec = ClusterSpec((PoolSpec("all", "mixed", 2, GPU),), LinkSpec(2.0**60))
    timing = Affine(base_s=0.0, per_prefill_token_s=1.0)
    result = simulate(trace((0, 40, 2)), spec, MODEL, timing, engine, policy)
    check_result(result)
    assert [*result.instances["prefill_tokens"]] == [20, 20]
