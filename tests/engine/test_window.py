"""The seconds of a run that a load fixes, and whose requests it counts, without a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.load import Closed, Load, Open, Window
from framework.workload import Workload


def requests(arrival_s: list[float], previous: list[int] | None = None) -> Workload:
    ones = np.ones(len(arrival_s), np.int64)
    if previous is None:
        return Workload(np.array(arrival_s), ones, ones)
    return Workload(np.array(arrival_s), ones, ones, previous=np.array(previous), think_s=np.zeros(len(arrival_s)))


SINGLE = requests([1.0, 2.0, 4.0, 7.0, 9.0])
SESSIONS = requests([1.0, 2.0, 4.0, 7.0, 9.0], [-1, 0, -1, -1, 2])


def counted(load: Load, workload: Workload, sent_s: list[float]) -> list[bool]:
    return load.counted(workload, np.array(sent_s)).tolist()


def test_a_load_by_default() -> None:
    assert (Open().clients, Open().name, Open().duration_s, Open().backoff_s) == (None, "open", None, 0.0)
    closed = Closed(3)
    assert (closed.clients, closed.name) == (3, "closed, concurrency 3")
    assert (closed.duration_s, closed.backoff_s, closed.warmup_s) == (None, 0.0, 0.0)


def test_an_open_load_lasts_from_its_first_arrival_to_its_last() -> None:
    found = Open().window(SINGLE)
    assert found == Window(1.0, 9.0, "first to last arrival")
    assert found.length_s == 8.0
    found = Open(warmup_s=1.0, cooldown_s=2.0).window(SINGLE)
    assert found == Window(2.0, 7.0, "first to last arrival")


def test_of_sessions_from_the_first_opening_to_the_last() -> None:
    name = "first to last opening of a session"
    assert Open().window(SESSIONS) == Window(1.0, 7.0, name)
    assert Open(1.0, 0.5).window(SESSIONS) == Window(2.0, 6.5, name)


def test_later_turns_of_the_first_session_open_none() -> None:
    """Nor may a warm-up leave nothing but these."""
    later = requests([1.0, 2.0, 4.0, 9.0], [-1, 0, -1, 0])
    assert Open().window(later) == Window(1.0, 4.0, "first to last opening of a session")
    only = requests([1.0, 2.0, 3.0], [-1, 0, 0])
    assert Open().window(only) == Window(1.0, 1.0, "first to last opening of a session")


def test_requests_at_the_ends_of_a_window_are_counted() -> None:
    late = [90.0] * 5  # when they were sent does not matter to an open load
    assert counted(Open(), SINGLE, late) == [True] * 5
    assert counted(Open(1.0, 2.0), SINGLE, late) == [False, True, True, True, False]
    assert counted(Open(1.5, 2.5), SINGLE, late) == [False, False, True, False, False]


def test_a_session_is_counted_if_its_first_turn_is() -> None:
    assert counted(Open(0.0, 3.0), SESSIONS, [90.0] * 5) == [True, True, True, False, True]
    assert counted(Open(3.0), SESSIONS, [90.0] * 5) == [False, False, True, True, True]


@pytest.mark.parametrize(("warmup_s", "cooldown_s"), [(4.0, 4.0), (8.0, 0.0), (0.0, 9.0), (3.5, 2.5)])
def test_a_window_without_requests_is_refused(warmup_s: float, cooldown_s: float) -> None:
    asked = rf"load\.warmup_s={warmup_s:g} and load\.cooldown_s={cooldown_s:g} leave no request of the 8 s in which"
    with pytest.raises(InputError, match=asked):
        Open(warmup_s, cooldown_s).window(SINGLE)


@pytest.mark.parametrize(("warmup_s", "cooldown_s"), [(1.0, 6.5), (2.5, 5.0), (6.0, 1.0)])
def test_one_request_at_an_end_is_enough(warmup_s: float, cooldown_s: float) -> None:
    found = Open(warmup_s, cooldown_s).window(SINGLE)
    assert found is not None
    assert found.length_s == pytest.approx(8.0 - warmup_s - cooldown_s)


def test_requests_of_one_instant_have_a_window_without_length() -> None:
    assert Open().window(requests([3.0, 3.0])) == Window(3.0, 3.0, "first to last arrival")


def test_a_closed_load_counts_what_is_sent_in_its_duration() -> None:
    assert Closed(2).window(SINGLE) is None
    assert counted(Closed(2), SINGLE, [0.0, 0.0, 50.0, 60.0, 90.0]) == [True] * 5
    load = Closed(2, duration_s=60.0, backoff_s=1.0, warmup_s=10.0)
    assert load.window(SINGLE) == Window(10.0, 60.0, "duration of the load", 2)
    sent_s = [9.0, 10.0, 50.0, 60.0, 61.0]
    assert counted(load, SINGLE, sent_s) == [False, True, True, True, False]
    assert counted(load, SESSIONS, sent_s) == [False, False, True, True, True]


BACKS_OFF: dict[str, Any] = {"duration_s": 5.0, "backoff_s": 1.0}


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (lambda: Open(warmup_s=-1.0), r"^load\.warmup_s must be"),
        (lambda: Open(cooldown_s=-1.0), r"^load\.cooldown_s must be"),
        (lambda: Closed(2, backoff_s=-1.0), r"^load\.backoff_s must be"),
        (lambda: Closed(2, warmup_s=-1.0, **BACKS_OFF), r"^load\.warmup_s must be"),
        (lambda: Closed(2, duration_s=0.0, backoff_s=1.0), r"^load\.duration_s must be"),
        (lambda: Closed(2, duration_s=5.0), r"^load\.duration_s needs load\.backoff_s > 0"),
        (lambda: Closed(2, warmup_s=1.0), r"^load\.warmup_s=1 needs a load\.duration_s that is longer"),
        (lambda: Closed(2, warmup_s=5.0, **BACKS_OFF), r"^load\.warmup_s=5 needs a load\.duration_s that is longer"),
    ],
)
def test_seconds_that_cannot_be_are_refused(asked: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        asked()


def test_seconds_that_can_be_are_not() -> None:
    Open(0.0, 0.0)
    Closed(2, backoff_s=1.0)  # without a duration it may return later too
    Closed(2, warmup_s=0.5, **BACKS_OFF)
