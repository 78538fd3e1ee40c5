"""What sets loongserve apart: static groups of GPUs cannot do it."""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.engine.setup.config import EngineConfig
from framework.policy import Aggregated, Cluster, Request, Span
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.gpu import Gpu
from framework.timing.table import StepRow
from framework.workload import Workload
from policies.chunked import Chunked
from policies.loongserve import Loongserve
from tests.helpers.scenarios import MODEL, RowTiming

GPU = Gpu("g", {"bf16": 1e12}, 1e9, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)
ROW = StepRow(base_s=1 / 64, per_prefill_token_s=1 / 64, per_context_token_s=2**-16)
SHORT, LONG = (16, 4), (120, 4)
AGREED: dict[str, Any] = {"least_tokens": 64, "output_tokens": 8, "spare": 0.0}


class Watched(Loongserve):
    """Notes its spans, and KV tokens of each instance when a request ends."""

    def prepare(self, cluster: Cluster) -> None:
        super().prepare(cluster)
        self.spans: list[Span] = []

    def span(self, request: Request, cluster: Cluster) -> Span | None:
        answer = super().span(request, cluster)
        self.spans += [answer] if answer is not None and answer.instances else []
        return answer


def played(policy: Aggregated, requests: list[tuple[float, int, int]], instances: int, kv_tokens: int) -> Result:
    arrival_s, prompts, outputs = zip(*requests, strict=True)
    workload = Workload(np.array(arrival_s), np.array(prompts), np.array(outputs))
    config = EngineConfig(
        kv_tokens=kv_tokens, block_tokens=1, watermark=0.0, token_budget=64, implementation="reference"
    )
    cluster = mixed(instances, GPU, link_bandwidth_bytes_s=1e24)
    return simulate(workload, cluster, MODEL, RowTiming({"g": ROW}), config, policy)


MIX = sorted([(0.0, *LONG), *((k / 8, *SHORT) for k in range(1, 9)), (0.5, *LONG)])


def test_what_no_instance_holds_is_served_and_static_instances_refuse_it() -> None:
    elastic, static = played(Loongserve(**AGREED), MIX, 4, 64), played(Chunked(), MIX, 4, 64)
    assert elastic.requests["emitted"].tolist() == [4] * 10
    is_long = elastic.workload.input_tokens == LONG[0]
    assert [static.reasons[reason] == "kv" for reason in static.requests["reason"]] == is_long.tolist()


def test_short_prompts_do_not_wait_for_long_ones_as_in_one_group_of_all_gpus() -> None:
    """A group of two instances as one: half of the time for each prompt, but all of them in one queue."""
    elastic = played(Loongserve(most=1, **AGREED), [one for one in MIX if one != (0.5, *LONG)], 2, 256)
    row = StepRow(base_s=1 / 64, per_prefill_token_s=1 / 128, per_context_token_s=2**-17)
    workload = elastic.workload
    config = EngineConfig(kv_tokens=512, block_tokens=1, watermark=0.0, token_budget=64, implementation="reference")
    one = simulate(workload, mixed(1, GPU), MODEL, RowTiming({"g": row}), config, Chunked())
    waits = [result.requests["first_token_s"] - result.requests["arrival_s"] for result in (elastic, one)]
    is_short = workload.input_tokens == SHORT[0]
    assert np.median(waits[0][is_short]) < np.median(waits[1][is_short])


def test_all_idle_instances_compute_a_prompt_and_the_fewest_keep_it() -> None:
    policy = Watched(**AGREED)
    played(policy, [(0.0, *LONG)], 4, 100)
    assert [len(span.instances) for span in policy.spans] == [4, 4]  # as it arrives, and as it begins
    assert list(policy.spans[0].kept or ()) == [28, 0, 0]  # 92 stay where it leads, which leaves room for 8


def test_instances_that_others_would_wait_on_are_left_out() -> None:
    policy = Watched(**AGREED)
    played(policy, [(0.0, 16, 100), (0.0, 16, 100), (1.5, *LONG)], 4, 300)
    assert [len(span.instances) for span in policy.spans] == [2, 2]
    assert policy.spans[0].instances == policy.spans[1].instances
