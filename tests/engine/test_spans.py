"""Requests that several instances compute together, followed by hand in both engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from framework.codes import MIXED, RECOMPUTED
from framework.engine.durations.speculation import Speculation
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError, PolicyError
from framework.metrics.invariants import check_result
from framework.policy import Aggregated, Cluster, Preempt, Request, Resume, SetTokenBudget, Span
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, mixed
from framework.system.faults import Crash, FaultSchedule, Slowdown
from framework.system.gpu import Gpu
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.scenarios import MODEL, RowTiming

GPU = Gpu("g", {"bf16": 1e12}, 1e9, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)
ROW = StepRow(base_s=1.0, per_prefill_token_s=0.5, per_context_token_s=0.25)
LONG = replace(MODEL, max_context=1000)
Engine = Literal["compiled", "reference"]
both = pytest.mark.parametrize("engine", ["compiled", "reference"])


class Shares(Aggregated):
    """Answers by the number of the request, or as often as it has answers for it; others go where they are told."""

    def __init__(self, answers: Mapping[int, Any], routes: Mapping[int, int] | None = None) -> None:
        self.answers, self.routes = dict(answers), dict(routes or {})
        self.asked: list[tuple[int, float]] = []
        self.kv: list[tuple[float, list[int]]] = []  # when a request ends: KV tokens of each instance

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return self.routes.get(request.id, 0)

    def span(self, request: Request, cluster: Cluster) -> Span | None:
        self.asked.append((request.id, cluster.now_s))
        answer = self.answers.get(request.id)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Span) and any(cluster.instances.role[i] != MIXED for i in _numbers(answer)):
            return Span()  # one of them is down
        return answer

    def on_finish(self, request: Request, cluster: Cluster) -> Sequence[Any]:
        self.kv.append((cluster.now_s, cluster.instances.kv_tokens.tolist()))
        return ()


def _numbers(span: Span) -> list[int]:
    """The instances that there are of a span."""
    return [i for i in span.instances if i in (0, 1)] if isinstance(span.instances, Sequence) else []


def played(
    requests: Sequence[tuple[float, int, int]],
    policy: Aggregated,
    engine: Engine,
    kv_tokens: int = 100,
    row: StepRow = ROW,
    instances: int = 2,
    bandwidth: float = 1e24,
    latency_s: float = 0.0,
    **options: Any,
) -> Result:
    """Requests (arrival, prompt, output) on instances with room for so many tokens, in blocks of two."""
    arrival_s, prompts, outputs = zip(*requests, strict=True)
    workload = Workload(np.array(arrival_s), np.array(prompts), np.array(outputs))
    config = EngineConfig(
        kv_tokens=kv_tokens, block_tokens=2, watermark=0.0, token_budget=64, implementation=engine, **options
    )
    cluster = mixed(instances, GPU, link_bandwidth_bytes_s=bandwidth, link_latency_s=latency_s)
    result = simulate(workload, cluster, LONG, RowTiming({"g": row}), config, policy)
    check_result(result)
    return result


@both
def test_two_instances_share_a_prompt_and_its_kv(engine: Engine) -> None:
    policy = Shares({0: Span((1, 0))})
    result = played([(0.0, 16, 3), (0.0, 4, 40)], policy, engine)
    rows = result.requests
    # both compute 8 tokens each in 5 s; then the short prompt takes 3 s
    assert rows["prefill_end_s"].tolist() == [5.0, 8.0]
    assert (rows["prefill_instance"][0], rows["decode_instance"][0]) == (1, 1)
    # steps that read 9 and 10 of 17 and 18 tokens
    assert rows["end_s"][0] == 5.0 + (1 + 9 / 4) + (1 + 10 / 4)
    assert result.instances["prefill_tokens"].tolist() == [8 + 4, 8]
    assert policy.kv[0][1][1] == 0


@both
@pytest.mark.parametrize(("prompt", "squares"), [(16, [128.0, 128.0]), (2, [2.0, 2.0]), (1, [1.0, 0.0])])
def test_the_squares_of_a_prompt_are_shared_by_those_that_compute_it(
    engine: Engine, prompt: int, squares: list[float]
) -> None:
    """One token is computed on one of two instances, with all of its attention."""
    result = played([(0.0, prompt, 2)], Shares({0: Span((0, 1))}), engine)
    assert result.instances["prefill_square"].tolist() == squares


@both
def test_what_an_instance_keeps_slows_its_own_decodes(engine: Engine) -> None:
    def second(kept: int) -> float:
        rows = played([(0.0, 4, 6), (1.0, 16, 20)], Shares({1: Span((1, 0), (kept,))}), engine).requests
        return float(rows["end_s"][0])

    # 3 s for its prompt, 5 s for the other, then five steps that read 5 to 9 tokens and those of the other
    assert second(0) == 3 + 5 + 5 + (5 + 6 + 7 + 8 + 9) / 4
    assert second(7) == second(0) + 5 * 6 / 4  # whole blocks of two


@both
def test_a_request_larger_than_any_instance_runs_on_both(engine: Engine) -> None:
    requests = [(0.0, 150, 5)]
    refused = played(requests, Shares({}), engine)
    assert refused.reasons[refused.requests["reason"][0]] == "kv"
    policy = Shares({0: Span((0, 1))})
    served = played(requests, policy, engine)
    assert served.requests["emitted"].tolist() == [5]
    again = played([(0.0, 250, 5)], Shares({0: Span((0, 1))}), engine)
    assert again.reasons[again.requests["reason"][0]] == "kv"


@both
def test_a_request_that_could_never_end_where_it_leads_is_refused(engine: Engine) -> None:
    result = played([(0.0, 150, 60)], Shares({0: Span((0, 1))}), engine)
    assert result.reasons[result.requests["reason"][0]] == "kv"


@both
def test_it_waits_for_room_and_for_the_policy(engine: Engine) -> None:
    policy = Shares({1: [Span(), Span(), Span((0, 1))], 2: None}, {2: 1})
    result = played([(0.0, 90, 2), (1.0, 40, 1), (2.0, 4, 1)], policy, engine)
    rows = result.requests
    assert rows["prefill_end_s"][0] == 47.0  # 64 tokens, and 26
    assert rows["start_s"].tolist() == [0.0, float(rows["end_s"][0]), 2.0]  # 20 tokens find no room beside 90
    assert policy.asked[:2] == [(0, 0.0), (1, 1.0)]


@both
def test_one_that_needs_no_other_instance_after_all_goes_into_a_queue(engine: Engine) -> None:
    rows = played([(0.0, 4, 2)], Shares({0: [Span(), None]}, {0: 1}), engine).requests
    assert (rows["prefill_instance"][0], rows["start_s"][0]) == (1, 0.0)


@both
def test_chunks_pass_a_pipeline(engine: Engine) -> None:
    rows = played([(0.0, 10, 1)], Shares({0: Span((0, 1), chunk_tokens=4)}), engine, latency_s=0.5).requests
    # chunks of 4, 4 and 2 tokens take 3, 3 and 2 s on one instance: half of 8 + 3, and once the link's latency
    assert rows["prefill_end_s"].tolist() == [5.5 + 0.5]


@both
def test_kv_that_goes_round_slowly_bounds_attention(engine: Engine) -> None:
    row = replace(ROW, per_prefill_token_s=0.0, prefill_quadratic_s=1 / 64)
    answers = {0: Span((0, 1, 2, 3))}

    def took(**link: float) -> float:
        result = played([(0.0, 16, 1)], Shares(answers), engine, row=row, instances=4, **link)  # type: ignore[arg-type]
        return float(result.requests["prefill_end_s"][0])

    assert took() == 1 + 16 * 16 / 64 / 4
    assert took(bandwidth=16.0) == 1 + 3 * (16 * 16 / 4 / 16.0)  # 16 bytes a token
    assert took(latency_s=0.5) == 1 + 3 * 4 * 0.5  # layers


@both
def test_decodes_with_kv_elsewhere_wait_for_the_link(engine: Engine) -> None:
    requests = [(0.0, 16, 3)]
    apart = played(requests, Shares({0: Span((0, 1))}), engine, latency_s=0.125).requests
    whole = played(requests, Shares({0: Span((0, 1), (0,))}), engine, latency_s=0.125).requests
    took = [float(rows["end_s"][0] - rows["prefill_end_s"][0]) for rows in (apart, whole)]
    assert took == [2 + 2 * 8 * 0.125 + (9 + 10) / 4, 2 + (17 + 18) / 4]


@both
def test_spans_take_instances_in_the_order_of_admission(engine: Engine) -> None:
    policy = Shares({0: None, 1: Span((0, 1)), 2: Span((1, 2)), 3: Span((3,))}, {0: 0})
    rows = played([(0.0, 8, 2), (1.0, 8, 1), (1.0, 8, 1), (1.0, 8, 1)], policy, engine, instances=4).requests
    # instance 0 is in a step until 5 s; so 1 waits, and 2 behind it, but 3 does not
    assert rows["start_s"].tolist() == [0.0, 1.0, 1.0, 1.0]
    assert rows["prefill_end_s"].tolist() == [5.0, 8.0, 11.0, 6.0]


@both
def test_a_preempted_request_waits_for_another_span_before_others(engine: Engine) -> None:
    answers = {0: None, 1: Span((1, 0), (0,)), 2: Span((1, 0), (10,))}
    policy = Shares(answers, {0: 1})
    requests = [(0.0, 10, 30), (1.0, 20, 20), (11.0, 40, 1)]
    result = played(requests, policy, engine, kv_tokens=50, preemption="recompute")
    rows = result.requests
    assert rows["preemptions"].tolist() == [0, 1, 0]
    assert rows["emitted"].tolist() == [30, 20, 1]


@both
def test_a_crash_of_a_member_drops_what_it_helps_to_compute(engine: Engine) -> None:
    faults = FaultSchedule(crashes=[Crash(2.0, 0, 4.0)])
    result = played([(0.0, 16, 3), (0.0, 4, 2)], Shares({0: Span((1, 0))}, {1: 1}), engine, faults=faults)
    rows = result.requests
    assert rows["emitted"].tolist() == [3, 2]
    assert (rows["start_s"][0], result.drops["request"].tolist()) == (0.0, [0])
    assert rows["prefill_end_s"][0] == 7.25 + 5.0  # after the return, and a step of the other request


@both
def test_a_crash_of_one_that_keeps_kv_drops_the_decoding_request(engine: Engine) -> None:
    faults = FaultSchedule(crashes=[Crash(7.0, 0, 1.0)])
    result = played([(0.0, 16, 9)], Shares({0: Span((1, 0))}), engine, faults=faults)
    assert result.drops.tolist() == [(0, 0, 16, RECOMPUTED)]
    assert result.requests["emitted"].tolist() == [9]


@both
def test_a_slow_instance_slows_the_step_of_all(engine: Engine) -> None:
    slow = FaultSchedule(slowdowns=[Slowdown(0.0, 0, 100.0, 2.0)])
    rows = played([(0.0, 16, 1)], Shares({0: Span((1, 0))}), engine, faults=slow).requests
    assert rows["prefill_end_s"].tolist() == [10.0]


class TakesOff(Shares):
    """Takes request 0 off at 6 s, and resumes it 4 s later."""

    tick_s = 2.0

    def on_tick(self, cluster: Cluster) -> Sequence[Any]:
        if cluster.now_s == 6.0:
            return [Preempt(0, "kv"), SetTokenBudget(0, 64)]
        return [Resume(0)] if cluster.now_s == 10.0 else ()


@both
def test_preemption_by_the_policy_keeps_nothing(engine: Engine) -> None:
    policy = TakesOff({0: Span((1, 0))})
    rows = played([(0.0, 16, 30), (0.0, 4, 30)], policy, engine).requests
    assert rows["preemptions"].tolist() == [1, 0]
    assert rows["emitted"].tolist() == [30, 30]
    assert [r for r, _ in policy.asked] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("both", "return Span(instances, kept), or None"),
        (Span((0, 0)), "different numbers"),
        (Span((0, 2)), "instance 2 does not prefill and decode now"),
        (Span((0, 1), (16,)), "leaves nothing of its 16 tokens to the first instance"),
        (Span((0, 1), (1, 1)), "for each instance but the first, 1 in all"),
        (Span((0, 1), (-2,)), "for each instance but the first"),
        (Span((0, 1), chunk_tokens=-1), "`chunk_tokens` is 0 or more"),
        (Span(3), "different numbers"),  # type: ignore[arg-type]
    ],
)
def test_an_unusable_answer_is_an_error(answer: Any, wrong: str) -> None:
    with pytest.raises(PolicyError, match="policy Shares: span returned") as error:
        played([(0.0, 16, 1)], Shares({0: answer}), "reference")
    assert wrong in str(error.value)


class Splits(Shares):
    def split_at(self, request: Request, cluster: Cluster) -> int:
        return 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"prefix_cache": True}, "a prefix cache do not go together; set engine.prefix_cache=false"),
        ({"asynchronous": True}, "asynchronous scheduling"),
        ({"preemption": "swap"}, "engine.preemption=swap"),
        ({"step_order": "admission"}, "engine.step_order=admission"),
        ({"speculation": Speculation(acceptance=0.5, depth=1)}, "speculation"),
        ({"batching": "concurrent"}, "concurrent prefills"),
        ({"faults": FaultSchedule(crashes=[Crash(1.0, 0, 1.0, 1.0)])}, "crashes that are detected late"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match="policy Shares: instances that share requests and ") as error:
        played([(0.0, 16, 1)], Shares({}), "reference", **options)
    assert what in str(error.value)


def test_other_instances_and_hooks_are_refused() -> None:
    with pytest.raises(InputError, match="the hook split_at do not go together; leave out split_at or span"):
        played([(0.0, 16, 1)], Splits({}), "reference")
    pools = (PoolSpec("a", "mixed", 1, GPU, reserve_tokens=20),)
    workload = Workload(np.zeros(1), np.array([4]), np.array([1]))
    with pytest.raises(InputError, match="instances that reserve KV"):
        simulate(workload, ClusterSpec(pools, LinkSpec(1e9)), LONG, RowTiming({"g": ROW}), None, Shares({}))
