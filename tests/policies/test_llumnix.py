"""What distinguishes Llumnix from placement once and for all: requests that run make room, elsewhere, for others."""

from __future__ import annotations

import numpy as np
import pytest

from policies.continuous import Continuous
from policies.llumnix import Llumnix
from tests.helpers.by_hand import fleet, play

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])


@ENGINES
def test_what_runs_moves_so_that_the_first_of_a_queue_finds_room(implementation: str) -> None:
    """Two requests on each of two instances leave room for 52 tokens there at 4 s, when a prompt of 60 comes. It has
    room once one of the four has moved, and, where none moves, when they have ended.
    """
    rows = [(0.0, 30, 9)] * 4 + [(4.0, 60, 2)]
    moved, stayed = (
        play(policy, rows, fleet(mixed=2), implementation=implementation, kv_tokens=120)
        for policy in (Llumnix(migrate_below=1.0, accept_above=4.0), Continuous())
    )
    assert moved.requests["migrations"].sum() == 1
    assert [result.requests["first_token_s"][4] for result in (moved, stayed)] == pytest.approx([7, 10], abs=0.01)


def test_nobody_is_placed_next_to_a_request_of_high_priority() -> None:
    """With `headroom_tokens` all go where the first one is not; without, to either instance."""
    rows = [(0.0, 10, 30)] + [(1.5 + k, 10, 20) for k in range(6)]
    priority = np.array([1] + [0] * 6)

    def beside(headroom_tokens: int) -> int:
        policy = Llumnix(headroom_tokens=headroom_tokens, period_s=None)
        result = play(policy, rows, fleet(mixed=2), columns={"priority": priority}, kv_tokens=400)
        here = result.requests["prefill_instance"]
        return int(np.count_nonzero(here[1:] == here[0]))

    assert beside(350) == 0 < beside(0)


def test_an_instance_that_is_to_be_switched_off_empties() -> None:
    """Each of two has a request that ends after 100 s. One is off once its request has moved, which is soon."""
    rows = [(0.0, 10, 100), (0.0, 10, 100)]
    policy = Llumnix(stop_above=1.0, start_below=0.0, scale_every_s=2.0, migrate_below=2.0, accept_above=2.0)
    result = play(policy, rows, fleet(mixed=2, off=1), kv_tokens=1000)
    assert result.requests["migrations"].sum() == 1
    assert result.instances["off_s"][:2].max() > 95
    assert result.requests["end_s"].max() < 103


def test_an_instance_is_started_where_memory_is_short() -> None:
    rows = [(float(k), 40, 30) for k in range(8)]
    policy = Llumnix(start_below=10.0, scale_every_s=2.0)
    result = play(policy, rows, fleet(mixed=1, off=1), kv_tokens=150)
    assert result.instances["prefill_tokens"][1] > 0
