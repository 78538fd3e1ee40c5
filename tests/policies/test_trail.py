"""What distinguishes TRAIL from shortest job first: who runs with more left steps aside, unless it is nearly done."""

from __future__ import annotations

import pytest

from policies.chunked import Chunked
from policies.trail import Trail
from predictors.oracle import Oracle
from tests.helpers.by_hand import play

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
ROWS = [(0.0, 4, 20), (5.5, 4, 3)]


@ENGINES
def test_one_with_more_left_steps_aside_and_is_computed_again(implementation: str) -> None:
    """There is one seat. Request 0 has 14 of its 20 tokens to come when request 1 has its 3, from 6 s to 9 s; then its
    prompt and 6 tokens are computed again.
    """
    result = play(Trail(), ROWS, predictor=Oracle(), max_batch=1, implementation=implementation)
    assert result.requests["end_s"].tolist() == [23, 9]
    assert result.requests["preemptions"].tolist() == [1, 0]
    assert result.instances["prefill_tokens"].tolist() == [4 + 4 + 4 + 6]
    neighbour = play(Chunked(order="shortest_predicted"), ROWS, predictor=Oracle(), max_batch=1)
    assert neighbour.requests["end_s"].tolist() == [20, 23]


def test_one_that_is_nearly_done_is_not_preempted() -> None:
    """With 6 of 20 tokens, request 0 has come further than a quarter."""
    result = play(Trail(share=0.25), ROWS, predictor=Oracle(), max_batch=1)
    assert result.requests["end_s"].tolist() == [20, 23]


def test_who_has_less_left_goes_on() -> None:
    result = play(Trail(), [(0.0, 4, 20), (5.5, 4, 15)], predictor=Oracle(), max_batch=1)
    assert result.requests["end_s"].tolist() == [20, 35]


def test_memory_is_a_reason_too() -> None:
    """Two requests hold 23 of 51 blocks at 6 s. For the prompt of 30 the one with more left steps aside."""
    rows = [(0.0, 5, 20), (0.0, 6, 21), (5.5, 30, 2)]
    result = play(Trail(), rows, predictor=Oracle(), kv_tokens=51)
    assert result.requests["preemptions"].tolist() == [0, 1, 0]
    assert result.requests["first_token_s"][2] == 7


def test_without_a_predictor_nobody_steps_aside() -> None:
    assert play(Trail(), ROWS, max_batch=1).requests["end_s"].tolist() == [20, 23]
