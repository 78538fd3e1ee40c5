"""KV that leaves layer by layer while its prompt is computed, against timelines worked out by hand.

A prefill step lasts 1 s and 0.25 s a token, a decode step 1 s; a token of KV has 16 bytes in 4 layers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from framework.bound.bound import bound
from framework.bound.setting import Setting
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.policy import Disaggregated
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.bounds import server
from tests.helpers.scenarios import MODEL, RowTiming

ENGINE = EngineConfig(block_tokens=1, watermark=0.0, kv_fraction=1.0, kv_tokens=40, layerwise_tokens=4)
TIMING = RowTiming({"gpu": StepRow(base_s=1.0, per_prefill_token_s=0.25)})


def cluster(bandwidth_bytes_s: float, latency_s: float = 0.0) -> ClusterSpec:
    pools = tuple(PoolSpec(role, role, 1, server("gpu", 1000)) for role in ("prefill", "decode"))
    return ClusterSpec(pools, LinkSpec(bandwidth_bytes_s, latency_s))


def trace(*rows: tuple[float, int, int]) -> Workload:
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    return Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs))


class Asked(Disaggregated):
    """Notes when it is asked where a request decodes, and what is on its way there then."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float, int]] = []

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        self.asked.append((request.id, cluster.now_s, int(cluster.instances.incoming_kv_tokens[1])))
        return 1


def play(workload: Workload, spec: ClusterSpec, policy: Disaggregated | None = None, **options: object) -> Result:
    result = simulate(workload, spec, MODEL, TIMING, replace(ENGINE, **options), policy or Disaggregated())  # type: ignore[arg-type]
    check_result(result)
    return result


@pytest.mark.parametrize(
    ("bandwidth_bytes_s", "end_s"),
    [
        (64.0, 2.0 + 0.25),  # the link keeps up: the last of 4 layers, 16 bytes, is left
        (16.0, 4.0),  # 64 bytes from the start of the step on take longer than it
    ],
)
def test_only_what_the_step_does_not_hide_is_waited_for(bandwidth_bytes_s: float, end_s: float) -> None:
    (request,) = play(trace((0, 4, 3)), cluster(bandwidth_bytes_s, latency_s=0.5)).requests
    assert request["prefill_end_s"] == 2.0
    assert request["transfer_end_s"] == end_s + 0.5
    assert request["end_s"] == end_s + 0.5 + 2 * 1.0


def test_short_prompts_leave_in_one_piece() -> None:
    (request,) = play(trace((0, 3, 2)), cluster(16.0)).requests
    assert (request["prefill_end_s"], request["transfer_end_s"]) == (1.75, 4.75)


def test_a_prompt_in_chunks_leaves_with_the_last_of_them() -> None:
    """Two chunks of 2 tokens, 1.5 s each; 64 bytes at 32 bytes/s from 1.5 s on."""
    spec = cluster(32.0)
    chunked = tuple(replace(pool, batching="decode_first", token_budget=2) for pool in spec.pools)
    (request,) = play(trace((0, 4, 2)), replace(spec, pools=chunked)).requests
    assert (request["prefill_end_s"], request["transfer_end_s"]) == (3.0, 3.5)


def test_prompts_of_one_step_share_the_link() -> None:
    """A step of 3 s from 1.75 s on; 64 bytes each, at 16 bytes/s each, until 5.75 s."""
    result = play(trace((0, 3, 1), (1, 4, 2), (1, 4, 2)), cluster(32.0))
    assert result.requests["prefill_end_s"].tolist() == [1.75, 4.75, 4.75]
    assert result.requests["transfer_end_s"].tolist()[1:] == [5.75, 5.75]
    assert result.instances["transferred_bytes"].tolist() == [128.0, 0.0]


def test_the_policy_is_asked_at_the_start_and_again_where_there_was_no_room() -> None:
    """Request 1, prefilled from 2 s to 4 s, finds the one seat taken until 4.25 s: it goes then, in one piece."""
    policy = Asked()
    engine = {"max_batch": 1, "token_budget": 4}
    result = play(trace((0, 4, 3), (0, 4, 3)), cluster(64.0), policy, **engine)
    assert result.requests["transfer_end_s"].tolist() == [2.25, 4.25 + 1.0]
    assert policy.asked == [(0, 0.0, 0), (1, 2.0, 4), (1, 4.0, 0)]


def test_a_prompt_without_a_second_token_gives_its_room_back() -> None:
    """Request 0 ends with its prefill, so that the one seat is free for request 1, and the link: 16 bytes/s."""
    result = play(trace((0, 4, 1), (0, 3, 2)), cluster(16.0), max_batch=1, token_budget=4)
    assert result.requests["end_s"][0] == 2.0
    assert result.requests["prefill_end_s"][1] == 3.75
    assert result.requests["transfer_end_s"].tolist()[1] == 3.75 + 3.0
    assert result.instances["transferred_bytes"].tolist() == [2 * 16.0 + 48.0, 0.0]  # for 2 s, and then the other's
    assert np.isnan(result.requests["transfer_end_s"][0])
    assert result.instances["free_blocks"].tolist() == [40, 40]


def test_a_request_that_never_fits_gives_its_room_back() -> None:
    """On the decode instance there is room for its prompt, not for its whole context."""
    spec = cluster(16.0)
    small = replace(spec.pools[1], reserve_tokens=6)
    result = play(trace((0, 4, 8)), replace(spec, pools=(spec.pools[0], small)))
    assert result.reasons[result.requests["reason"][0]] == "kv"
    assert result.requests["end_s"][0] == 2.0
    assert result.instances["free_blocks"].tolist() == [40, 40]


def test_the_bound_counts_the_last_layer_alone() -> None:
    """2 s of prefill, 0.25 s of the copy, 2 s of decodes: good within 1.125 s a token, and so is the run."""
    workload, spec = trace((0, 4, 3)), cluster(64.0)
    slo = Slo(ttft_s=2.0, tpot_s=1.125)
    assert bound(Setting(workload, spec, MODEL, TIMING, ENGINE, slo=slo)).goodput > 0
    assert bound(Setting(workload, spec, MODEL, TIMING, replace(ENGINE, layerwise_tokens=None), slo=slo)).goodput == 0


def test_a_length_of_no_tokens_is_refused() -> None:
    with pytest.raises(InputError, match=r"engine.layerwise_tokens"):
        EngineConfig(layerwise_tokens=0)
