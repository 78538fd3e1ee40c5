"""Placement by expected TTFT, copies of long prefixes, and rejection by expected load: worked numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.kv.prefix_tiers import Tier
from framework.errors import InputError
from framework.result import Result
from policies._decode_load import DecodeLoad
from policies.mooncake import Admission, Estimate, Mooncake, Routing
from tests.engine.test_prefix_stores import BYTES, SECOND_A_TOKEN, play, prompts, stored
from tests.helpers.conformance import Conformance

NODES = ("prefill", "prefill", "decode")
FIVE = ((0.0, [1, 2]), *[(100.0, [1, 2])] * 4)


def placed(policy: Mooncake) -> Result:
    """One prompt of 9 s, then four with 1 s left where it was, 2 s of copying away from it."""
    return play(prompts(*FIVE), stored(Tier(bandwidth_bytes_s=2.0**20)), policy, NODES, kv_tokens=200)


@pytest.mark.parametrize(
    ("routing", "instances", "copied_tokens"),
    [
        ("global", [0, 0, 0, 0, 1], 8),  # three in the queue there are longer than the copy
        ("local", [0, 0, 0, 0, 0], 0),  # 9 s elsewhere
        ("load", [0, 0, 1, 0, 0], 0),  # queues of 0 and 0; 1 and 0; 1 and 9; 2 and 9 s
    ],
)
def test_a_prompt_goes_where_its_ttft_is_least(routing: Routing, instances: list[int], copied_tokens: int) -> None:
    result = placed(Mooncake(routing, admission="none", chunk_tokens=100))
    assert result.requests["prefill_instance"].tolist() == instances
    assert result.instances["transferred_bytes"].tolist() == [copied_tokens * BYTES, 0.0, 0.0]


def test_a_prefix_that_is_not_much_longer_is_not_copied() -> None:
    """Instance 1 has one block of the two: a ratio of 2."""
    workload = prompts((0.0, [1, 2]), (0.0, [1, 3]), (100.0, [1, 2]), (100.0, [1, 2]), (100.0, [1, 2]), (100.0, [1, 2]))
    for threshold, copied_tokens in ((2.0, 0), (1.9, 4)):
        policy = Mooncake(kvcache_balancing_threshold=threshold, admission="none", chunk_tokens=100)
        result = play(workload, stored(Tier(bandwidth_bytes_s=2.0**20)), policy, NODES, kv_tokens=200)
        assert result.requests["prefill_instance"][:2].tolist() == [0, 1]
        assert result.instances["transferred_bytes"][0] == copied_tokens * BYTES


# A prompt of 9 s on each of two instances, from 0 and from 1 s on, and one more on the first from 9.5 s on. At 9.6 s
# the second has three of its nine tokens left, in chunks of three.
UNDER_WAY = ((0.0, [1, 2]), (1.0, [3, 4]), (9.5, [5, 6]), (9.6, [7, 8]))


@pytest.mark.parametrize(("estimate", "instances"), [("whole", [0, 1, 0, 0]), ("left", [0, 1, 0, 1])])
def test_a_prefill_under_way_counts_whole_or_as_far_as_it_is_left(estimate: Estimate, instances: list[int]) -> None:
    """9 and 9 s are expected, and the first instance comes first; or 9 and 3 s."""
    policy = Mooncake("local", admission="none", chunk_tokens=3, estimate=estimate)
    result = play(prompts(*UNDER_WAY), stored(Tier()), policy, NODES, kv_tokens=200)
    assert result.requests["prefill_instance"].tolist() == instances


@pytest.mark.parametrize(("estimate", "states"), [("whole", [1, 1, 1, 2]), ("left", [1, 1, 1, 1])])
def test_admission_knows_what_is_left(estimate: Estimate, states: list[int]) -> None:
    """The last prompt has its first token 9.4 s after it came. 12 s are expected, or 18."""
    policy = Mooncake("local", ttft_s=12.5, tbt_s=None, chunk_tokens=3, estimate=estimate)
    result = play(prompts(*UNDER_WAY), stored(Tier()), policy, NODES, kv_tokens=200)
    assert result.requests["state"].tolist() == states


@pytest.mark.parametrize(("estimate", "instances"), [("whole", [0, 0, 0, 0, 1, 2]), ("left", [0, 0, 0, 0, 1, 0])])
def test_a_copy_waits_for_the_one_before_it(estimate: Estimate, instances: list[int]) -> None:
    """The sixth prompt would wait 3 s behind three on the first instance. A copy to the third takes 2 s, and 2 s more
    behind the copy to the second.
    """
    policy = Mooncake(admission="none", chunk_tokens=100, estimate=estimate)
    nodes = ("prefill", "prefill", "prefill", "decode")
    workload = prompts(*FIVE, (100.0, [1, 2]))
    result = play(workload, stored(Tier(bandwidth_bytes_s=2.0**20)), policy, nodes, kv_tokens=200)
    assert result.requests["prefill_instance"].tolist() == instances


@pytest.mark.parametrize(("layerwise_tokens", "there_s"), [(None, 9.0 + 2.25 + 0.5), (1, 9.0 + 2.25 / 4 + 0.5)])
def test_layer_wise_prefill_leaves_the_last_layer_to_be_copied(layerwise_tokens: int | None, there_s: float) -> None:
    """A prompt of 9 s has 144 bytes of KV in four layers."""
    workload = replace(prompts((0.0, [1, 2])), output_tokens=np.array([2]))
    policy = Mooncake("local", admission="none", chunk_tokens=100)
    result = play(workload, stored(Tier()), policy, NODES, kv_tokens=200, layerwise_tokens=layerwise_tokens)
    assert result.requests["transfer_end_s"].tolist() == pytest.approx([there_s])


def test_what_would_be_late_is_rejected_at_once() -> None:
    result = placed(Mooncake(ttft_s=2.5, tbt_s=None, chunk_tokens=100))
    reasons = [result.reasons[k] for k in result.requests["reason"]]
    assert reasons == ["ttft"] * 5  # of 9 s each, as the first is never prefilled
    result = placed(Mooncake(ttft_s=9.0, tbt_s=None, chunk_tokens=100))
    assert np.all(result.requests["state"] == 1)


@pytest.mark.parametrize(
    ("admission", "decode_s", "states", "emitted"),
    [
        ("none", 10.0, [1, 1], [60, 60]),
        ("slo", 10.0, [2, 2], [0, 0]),  # a step of one is too long already
        ("baseline", 10.0, [1, 2], [60, 1]),  # an empty pool takes one
        ("early", 10.0, [1, 2], [60, 0]),
        ("predicted", 1000.0, [1, 2], [60, 0]),
        ("predicted", 5.0, [1, 1], [60, 60]),  # the first should be gone when the second has been prefilled
    ],
)
def test_decodes_are_refused(admission: Admission, decode_s: float, states: list[int], emitted: list[int]) -> None:
    workload = replace(prompts((0.0, [1, 2]), (12.0, [3, 4])), output_tokens=np.array([60, 60]))
    policy = Mooncake(admission=admission, ttft_s=None, tbt_s=0.5, decode_s=decode_s, chunk_tokens=100)
    row = replace(SECOND_A_TOKEN, base_s=1.0)
    result = play(workload, stored(Tier()), policy, NODES, row, kv_tokens=400)
    assert result.requests["state"].tolist() == states
    assert result.requests["emitted"].tolist() == emitted


def test_the_pool_as_it_will_be() -> None:
    """Of what is to come, what will be there then: not yet at 5 s, at 15 s, gone at 25 s."""
    made: list[tuple[int, int]] = []

    class Pool:
        running = incoming = kv_tokens = incoming_kv_tokens = np.zeros(2, np.int64)

        def __len__(self) -> int:
            return 2

        def estimate_s(self, prompt: int, decodes: int, context: int) -> Any:
            made.append((decodes, context))
            return np.ones(2)

    class Requests:
        def kv_tokens(self, ids: Any) -> Any:
            return np.zeros(len(ids), np.int64)

    class Now:
        decode, requests, now_s = Pool(), Requests(), 0.0

        def decoding_on(self, pool: Pool) -> Any:
            return np.zeros(0, np.int64), None

    load, now = DecodeLoad(10.0), Now()
    load.coming = {0: (12.0, 300), 1: (14.0, 100)}
    assert [load.then_s(now, time_s) for time_s in (5.0, 15.0, 25.0)] == [0.0, 1.0, 0.0]  # type: ignore[arg-type]
    assert made == [(1, 200)]


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(InputError, match=r"policy.routing must be one of random, load, local, global"):
        Mooncake("nearest")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"policy.admission must be one of none, slo, baseline, early, predicted"):
        Mooncake(admission="late")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"policy.kvcache_balancing_threshold must be a finite number above 0"):
        Mooncake(kvcache_balancing_threshold=0.0)


@pytest.mark.slow
class TestMooncakeByWhatIsLeft(Conformance):
    policy_factory = lambda: Mooncake(estimate="left", kvcache_balancing_threshold=1.5, chunk_tokens=16)  # noqa: E731
