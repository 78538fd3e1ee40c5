"""Asynchronous scheduling and the host's work, by hand: when requests are first computed, and how long steps are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.system.gpu import Gpu
from framework.timing.table import StepRow, Surface
from framework.timing.uncertainty.lateness import lateness_s
from framework.workload import Workload
from tests.engine.test_batching import Rows, scenario, times
from tests.helpers.differences import run_engine
from tests.helpers.rulers import Rules
from tests.helpers.scenarios import MODEL, RowTiming, Scenario

GPU = Gpu("g", {"bf16": 1e12}, 1e9, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)


def run(arrivals: list[float], prompts: list[int], outputs: list[int], row: StepRow, **options: Any) -> Result:
    """A run of one instance with steps as `row` has them."""
    workload = Workload(np.array(arrivals), np.array(prompts), np.array(outputs))
    settings: dict[str, Any] = {"kv_tokens": 4096, "watermark": 0.0, "batching": "unified"} | options
    engine = EngineConfig(**settings)
    result = simulate(workload, mixed(1, GPU), MODEL, RowTiming({"g": row}), engine)
    check_result(result)
    return result


ONE_SECOND = StepRow(base_s=1.0)
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["compiled", "reference"])


@IMPLEMENTATIONS
def test_what_comes_during_a_step_is_computed_in_the_second_after_it(implementation: Any) -> None:
    # Steps of a second. The first request begins at 0. The second comes at 0.5, during step 1; step 2 was formed then,
    # so that step 3, from 2 to 3, computes it. A synchronous server computes it in step 2, from 1 to 2.
    for asynchronous, end_s in ((False, 2.0), (True, 3.0)):
        result = run([0.0, 0.5], [4, 4], [8, 1], ONE_SECOND, asynchronous=asynchronous, implementation=implementation)
        assert result.requests["first_token_s"].tolist() == [1.0, end_s]
        assert result.requests["end_s"].tolist() == [8.0, end_s]  # the first one's tokens come as without it


@IMPLEMENTATIONS
def test_an_empty_step_is_not_waited_for(implementation: Any) -> None:
    # The first request has one token, and ends with step 1: nothing is left to form step 2 of, and the request that
    # came meanwhile begins at once.
    result = run([0.0, 0.5], [4, 4], [1, 1], ONE_SECOND, asynchronous=True, implementation=implementation)
    assert result.requests["end_s"].tolist() == [1.0, 2.0]


@IMPLEMENTATIONS
def test_a_seat_comes_free_a_step_late(implementation: Any) -> None:
    # Two seats. Requests 0 and 1 take them; request 2 waits from 0 on. Request 0 ends with step 2, at 2; step 3 has
    # been formed by then, so that request 2 is computed in step 4, from 3 to 4, and in step 3 without.
    for asynchronous, first_s in ((False, 3.0), (True, 4.0)):
        result = run(
            [0.0, 0.0, 0.0],
            [4, 4, 4],
            [2, 8, 1],
            ONE_SECOND,
            asynchronous=asynchronous,
            max_batch=2,
            implementation=implementation,
        )
        assert result.requests["end_s"][0] <= 3.0
        late = result.requests["first_token_s"][2] - result.requests["end_s"][0]
        assert late == first_s - 2.0


def few_blocks(rows: Rows, kv_tokens: int, **engine: Any) -> Scenario:
    """Requests (arrival, prompt, output) on an instance with few blocks, of a token each, and steps of a second."""
    one = scenario(rows, kv_tokens=kv_tokens, batching="unified")
    return replace(one, engine=replace(one.engine, asynchronous=True, step_order="admission", **engine))


def preemptions(one: Scenario) -> list[int]:
    return list(map(int, run_engine(one)[0].requests["preemptions"]))


def test_blocks_of_one_that_ends_are_not_there_when_the_next_step_is_formed() -> None:
    """8 blocks. At 3 s both have 4, and the first one ends. The second finds none for its next token, for the first one
    ends with a step that was still running when this one was formed. It was admitted last, so that it gives way
    itself, and its prompt and three tokens are computed again in the same second: a step later than without, all blocks
    come free at 3 s, and it goes on.
    """
    one = few_blocks([(0, 2, 3), (0, 2, 6)], kv_tokens=8)
    assert times(one) == [[1, 2, 3], [1, 2, 3, 4, 5, 6]]
    assert preemptions(one) == [0, 1]
    synchronous = replace(one, engine=replace(one.engine, asynchronous=False))
    assert times(synchronous) == times(one)
    assert preemptions(synchronous) == [0, 0]


def test_one_that_has_ended_gives_way_like_those_that_run() -> None:
    """8 blocks, and the one that ends at 3 s was admitted last: it gives way to the other, which goes on. Who waits is
    not admitted in a schedule in which somebody gives way: the third comes at 2.5 s, is seen at 4 s, and has its token
    at 5 s.
    """
    one = few_blocks([(0, 2, 6), (0, 2, 3), (2.5, 1, 1)], kv_tokens=8)
    assert times(one) == [[1, 2, 3, 4, 5, 6], [1, 2, 3], [5]]
    assert preemptions(one) == [0, 0, 0]


def test_the_least_urgent_gives_way_though_it_has_ended() -> None:
    """The first one, the least urgent by a longer prompt, ends at 3 s; the second takes its blocks then."""
    rules = Rules(prioritize="short")
    one = few_blocks([(0, 3, 3), (0, 1, 6)], kv_tokens=8, victim="least_urgent")
    one = replace(one, rules=rules)
    assert times(one) == [[1, 2, 3], [1, 2, 3, 4, 5, 6]]
    assert preemptions(one) == [0, 0]


def test_the_watermark_holds_with_one_that_has_ended() -> None:
    """10 blocks, of which those that come with others leave 3. The first one ends at 3 s with 6. The second needs 4
    and would leave none with it: nobody is admitted, and the step is empty. Then the instance idles, the second
    leaves 6 without a watermark and the third leaves 5 with it: both are computed at once.
    """
    one = few_blocks([(0, 4, 3), (0.5, 4, 1), (0.5, 1, 1)], kv_tokens=10, watermark=0.3, idle_watermark=False)
    assert times(one) == [[1, 2, 3], [4], [4]]


@IMPLEMENTATIONS
def test_a_step_is_no_shorter_than_the_hosts_work(implementation: Any) -> None:
    # Kernels: 1/4 s and 1/16 s for each token of context, which grows from 5. The host: 1 s, and 1/2 s more where a
    # step has over 3 tokens: the prompt takes 1.5 s. Decodes of 5, 6, ... tokens: 1 s up to 12 of them (1/4 + 12/16),
    # then 1/16 s more each.
    row = StepRow(base_s=0.25, per_context_token_s=0.0625, host_s=1.0, eager_s=0.5, graph_tokens=3.0)
    result = run([0.0], [4], [12], row, implementation=implementation)
    contexts = range(5, 5 + 11)
    expected = 1.5 + sum(max(1.0, 0.25 + 0.0625 * context) for context in contexts)
    assert result.requests["first_token_s"].tolist() == [1.5]
    assert result.requests["end_s"].tolist() == [expected]


@IMPLEMENTATIONS
def test_nor_where_steps_seem_to_get_shorter(implementation: Any) -> None:
    # Attention of three decodes, beyond the two that were measured, is 6 s less 1/16 s for each token of context, which
    # is 15 at first and grows by 3 a step: 5.3125 s, 5.125 s, ... down to the 4.0625 s of the host.
    row = StepRow(base_s=0.25, decode=Surface((1.0, 2.0), (0.0, 32.0), ((0.0, 2.0), (3.0, 3.0))), host_s=4.0625)
    result = run([0.0] * 3, [4] * 3, [12] * 3, row, implementation=implementation)
    expected = 4.0625 + sum(max(4.0625, 0.25 + 6 - context / 16) for context in range(15, 15 + 3 * 11, 3))
    assert result.requests["end_s"].tolist() == [expected] * 3


@IMPLEMENTATIONS
def test_prompts_are_read_token_by_token_all_at_once(implementation: Any) -> None:
    # 1/4 s a token: the prompt of 4 is read at 1, that of 2 at 1/2. Steps of a second: the short one is computed from
    # 1/2 to 1.5, the long one, which comes meanwhile, from there to 2.5.
    row = StepRow(base_s=1.0, intake_token_s=0.25)
    result = run([0.0, 0.0], [4, 2], [1, 1], row, implementation=implementation)
    assert result.requests["first_token_s"].tolist() == [2.5, 1.5]


@IMPLEMENTATIONS
def test_the_front_end_takes_in_one_after_another_and_reads_with_it(implementation: Any) -> None:
    # taken in at 1/2 and 1, each prompt of 4 read a second later, at 1.5 and 2; steps from 1.5 to 2.5 and to 3.5
    row = StepRow(base_s=1.0, intake_s=0.5, intake_token_s=0.25)
    result = run([0.0, 0.0], [4, 4], [1, 1], row, implementation=implementation)
    assert result.requests["first_token_s"].tolist() == [2.5, 3.5]


@IMPLEMENTATIONS
def test_late_requests_reach_the_scheduler_late(implementation: Any) -> None:
    row = StepRow(base_s=1 / 64, late_share=0.25, late_s=0.5)
    late_s = lateness_s(row, 200, seed=0)
    result = run([4.0 * r for r in range(200)], [4] * 200, [1] * 200, row, implementation=implementation)
    assert result.requests["arrival_s"].tolist() == [4.0 * r for r in range(200)]
    waited_s = result.requests["first_token_s"] - result.requests["arrival_s"]
    assert waited_s.tolist() == (late_s + 1 / 64).tolist()


def test_asynchronous_must_be_a_truth_value() -> None:
    with pytest.raises(InputError, match=r"engine\.asynchronous must be true or false"):
        EngineConfig(asynchronous=1)  # type: ignore[arg-type]
