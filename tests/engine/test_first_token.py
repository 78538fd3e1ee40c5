"""When, and from where, the first token of a request comes that decodes elsewhere, by hand in both engines.

Instance 0 prefills two tokens a step, instance 1 decodes. A step lasts 1 s, a block is 1 token, a token of KV has 16
bytes, and two of them are copied in 1 s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.durations.speculation import Speculation
from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.metrics.phases import phase_table
from framework.metrics.service.by_position import by_position
from framework.metrics.token_gaps import recover
from framework.policy import Policy
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.bounds import server
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL, RowTiming

GPU = server("gpu", 1000)
TIMING = RowTiming({"gpu": StepRow(base_s=1.0)})
ENGINES = pytest.mark.parametrize("engine", ["compiled", "reference"])
Rows = tuple[tuple[float, int, int], ...]


class Apart(Policy):
    """Everything is prefilled on instance 0 and decodes on `target`; notes who asks where it decodes."""

    roles = ("mixed", "prefill", "decode")

    def __init__(self, target: int = 1) -> None:
        self.target = target
        self.asked: list[int] = []

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return 0

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        self.asked.append(request.id)
        return self.target


def play(engine: str, rows: Rows, first_token: str, policy: Policy | None = None, **options: Any) -> Result:
    """8 tokens of KV on each instance; checked by the invariants of every run."""
    pools = [
        PoolSpec("first", "mixed", 1, GPU, batching="prefill_first", token_budget=2),
        PoolSpec("second", "decode", 1, GPU, batching="decode_first", token_budget=10),
    ]
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    workload = Workload(np.array(arrival_s, float), np.array(prompts), np.array(outputs))
    config = EngineConfig(block_tokens=1, watermark=0.0, kv_tokens=8, implementation=engine)  # type: ignore[arg-type]
    config = replace(config, first_token=first_token, **options)  # type: ignore[arg-type]
    spec = ClusterSpec(tuple(pools), LinkSpec(32.0))
    result = simulate(workload, spec, MODEL, TIMING, config, policy or Apart())
    check_result(result)
    return result


@ENGINES
@pytest.mark.parametrize(
    ("first_token", "times"),
    [
        ("prefill", [[1, 3, 4], [2, 4]]),
        ("join", [[2, 3, 4], [3, 4]]),
        ("decode", [[3, 3, 4], [4, 4]]),
        ("recomputed", [[2.5, 3.5, 4.5], [3.5, 4.5]]),
    ],
)
def test_two_requests(engine: str, first_token: str, times: list[list[float]]) -> None:
    """Prompts of 2 are computed by 1 and 2 s; copies of both tokens last 1 s, of one token 0.5 s. Decode steps of
    instance 1 begin at 2 s, or at 1.5 s where the last prompt token is computed there.
    """
    result = play(engine, ((0, 2, 3), (0, 2, 2)), first_token)
    assert token_times(result) == times
    assert result.requests["first_token_s"].tolist() == [own[0] for own in times]
    assert result.requests["prefill_end_s"].tolist() == [1, 2]


@ENGINES
def test_what_is_computed_there_again_is_not_sent(engine: str) -> None:
    """Of 2 + 3 prompt tokens 1 + 2 are sent, 16 bytes each; steps read contexts of 2, 3, 4 and of 3, 4."""
    result = play(engine, ((0, 2, 3), (9, 3, 2)), "recomputed")
    assert result.instances["transferred_bytes"].tolist() == [48, 0]
    assert token_times(result) == [[2.5, 3.5, 4.5], [12, 13]]  # prefilled by 10 s, copied by 11 s
    assert result.instances["context_tokens"].tolist() == [0, 2 + 3 + 4 + 3 + 4]
    assert result.instances["decode_tokens"].tolist() == [0, 5]


@ENGINES
def test_a_single_token_comes_from_there_too(engine: str) -> None:
    policy = Apart()
    result = play(engine, ((0, 2, 1),), "recomputed", policy)
    assert token_times(result) == [[2.5]]
    assert policy.asked == [0]
    assert result.requests["decode_instance"].tolist() == [1]
    assert play(engine, ((0, 2, 1),), "join").requests["first_token_s"].tolist() == [1]  # it is not sent


@ENGINES
def test_whoever_stays_has_its_token_from_the_prefill(engine: str) -> None:
    policies = Apart(target=0), Apart(target=0)
    rows = ((0, 2, 3), (0, 1, 1))
    one, same = (play(engine, rows, *each) for each in zip(("recomputed", "prefill"), policies, strict=True))
    assert token_times(one) == token_times(same)
    assert one.instances.tobytes() == same.instances.tobytes()
    assert [policy.asked for policy in policies] == [[0, 1], [0]]  # about a single token where it might be sent


@ENGINES
def test_who_is_preempted_before_its_first_token_is_computed_there_again(engine: str) -> None:
    """Request 0 holds 3 to 8 blocks of instance 1 from 2.5 to 7.5 s, so that request 1 joins at 6.5 s with 2 of 8, the
    last: it needs a third for its first step, as request 0 does for its seventh. It is preempted, waits for the end of
    request 0 at 9.5 s and is computed whole.
    """
    result = play(engine, ((0, 2, 7), (4.5, 2, 2)), "recomputed", kv_tokens=8)
    times = token_times(result)
    assert times[0] == [2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5]
    assert result.requests["preemptions"].tolist() == [0, 1]
    assert times[1] == [9.5, 10.5]
    assert result.requests["prefill_end_s"].tolist() == [1, 5.5]
    assert result.instances["prefill_tokens"].tolist() == [4, 2]


@ENGINES
def test_layer_by_layer(engine: str) -> None:
    """The copy of one token begins with the prefill, at 0 s, and ends when its last layer has come: half a token's
    bytes by 2 layers take 0.25 s beyond the prefill's end.
    """
    result = play(engine, ((0, 2, 2),), "recomputed", layerwise_tokens=1)
    last_s = 1 + 0.5 / MODEL.layers
    assert token_times(result) == [[last_s + 1, last_s + 2]]
    assert result.instances["transferred_bytes"].tolist() == [16, 0]


@ENGINES
def test_drafts_come_with_the_first_token(engine: str) -> None:
    """Two drafts, always right, for a quarter of a second each: the first step gives three tokens, the next one two."""
    result = play(engine, ((0, 2, 5),), "recomputed", speculation=Speculation(depth=2, acceptance=1.0))
    assert token_times(result) == [[3, 3, 3, 4.5, 4.5]]
    gaps = recover(result.step_log, result.token_log, result.workload.output_tokens, 2)
    assert gaps.request_max_s.tolist() == [1.5]
    assert (gaps.tokens.count, gaps.messages.count, gaps.messages.mean_s) == (4, 1, 1.5)


@ENGINES
@pytest.mark.parametrize("first_token", ["join", "recomputed"])
def test_gaps_and_phases_add_up(engine: str, first_token: str) -> None:
    """Gaps run from the first token on; the step that gives it is one of the decode steps."""
    result = play(engine, ((0, 2, 4), (0, 2, 1)), first_token)
    gaps = by_position(result)
    assert gaps is not None
    assert [(row["gaps"], row["mean_itl_ms"]) for row in gaps] == [(3, 1000)]
    phases = phase_table(result)
    ends = result.requests["end_s"] - result.requests["arrival_s"]
    assert phases.sum_horizontal().to_list() == ends.tolist()
    if first_token == "recomputed":
        assert phases["decode_s"].to_list() == [4, 1]
        assert phases["transfer_s"].to_list() == [0.5, 0.5]
