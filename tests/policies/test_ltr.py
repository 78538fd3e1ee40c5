"""What distinguishes LTR from shortest job first and from TRAIL: a bound on waiting, and ranks that do not fall."""

from __future__ import annotations

import pytest

from policies.chunked import Chunked
from policies.ltr import Ltr
from policies.trail import Trail
from predictors.oracle import Oracle
from tests.helpers.by_hand import play

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
STARVED = [(0.0, 4, 2), (0.5, 4, 6), *[(1.5 + 2 * k, 4, 2) for k in range(7)]]


@ENGINES
def test_a_long_one_goes_before_short_ones_once_it_has_waited(implementation: str) -> None:
    """One seat. Short requests come every 2 s and take 2 s, so that the long one of 6 tokens, there since 0.5 s, would
    wait for all of them. With a patience of 5.5 s it has the seat from 6 s on, and keeps it for 3 tokens. At 10 s,
    after the next arrival, a short one takes its place; it comes back when it has waited for 5.5 s again.
    """
    policies = Ltr(patience_s=5.5, quantum_tokens=3), Ltr(patience_s=None), Chunked(order="shortest_predicted")
    starts, ends = [], []
    for policy in policies:
        result = play(policy, STARVED, predictor=Oracle(), max_batch=1, implementation=implementation)
        starts.append(result.requests["start_s"][1])
        ends.append(result.requests["end_s"].tolist())
    assert starts == [6, 16, 16]
    assert ends[1] == ends[2] == [2, 22, 4, 6, 8, 10, 12, 14, 16]
    assert ends[0] == [2, 18, 4, 6, 12, 14, 16, 20, 22]


def test_a_promoted_request_is_not_preempted() -> None:
    """With a quantum of all its tokens it ends 6 s after it has begun."""
    result = play(Ltr(patience_s=5.5, quantum_tokens=6), STARVED, predictor=Oracle(), max_batch=1)
    assert result.requests["end_s"][1] == 12


def test_who_leaves_the_batch_keeps_its_kv() -> None:
    """Each prompt is computed once, though the long request leaves its seat."""
    result = play(Ltr(patience_s=5.5, quantum_tokens=3), STARVED, predictor=Oracle(), max_batch=1)
    assert result.instances["prefill_tokens"].tolist() == [4 * len(STARVED)]


@ENGINES
def test_the_rank_of_a_running_request_does_not_fall(implementation: str) -> None:
    """When request 1 with 10 tokens comes at 12.5 s, request 0 has 7 of 20 left. By the first prediction it leaves the
    seat at 13 s, and has it again from 23 s on; by what is left it goes on.
    """
    rows = [(0.0, 4, 20), (12.5, 4, 10)]
    ends = [
        play(policy, rows, predictor=Oracle(), max_batch=1, implementation=implementation).requests["end_s"].tolist()
        for policy in (Ltr(), Trail())
    ]
    assert ends == [[30, 23], [20, 30]]


def test_without_a_predictor_requests_are_served_as_they_came() -> None:
    result = play(Ltr(), STARVED, max_batch=1)
    assert result.requests["end_s"].tolist() == [2, 8, 10, 12, 14, 16, 18, 20, 22]
