"""Agentic rows in Mooncake's format, whose wait_for names any rows, as programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framework.errors import InputError
from framework.workload import Workload
from traces.load import load

TOKENS = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def read(folder: Path, *rows: dict[str, Any]) -> Workload:
    file = folder / "agents.jsonl"
    file.write_text("".join(json.dumps(TOKENS | row) + "\n" for row in rows))
    return load(path=file, bad_records=0)


# A plan, two agents that it starts, of which one runs a tool, what joins them, and another session.
ROWS: tuple[dict[str, Any], ...] = (
    {"request_id": "plan", "session_id": "m", "timestamp": 1000, "branches": ["a", "b"]},
    {"request_id": "join", "session_id": "m", "wait_for": ["b2", "plan", "a"], "delay": 500},
    {"request_id": "a", "session_id": "s1", "wait_for": ["plan"]},
    {"request_id": "b", "session_id": "s2", "wait_for": ["plan"], "delay": 250},
    {"request_id": "b2", "session_id": "s2", "delay": 1000, "tool_wait_ms": 2000, "input_length": 700},
    {"request_id": "other", "session_id": "n", "timestamp": 2000, "wait_for": []},
)


def test_rows_become_calls_of_programs(tmp_path: Path) -> None:
    workload = read(tmp_path, *ROWS)
    assert workload.arrival_s.tolist() == [0.0, 0.0, 0.25, 1.0, 3.25, 3.75]  # plan, a, b, other, b2, join
    assert workload.input_tokens.tolist() == [600, 600, 600, 600, 700, 600]
    assert workload.previous is not None
    assert workload.previous.tolist() == [-1, 0, 0, -1, 2, 0]  # the join goes on with the plan
    assert workload.joins is not None
    assert sorted(workload.joins.tolist()) == [[5, 1], [5, 4]]
    assert workload.openers.tolist() == [0, 0, 0, 3, 0, 0]
    assert workload.think_s is not None
    assert workload.think_s.tolist() == [0.0, 0.0, 0.25, 0.0, 3.0, 0.5]
    assert workload.trigger is not None
    assert workload.trigger.tolist() == [1, 3, 3, 1, 2, 0]
    assert workload.hash_counts.tolist() == [2] * 6


def test_several_rows_of_a_session_may_wait_for_none(tmp_path: Path) -> None:
    rows = (
        {"request_id": "x", "session_id": "m", "timestamp": 0},
        {"request_id": "y", "session_id": "m", "timestamp": 9},
    )
    workload = read(tmp_path, *rows, {"request_id": "z", "session_id": "m", "wait_for": ["x", "y"], "tool_wait_ms": 1})
    assert workload.previous is not None
    assert workload.joins is not None
    assert [workload.previous.tolist(), workload.joins.tolist()] == [[-1, -1, 0], [[2, 1]]]
    assert workload.openers.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({2: {"wait_for": ["join"]}}, "line 2: join waits for calls that wait for it, in a circle"),
        ({3: {"wait_for": ["plan", "c"]}}, "line 4: it waits for c, which is the request_id of no row"),
        ({5: {"request_id": "b"}}, "line 6: the request_id b is that of another row, too"),
        ({0: {"timestamp": None}}, "line 1: the first row of session m has no timestamp"),
    ],
)
def test_graphs_that_cannot_be_are_refused(changes: dict[int, dict[str, Any]], reason: str, tmp_path: Path) -> None:
    rows = [row | changes.get(k, {}) for k, row in enumerate(ROWS)]
    with pytest.raises(InputError, match=reason):
        read(tmp_path, *rows)
