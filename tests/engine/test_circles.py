"""Requests that hold KV while each waits for the other's room, by hand in both engines.

A step lasts 1 s, a block is 1 token, a token of KV has 16 bytes, and four of them are copied in 1 s. Request r is
prefilled on instance r modulo their number, and goes on on the next one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InvariantError
from framework.metrics.invariants import check_result
from framework.policy import Plan, Policy, Preempt, Resume
from framework.policy.view import Cluster, Request
from framework.reference import loop
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.workload import Workload
from tests.engine.test_first_token import ENGINES, GPU, TIMING
from tests.helpers.interpreted import interpreted
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL

STUCK = (
    "requests wait for ever: request 0 holds 4 KV tokens on instance 0 and waits for instance 1; "
    "request 1 holds 4 KV tokens on instance 1 and waits for instance 0"
)


class Round(Policy):
    """From each instance to the next one, at the end of the prompt."""

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return request.id % len(cluster.instances)

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        return (request.id + 1) % len(cluster.instances)


class Cut(Policy):
    """The same within the prompt, behind its third token."""

    def __init__(self) -> None:
        self.routed: set[int] = set()

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        again = request.id in self.routed
        self.routed.add(request.id)
        return (request.id + again) % len(cluster.instances)

    def split_at(self, request: Request, cluster: Cluster) -> int:
        return 3


def play(
    engine: str,
    prompts: list[int],
    kv_tokens: int,
    policy: Policy,
    instances: int = 2,
    outputs: list[int] | None = None,
    **options: Any,
) -> Result:
    """All come at once, and have two tokens to emit unless `outputs` says otherwise."""
    config = EngineConfig(
        block_tokens=1,
        watermark=0.0,
        kv_tokens=kv_tokens,
        implementation=engine,  # type: ignore[arg-type]
        **options,
    )
    workload = Workload(np.zeros(len(prompts)), np.array(prompts), np.array(outputs or [2] * len(prompts)))
    spec = ClusterSpec((PoolSpec("all", "mixed", instances, GPU),), LinkSpec(64.0, sharing="fifo"))
    result = simulate(workload, spec, MODEL, TIMING, config, policy)
    check_result(result)
    return result


@ENGINES
def test_a_circle_of_two(engine: str) -> None:
    """At 1 s each has 4 of the 6 tokens of its instance, and no room on the other. Request 1, admitted last, gives way:
    request 0 is copied to instance 1 by 2 s. Then instance 0 is free, computes request 1 anew, and so emits its second
    token at 3 s.
    """
    result = play(engine, [4, 4], 6, Round())
    assert token_times(result) == [[1, 3], [1, 3]]
    assert result.requests["preemptions"].tolist() == [0, 1]
    assert result.requests["decode_instance"].tolist() == [1, -1]
    assert result.requests["transfer_end_s"].tolist() == [2, pytest.approx(np.nan, nan_ok=True)]


@ENGINES
def test_a_circle_of_three(engine: str) -> None:
    """Request 2 gives way: request 1 is copied to instance 2 by 2 s, then request 0 to instance 1 by 3 s. Only then
    instance 0 is free for request 2.
    """
    result = play(engine, [4, 4, 4], 6, Round(), instances=3)
    assert token_times(result) == [[1, 4], [1, 3], [1, 4]]
    assert result.requests["preemptions"].tolist() == [0, 0, 1]


@ENGINES
def test_no_more_give_way_than_must(engine: str) -> None:
    """Each instance has two requests of 3 tokens in memory for 8. Once request 3 gives way, request 0 has room on
    instance 1, and is copied by 1.75 s. Instance 0 has room for the 4 tokens of request 3 then, and has computed them
    at 2.75 s, when both end. So the two others are copied from then on, by 3.5 s.
    """
    result = play(engine, [3, 3, 3, 3], 8, Round())
    assert token_times(result) == [[1, 2.75], [1, 4.5], [1, 4.5], [1, 2.75]]
    assert result.requests["preemptions"].tolist() == [0, 0, 0, 1]


@ENGINES
def test_who_was_preempted_before_does_not_give_way_again(engine: str) -> None:
    """Prompts take two steps. The policy preempts request 1 at 1 s and resumes it at 1.5 s, so it is admitted last, and
    computed by 3.5 s. Request 0 gives way then: request 1 is copied to instance 0 by 4.5 s. Instance 1 has computed the
    5 tokens of request 0 three steps later.
    """

    class Preempting(Round):
        tick_s = 0.5

        def on_tick(self, cluster: Cluster) -> list[Preempt | Resume]:
            answers: dict[float, list[Preempt | Resume]] = {0.5: [Preempt(1)], 1.5: [Resume(1)]}
            return answers.get(cluster.now_s, [])

    result = play(engine, [4, 4], 6, Preempting(), token_budget=2)
    assert token_times(result) == [[2, 7.5], [3.5, 5.5]]
    assert result.requests["preemptions"].tolist() == [1, 1]


@ENGINES
def test_a_circle_within_prompts(engine: str) -> None:
    """Behind 3 tokens each waits for room for 5. Request 1 gives way, and is computed from the start on instance 0 when
    the copy of the 3 tokens of request 0 has ended, at 1.75 s.
    """
    result = play(engine, [5, 5], 7, Cut())
    assert token_times(result) == [[2.75, 3.75], [2.75, 3.75]]
    assert result.requests["preemptions"].tolist() == [0, 1]
    assert result.requests["decode_instance"].tolist() == [1, 0]


@ENGINES
def test_who_has_not_emitted_emits_where_it_is_computed_again(engine: str) -> None:
    """Where the first token is computed where a request decodes, 3 of the 4 tokens of request 0 are sent, by 1.75 s."""
    result = play(engine, [4, 4], 6, Round(), first_token="recomputed")
    assert token_times(result) == [[2.75, 3.75], [2.75, 3.75]]
    assert result.requests["decode_instance"].tolist() == [1, 0]


@ENGINES
def test_a_circle_is_broken_when_all_have_scheduled(engine: str) -> None:
    """Instance 1 computes the 7 tokens of request 1 by 3 s, 3 a step, while request 0 waits for room there. Request 2
    decodes on instance 0 meanwhile, where another step of it begins at 3 s: only then request 1 gives way, so that
    instance 0 plans anew at 4 s, when the KV of request 0 has left. At 6 s request 2 has ended, and there is room for
    request 1.
    """

    class Planning(Round):
        def __init__(self) -> None:
            self.asked: list[float] = []

        def route_decode(self, request: Request, cluster: Cluster) -> int:
            return 0 if request.id == 2 else super().route_decode(request, cluster)

        def batching(self, instance: int, cluster: Cluster) -> Plan:
            if instance == 0:
                self.asked.append(cluster.now_s)
            return Plan(3 if instance == 1 else 8, "decode_first")

    policy = Planning()
    result = play(engine, [4, 7, 1], 10, policy, outputs=[2, 2, 6])
    assert token_times(result) == [[1, 5], [3, 7], [1, 2, 3, 4, 5, 6]]
    assert policy.asked == [0, 1, 4, 6]


@ENGINES
def test_a_wait_for_what_ends_is_no_circle(engine: str) -> None:
    """Request 0 goes nowhere, so that instance 0 has room for request 1 when it has ended, at 2 s."""

    class One(Round):
        def route_decode(self, request: Request, cluster: Cluster) -> int:
            return 0

    result = play(engine, [4, 4], 6, One())
    assert token_times(result) == [[1, 2], [1, 4]]
    assert result.requests["preemptions"].tolist() == [0, 0]


@ENGINES
def test_what_a_plan_withholds_has_stalled(engine: str) -> None:
    """Instance 1 decodes only: its prompt waits for ever, and request 0 does not wait for it."""

    class Withholding(Round):
        def route_decode(self, request: Request, cluster: Cluster) -> int:
            return int(cluster.requests.instance[request.id])

        def batching(self, instance: int, cluster: Cluster) -> Plan:
            return Plan(8, "decode_only" if instance == 1 else "decode_first")

    result = play(engine, [4, 4], 6, Withholding())
    assert [result.reasons[reason] for reason in result.requests["reason"]] == ["", "stalled"]
    assert token_times(result) == [[1, 2], []]


def test_what_the_engine_leaves_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A circle that is not broken names its requests and what they hold, in both engines."""
    monkeypatch.setattr(loop, "break_circle", lambda s: False)
    with pytest.raises(InvariantError, match=STUCK):
        play("reference", [4, 4], 6, Round())
    unbroken = (
        "import framework.engine.loop as loop; loop.break_circle = lambda s: False; "
        "from tests.engine.test_circles import Round, play; play('compiled', [4, 4], 6, Round())"
    )
    assert interpreted(unbroken).stderr.strip().endswith(f"InvariantError: {STUCK}")
