"""What compiled placement remembers, with a plain model of it."""

from __future__ import annotations

from collections import deque

import numpy as np

from policies._placed import (
    Placement,
    confirm,
    copied_s,
    done_s,
    is_confirmed,
    is_full,
    keep,
    left_s,
    nothing_placed,
    remember,
    remembered,
    send,
)


def test_what_was_sent_is_forgotten_from_the_first_on_but_not_what_is_on_its_way() -> None:
    random = np.random.default_rng(0)
    numbers = nothing_placed({0: 7.0}, 3, 60)
    sent: list[deque[tuple[float, float]]] = [deque() for _ in range(3)]
    for step in range(600):
        now_s, i = step / 4.0, int(random.integers(3))
        if not is_full(numbers) and random.random() < 0.6:
            note = now_s + float(random.integers(0, 12)), float(random.random())
            send(numbers, Placement(i, -1, 0.0, note[1], note[0], 1), 1)
            sent[i].append(note)
        else:
            left = int(random.integers(0, 8))
            keep(numbers, i, left, now_s)
            left += sum(there_s > now_s for there_s, _ in sent[i])
            while len(sent[i]) > left:
                sent[i].popleft()
        for k, notes in enumerate(sent):
            whole = 0.0
            for _, prefill_s in notes:
                whole += prefill_s
            assert left_s(numbers, k) == whole
    assert numbers[0] == 7.0


def test_there_is_a_note_for_each_request_and_one_more() -> None:
    numbers = nothing_placed({}, 1, 2)
    for _ in range(3):
        assert not is_full(numbers)
        send(numbers, Placement(0, -1, 0.0, 1.0, 0.0, 1), 1)
    assert is_full(numbers)
    keep(numbers, 0, 2, 1.0)
    assert not is_full(numbers)
    assert left_s(numbers, 0) == 2.0


def test_a_placement_is_remembered_by_request() -> None:
    numbers = nothing_placed({}, 2, 5)
    for r in range(5):
        assert not is_confirmed(numbers, r)
        remember(numbers, r, Placement(r % 2, -1, 0.5 * r, 0.25 * r, 10.0 + r, r))
    confirm(numbers, 3)
    send(numbers, Placement(0, -1, 0.0, 1.0, 0.0, 1), 1)
    assert remembered(numbers, 3) == Placement(1, -1, 1.5, 0.75, 13.0, 3)
    assert [is_confirmed(numbers, r) for r in range(5)] == [False, False, False, True, False]


def test_of_prompts_under_way_what_is_done_is_over() -> None:
    """Of 30 tokens of two prompts, 12 s, ten are left besides the 40 of a third that waits. A fourth comes at 5 s."""
    numbers = nothing_placed({}, 2, 4)
    for seconds, there_s, lacking in ((4.0, 0.0, 10), (8.0, 0.0, 20), (7.0, 0.0, 25), (1.0, 5.0, 5)):
        send(numbers, Placement(0, 1, 0.0, seconds, there_s, lacking), 40)
    assert done_s(numbers, 0, 2, 10 + 40, 1.0) == 8.0
    assert done_s(numbers, 0, 2, 10 + 40 + 40, 6.0) == 8.0
    assert done_s(numbers, 0, 0, 160, 6.0) == 0.0
    assert done_s(numbers, 0, 2, 1000, 1.0) == 0.0
    assert left_s(numbers, 0) == 20.0
    assert [copied_s(numbers, i) for i in range(2)] == [0.0, 5.0]
