"""Prompts before decodes in chunks, room that admissions leave for outputs to come, who gives way and where it waits:
worked out by hand in both engines. A step lasts 1 s, a block is 1 token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from framework.engine.kv.output_reserve import OutputReserve
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.reference import reserve
from framework.reference.simulation import Simulation
from framework.reference.state import Instance
from framework.reference.steps import scheduling
from tests.engine.test_batching import Rows, scenario, times
from tests.helpers.differences import run_engine, run_reference
from tests.helpers.scenarios import Scenario

HALF = OutputReserve(ratio=0.5, least_ratio=0.5, declared_tokens="output")


def chunked(rows: Rows, kv_tokens: int = 100, budget: int = 100, **engine: Any) -> Scenario:
    """Requests (arrival, prompt, output) on one instance that computes chunks of prompts first."""
    one = scenario(rows, kv_tokens=kv_tokens, budget=budget, batching="chunks_first")
    return replace(one, engine=replace(one.engine, **engine))


# --- chunks first -----------------------------------------------------------------------------------------------------


def test_chunks_come_before_decodes_one_prompt_being_cut() -> None:
    """4 tokens a step: 4; 2 + 2; 1, for the third comes during that step; its 4; then all three decode, twice at most.
    The first one's second token has waited for the prompts from 2 s to 4 s.
    """
    rows: Rows = [(0, 6, 3), (0, 3, 2), (2.5, 4, 2)]
    assert times(chunked(rows, budget=4)) == [[2, 5, 6], [3, 5], [4, 5]]
    whole = scenario(rows, budget=4, batching="prefill_first")
    assert times(whole) == [[1, 3, 5], [2, 3], [4, 5]]  # 6, longer than the budget; 3; two decodes; 4


def test_a_step_of_chunks_has_the_whole_budget_whatever_decodes() -> None:
    """4 tokens a step, and two decodes: a prompt of 8 takes two steps with them, which wait."""
    rows: Rows = [(0, 1, 3), (0, 1, 3), (0.5, 8, 1)]
    assert times(chunked(rows, budget=4)) == [[1, 4, 5], [1, 4, 5], [3]]
    decodes_first = scenario(rows, budget=4, batching="decode_first")
    assert times(decodes_first) == [[1, 2, 3], [1, 2, 3], [4]]  # 2 + 2 + 4


# --- the reserve ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv_tokens", "expected"),
    [
        (20, [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]),
        (21, [[1, 3, 4, 5, 6, 7], [2, 3, 4, 5, 6, 7]]),
    ],
)
def test_half_of_what_may_come_is_left_free(kv_tokens: int, expected: list[list[float]]) -> None:
    """Clients ask for 8 tokens, and get 6. At 1 s the first has 4 blocks, and 7 tokens to come: 3.5 are reserved. Of 20
    blocks the second's prompt leaves 12; less one and its own 8 tokens to come 3 are left: too few. Of 21 it is 4.
    """
    one = chunked([(0, 4, 6), (0.5, 4, 6)], kv_tokens=kv_tokens, output_reserve=replace(HALF, declared_tokens=8))
    assert times(one) == expected
    without = replace(one, engine=replace(one.engine, output_reserve=OutputReserve()))
    assert times(without) == [[1, 3, 4, 5, 6, 7], [2, 3, 4, 5, 6, 7]]


_THREE: Rows = [(0, 2, 10), (0, 2, 3), (0.5, 4, 6)]


def test_a_queue_is_tried_again_one_step_after_room_came_free() -> None:
    """20 blocks. At 0 s the second leaves 16: less one for each of both 14 - 3 - 10 = 1 > 0. At 1 s the third is not
    admitted: 11 - 6 against half of 9 + 2. The second ends at 3 s, which opens admission for the schedule at 4 s:
    10 - 6 = 4 against half of 6.
    """
    one = chunked(_THREE, kv_tokens=20, output_reserve=HALF)
    assert times(one) == [[1, 2, 3, 4, 6, 7, 8, 9, 10, 11], [1, 2, 3], [5, 6, 7, 8, 9, 10]]


def test_who_finds_no_room_with_prompts_alone_is_tried_again_in_the_next_step() -> None:
    """19 blocks. At 0 s the second is not admitted: 13 - 3 - 10. Nobody decodes, so admission does not close. At 1 s
    the first decodes and has 2 blocks, and 14 - 3 are left against half of 9.
    """
    less = chunked(_THREE, kv_tokens=19, output_reserve=HALF)
    assert times(less)[1] == [2, 3, 4]


def test_a_seat_that_came_free_is_found_one_step_later() -> None:
    """At 1 s the third finds no seat with the two that decode. The first ends at 3 s, which opens admission for the
    schedule at 4 s; without a reserve the seat is found at once.
    """
    one = chunked([(0, 1, 3), (0, 1, 6), (0.5, 1, 2)], output_reserve=HALF, max_batch=2)
    assert times(one) == [[1, 2, 3], [1, 2, 3, 4, 6, 7], [5, 6]]
    without = replace(one, engine=replace(one.engine, output_reserve=OutputReserve()))
    assert times(without) == [[1, 2, 3], [1, 2, 3, 5, 6, 7], [4, 5]]


def test_an_instance_that_reserves_whole_requests_finds_a_free_seat_at_once() -> None:
    """10 blocks a request: nothing is left for outputs to come, and a head that finds no seat closes nothing."""
    one = chunked([(0, 1, 3), (0, 1, 6), (0.5, 1, 2)], output_reserve=HALF, max_batch=2)
    pool = replace(one.cluster.pools[0], reserve_tokens=10)
    whole = replace(one, cluster=replace(one.cluster, pools=(pool,)))
    assert times(whole) == [[1, 2, 3], [1, 2, 3, 5, 6, 7], [4, 5]]


def test_where_all_decodes_have_ended_admission_is_open_and_what_they_freed_opens_nothing_later() -> None:
    """The first two end at 2 s, and two more are admitted there and then. At 3 s the fifth finds no seat. Only the end
    of the third, at 4 s, opens admission for the schedule at 5 s.
    """
    rows: Rows = [(0, 1, 2), (0, 1, 2), (0, 1, 2), (0, 1, 6), (0, 1, 2)]
    one = chunked(rows, output_reserve=HALF, max_batch=2)
    assert times(one) == [[1, 2], [1, 2], [3, 4], [3, 4, 5, 7, 8, 9], [6, 7]]


def test_who_ends_with_its_prompt_opens_admission_at_once() -> None:
    """14 blocks. At 1 s the second is admitted: 8 - 1 against half of 5; the third is not: 3 - 2 - 1. The second has no
    more than one token: at 2 s, where it has ended, 8 - 2 are left, and the third's chunk comes before the decode.
    """
    one = chunked([(0, 1, 6), (0.5, 4, 1), (0.5, 4, 2)], kv_tokens=14, output_reserve=HALF)
    assert times(one) == [[1, 4, 5, 6, 7, 8], [2], [3, 4]]


def test_a_step_of_chunks_alone_opens_nothing() -> None:
    """38 blocks. At 3 s the second has ended, and of two that have come meanwhile the third is admitted: 27 - 8 against
    half of 7. The fourth is not: 17 - 8 - 8. That step is one of the third's chunk alone. At 4 s the fourth would find
    room, 18 - 8 against half of 7 + 7, but it is only behind the decodes from there on that it is tried again.
    """
    rows: Rows = [(0, 2, 10), (0, 2, 3), (2.5, 6, 8), (2.5, 9, 8)]
    one = chunked(rows, kv_tokens=38, output_reserve=HALF)
    assert [row[:3] for row in times(one)] == [[1, 2, 3], [1, 2, 3], [4, 5, 7], [6, 7, 8]]


def test_asynchronous_scheduling_knows_of_room_one_step_later() -> None:
    """The third is seen at 2 s: 9 - 6 = 3 against half of 8 + 1. At 5 s it is 9 - 6 = 3 against half of 5."""
    one = chunked(_THREE, kv_tokens=20, output_reserve=HALF, asynchronous=True)
    assert times(one) == [[1, 2, 3, 4, 5, 7, 8, 9, 10, 11], [1, 2, 3], [6, 7, 8, 9, 10, 11]]


@pytest.mark.parametrize(("least", "start_s"), [(0.0, 4), (0.5, 4), (1.0, 10)])
def test_the_ratio_falls_with_each_decode_step(least: float, start_s: float) -> None:
    """At 4 s three decode steps have ended: of 1 (the whole of 6 tokens) 1 - 3 * 1 / 4 = 0.25 are left, or 0.625, and 4
    tokens are there. Where it does not fall the third waits until nobody runs.
    """
    falling = OutputReserve(ratio=1.0, least_ratio=least, decay_steps=4, declared_tokens="output")
    one = chunked(_THREE, kv_tokens=20, output_reserve=falling)
    assert times(one)[2][0] == start_s + 1
    assert run_engine(one)[0].requests["start_s"][2] == start_s


def ratios(one: Scenario, monkeypatch: pytest.MonkeyPatch) -> dict[float, tuple[float, int]]:
    """By time, what the ratio was set to and from how many decode steps on it falls, after each `schedule`."""
    found: dict[float, tuple[float, int]] = {}
    settle = reserve.settle_reserve

    def watched(s: Simulation, i: Instance, preempted: bool, chunks_alone: bool) -> None:
        settle(s, i, preempted, chunks_alone)
        found[s.now_s] = i.ratio_set

    monkeypatch.setattr(scheduling, "settle_reserve", watched)
    run_reference(one)
    return found


def test_a_preemption_measures_what_has_been_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests of 2 + 6 tokens, of which one token to come counts each, in 10 blocks: 4, 6, 8, 10, and at 4 s none
    is left. The second gives way. The first has emitted 4; with 2 more that is 6 of 1 + 8 tokens. Three decode steps
    have ended; behind the fourth the ratio falls. It is set again when nobody is left, at 8 s, after six.
    """
    options = OutputReserve(1.0, 0.5, decay_steps=4, steps_ahead=2, declared_tokens=8, most_tokens=1)
    one = chunked([(0, 2, 6), (0, 2, 6), (10, 1, 2)], kv_tokens=10, output_reserve=options)
    assert times(one) == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8], [11, 12]]
    found = ratios(one, monkeypatch)
    assert [found[time_s] for time_s in (0, 3, 4, 5, 6, 8)] == [
        (1.0, 0),
        (1.0, 0),
        (6 / 9, 4),
        (6 / 9, 4),
        (6 / 9, 4),
        (1.0, 6),
    ]


def test_a_request_alone_is_admitted_whatever_may_come() -> None:
    one = chunked([(0, 4, 6), (0, 4, 6)], kv_tokens=9, output_reserve=replace(HALF, declared_tokens="context"))
    assert times(one) == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]


# --- who gives way, and where it waits --------------------------------------------------------------------------------


@pytest.mark.parametrize(("victim", "gives_way"), [("fewest_tokens", 0), ("latest", 1)])
def test_of_those_that_have_emitted_least_the_longest_prompt_gives_way(victim: str, gives_way: int) -> None:
    """10 blocks: 5, 7, 9, and at 3 s two more are needed. Who gives way is computed again once the other is done."""
    one = chunked([(0, 3, 6), (0, 2, 6)], kv_tokens=10, victim=victim)
    found = times(one)
    assert found[gives_way] == [1, 2, 3, 7, 8, 9]
    assert found[1 - gives_way] == [1, 2, 3, 4, 5, 6]


def test_who_has_emitted_more_stays_though_its_prompt_is_longer() -> None:
    """At 4 s the first has emitted 3 tokens, the second 2, and their 6 + 3 are all 9 blocks. Four tokens are computed
    again when the first is done.
    """
    rows: Rows = [(0, 4, 5), (2, 2, 5)]
    found = times(chunked(rows, kv_tokens=9, victim="fewest_tokens"))
    assert found == [[1, 2, 4, 5, 6], [3, 4, 7, 8, 9]]


def test_a_preempted_request_may_wait_behind_others() -> None:
    """As above the first gives way at 3 s. The third, of 4 tokens, has come meanwhile and finds 5 blocks at 4 s; the
    first, of 6 by then, does not. Before the third it bars it.
    """
    rows: Rows = [(0, 3, 6), (0, 2, 6), (2.5, 4, 1)]
    one = chunked(rows, kv_tokens=10, victim="fewest_tokens", requeue="last")
    assert times(one) == [[1, 2, 3, 8, 9, 10], [1, 2, 3, 4, 6, 7], [5]]
    first = replace(one, engine=replace(one.engine, requeue="first"))
    assert times(first) == [[1, 2, 3, 7, 8, 9], [1, 2, 3, 4, 5, 6], [7]]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 1.5}, "engine.output_reserve.ratio must lie between 0 and 1, got 1.5"),
        ({"ratio": 0.5, "least_ratio": -1.0}, "engine.output_reserve.least_ratio must lie between 0 and 1, got -1.0"),
        (
            {"ratio": 0.25, "least_ratio": 0.5},
            "engine.output_reserve.least_ratio=0.5 must not be above engine.output_reserve.ratio=0.25",
        ),
        ({"decay_steps": 0}, "engine.output_reserve.decay_steps must be a whole number of at least 1, got 0"),
        ({"steps_ahead": 0.5}, "engine.output_reserve.steps_ahead must be a whole number of at least 0, got 0.5"),
        ({"most_tokens": 0}, "engine.output_reserve.most_tokens must be a whole number of at least 1, got 0"),
        (
            {"declared_tokens": "all"},
            "engine.output_reserve.declared_tokens must be a number of tokens, context, longest or output, got 'all'",
        ),
        (
            {"declared_tokens": 0},
            "engine.output_reserve.declared_tokens must be a whole number of at least 1, got 0",
        ),
    ],
)
def test_bad_reserves_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        OutputReserve(**settings)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"requeue": "middle"}, "engine.requeue must be one of first, last; got 'middle'"),
        ({"victim": "oldest"}, "engine.victim must be one of latest, least_urgent, fewest_tokens; got 'oldest'"),
        ({"output_reserve": 0.5}, "engine.output_reserve must be a file of conf/engine/output_reserve, got 0.5;"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        EngineConfig(**settings)
    assert str(error.value).startswith(message)
