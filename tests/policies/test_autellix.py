"""What distinguishes Autellix: a call waits by what its program has had, and goes where its program's context is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.autellix import Autellix
from policies.chunked import Chunked
from policies.sticky import Sticky
from policies.vllm_v1 import VllmV1
from tests.helpers.by_hand import fleet, play

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])


def calls(*sessions: int, think_s: float = 1.0) -> dict[str, Any]:
    """The columns of requests of these sessions, each a second after the one before it."""
    previous, last = [], dict[int, int]()
    for r, session in enumerate(sessions):
        previous.append(last.get(session, -1))
        last[session] = r
    later = np.array(previous) >= 0
    return {
        "session_id": np.array(sessions),
        "previous": np.array(previous),
        "think_s": np.where(later, think_s, 0.0),
    }


@ENGINES
def test_a_program_that_has_had_much_waits_for_one_that_has_had_nothing(implementation: str) -> None:
    """There is one seat. Program 0 has run for 10 s, more than the first level, when its second call comes at 11 s,
    while program 1 runs until 15 s. The call of program 2 comes at 12 s, and is first.
    """
    rows = [(0.0, 4, 10), (9.5, 4, 5), (11.0, 4, 3), (12.0, 4, 2)]
    result = play(Autellix(quantum_s=8.0), rows, columns=calls(0, 1, 0, 2), max_batch=1, implementation=implementation)
    assert result.requests["arrival_s"].tolist() == [0, 9.5, 11, 12]
    assert result.requests["end_s"].tolist() == [10, 15, 20, 17]
    neighbour = play(Chunked(), rows, columns=calls(0, 1, 0, 2), max_batch=1)
    assert neighbour.requests["end_s"].tolist() == [10, 15, 18, 20]


@ENGINES
def test_a_program_that_falls_steps_aside(implementation: str) -> None:
    """The first level ends after 2 s. Request 1 takes the seat from 4 s to 6 s; then a prompt and 4 tokens are computed
    again.
    """
    rows = [(0.0, 4, 10), (3.5, 4, 2)]
    result = play(Autellix(), rows, columns=calls(0, 1), max_batch=1, implementation=implementation)
    assert result.requests["end_s"].tolist() == [12, 6]
    assert result.requests["preemptions"].tolist() == [1, 0]
    assert play(Autellix(quantum_s=20.0), rows, columns=calls(0, 1), max_batch=1).requests["preemptions"].sum() == 0


def test_who_has_waited_long_is_first() -> None:
    """Program 0 has run for 10 s; after 20 s its call is no longer behind new programs."""
    rows = [(0.0, 4, 10), *((9.5 + k, 4, 4) for k in range(12)), (11.0, 4, 3)]
    order = sorted(range(len(rows)), key=lambda k: rows[k][0])
    rows, sessions = [rows[k] for k in order], [[0, *range(1, 13), 0][k] for k in order]
    its = max(k for k, session in enumerate(sessions) if session == 0)
    patient = play(Autellix(quantum_s=8.0, starvation=2.0), rows, columns=calls(*sessions), max_batch=1)
    never = play(Autellix(quantum_s=8.0, starvation=1000.0), rows, columns=calls(*sessions), max_batch=1)
    assert patient.requests["end_s"][its] == 34 + 3  # of those that wait when a seat is free at 34 s, the first
    assert never.requests["end_s"][its] == max(never.requests["end_s"])


def test_long_calls_go_where_their_program_is() -> None:
    """Short ones go to the instance with the fewest requests."""
    rows = [(0.0, 20, 9), (1.0, 20, 9), (11.0, 20, 9), (12.0, 20, 9), (13.0, 4, 1)]
    columns = calls(0, 1, 1, 2, 0)
    result = play(Autellix(short_tokens=10), rows, fleet(mixed=2), columns=columns)
    assert result.requests["prefill_instance"][[0, 1, 2]].tolist() == [0, 1, 1]
    assert result.requests["prefill_instance"][4] == 0
    anywhere = play(Autellix(short_tokens=100), rows, fleet(mixed=2), columns=columns)
    assert anywhere.requests["prefill_instance"][[0, 1, 2]].tolist() == [0, 1, 0]


@ENGINES
def test_sessions_stick_unless_their_instance_is_overloaded(implementation: str) -> None:
    rows = [(0.0, 4, 9), (1.0, 4, 30), (2.0, 4, 30), (11.0, 4, 2)]
    columns = calls(0, 1, 2, 0)
    stays = play(Sticky(), rows, fleet(mixed=2), columns=columns, implementation=implementation)
    assert stays.requests["prefill_instance"].tolist() == [0, 1, 0, 0]
    leaves = play(Sticky(slack=0.5, least=0), rows, fleet(mixed=2), columns=columns, implementation=implementation)
    assert leaves.requests["prefill_instance"][:3].tolist() == [0, 1, 0]
    other = play(VllmV1(routing="round_robin"), rows, fleet(mixed=2), columns=columns)
    assert other.requests["prefill_instance"].tolist() == [0, 1, 0, 1]  # in turn
