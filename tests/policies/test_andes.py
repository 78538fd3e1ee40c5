"""What distinguishes Andes from first come, first served: who is ahead of its reader makes room for one who waits."""

from __future__ import annotations

import pytest

from framework.policy import Policy
from policies.andes import Andes
from policies.continuous import Continuous
from policies.fastserve import FastServe
from tests.helpers.by_hand import play
from tests.helpers.recovery import token_times

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
SLOW = 0.25  # tokens/s that a reader reads; a seat gives 1


@ENGINES
def test_one_that_is_ahead_of_its_reader_makes_room(implementation: str) -> None:
    """There is one seat. At 10 s the reader of request 0 has 8 tokens left to read, which last 32 s, so that request 1
    takes the seat and keeps it until its own reader has as much left. First come, first served, it waits 30 s more.
    """
    rows = [(0.0, 4, 40), (10.5, 4, 40)]
    policy = Andes(reading_tokens_s=SLOW, preemptions=10.0)
    paced = play(policy, rows, max_batch=1, implementation=implementation)
    served = play(Continuous(), rows, max_batch=1)
    assert paced.requests["first_token_s"][1] - 10.5 < 3 < 30 < served.requests["first_token_s"][1] - 10.5
    assert paced.instances["prefill_tokens"].tolist() == [8]  # KV is kept, in host memory
    assert _longest_wait_s(token_times(paced)) < 5


def test_no_more_than_so_many_are_preempted() -> None:
    rows = [(0.0, 4, 40), (10.5, 4, 40)]
    none = play(Andes(reading_tokens_s=SLOW, preemptions=0.0), rows, max_batch=1)
    assert none.requests["first_token_s"][1] > 40


def test_one_whose_reader_keeps_up_is_not_preempted_for_another_like_it() -> None:
    """A reader of 5 tokens/s has read all that has come, so that nothing is gained by a change; a quantum of FastServe
    ends nevertheless.
    """
    rows = [(0.0, 4, 20), (6.5, 40, 10)]
    starts = [play(policy, rows, max_batch=1).requests["first_token_s"][1] for policy in _fast()]
    assert starts[0] > 20 > starts[1]


def _fast() -> tuple[Policy, Policy]:
    return Andes(reading_tokens_s=5.0, preemptions=10.0), FastServe(quantum_s=2.0)


def _longest_wait_s(times: list[list[float]]) -> float:
    """The longest that a reader of SLOW tokens/s waits behind the first token."""
    waits = []
    for tokens in times:
        read_s = tokens[0]
        waited_s = 0.0
        for came_s in tokens[1:]:
            waited_s += max(came_s - (read_s + 1 / SLOW), 0.0)
            read_s = max(read_s + 1 / SLOW, came_s)
        waits.append(waited_s)
    return max(waits)
