"""Calls of programs in frames and files: what they wait for, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framework.errors import InputError
from framework.workload import Workload
from traces import transforms
from traces.formats.own import write_parquet
from traces.frame import OPTIONAL, REQUIRED, Trace, from_rows, to_workload
from traces.load import load

# Session 4: a call that starts two, one that needs both, and one that waits for none; session 5: two turns.
COLUMNS: dict[str, list[Any]] = {
    "arrival_s": [0.0, 1.0, 1.0, 1.5, 2.0, 3.0, 4.0],
    "input_tokens": [10, 11, 12, 13, 14, 15, 16],
    "output_tokens": [1] * 7,
    "session_id": [4, 4, 4, 5, 4, 5, 4],
    "turn": [0, 1, 2, 0, 3, 1, 4],
    "wait_for": [None, [0], [0], None, [2, 1, 2], None, []],
    "think_s": [None, 0.5, 0.25, None, 1.0, 2.0, None],
    "trigger": ["user", "spawn", "spawn", None, "tool", "user", "user"],
}


def programs(**changes: Any) -> pl.DataFrame:
    schema = {name: kind for name, kind in {**REQUIRED, **OPTIONAL}.items() if name in COLUMNS}
    return pl.DataFrame({**COLUMNS, **changes}, schema=schema)


def links(workload: Workload) -> list[object]:
    return [None if found is None else found.tolist() for found in (workload.previous, workload.joins)]


def test_calls_wait_for_the_turns_that_they_name() -> None:
    workload = to_workload(Trace(programs(), "t", "real"))
    assert links(workload) == [[-1, 0, 0, -1, 2, 3, -1], [[4, 1]]]
    assert workload.openers.tolist() == [0, 0, 0, 3, 0, 3, 0]
    assert workload.trigger is not None
    assert workload.trigger.tolist() == [1, 3, 3, 0, 2, 1, 1]


def test_a_file_says_the_same(tmp_path: Path) -> None:
    write_parquet(from_rows(programs(), "t", "real"), tmp_path / "t.parquet")
    workload = load(path=tmp_path / "t.parquet")
    assert links(workload) == links(to_workload(Trace(programs(), "t", "real")))
    assert load(path=tmp_path / "t.parquet", tile=2).openers.tolist() == [0, 0, 0, 3, 0, 3, 0, 7, 7, 7, 10, 7, 10, 7]


def test_calls_of_a_trace_that_is_cut_wait_for_what_is_left() -> None:
    trace = Trace(programs(), "t", "real")
    assert links(to_workload(transforms.window(trace, 0.5, 9.0))) == [[-1, 0, -1, 1, 2, -1], [[3, 0]]]
    assert links(to_workload(transforms.keep_lengths(trace, (None, 10)))) == [[-1], None]
    # Without 1 and 2 the join has none of those it names: it waits for the row before it of its session, as turns do.
    rest = trace.frame.filter(~pl.col("input_tokens").is_in([11, 12]))
    assert links(to_workload(trace.with_frame(rest))) == [[-1, -1, 0, 1, -1], None]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"wait_for": [None, [0], [0], None, [2, 7], None, []]},
            r"request 4 \(session 4\): it waits for turn 7,",
        ),
        ({"wait_for": [None, [0], [3], None, [1, 2], None, []]}, r"request 2 \(session 4\): .*wait for each other"),
        ({"wait_for": [None, [1], [0], None, [1, 2], None, []]}, r"request 1 \(session 4\): .*wait for each other"),
        ({"wait_for": [None, [0], [0], [2], [1, 2], None, []]}, r"request 3 \(session 5\): it waits for turn 2, which"),
        ({"turn": [None, 1, 2, 0, 3, 1, 4]}, "each call of a session needs a turn"),
        ({"think_s": [None, 0.5, 0.25, None, None, 2.0, None]}, r"request 4 \(session 4\): a later turn needs think_s"),
        ({"trigger": ["user", "spam", None, None, None, None, None]}, "trigger is 'spam', must be one of user, tool"),
    ],
)
def test_calls_that_cannot_be_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        to_workload(from_rows(programs(**changes), "t", "real"))


def test_calls_need_sessions() -> None:
    with pytest.raises(InputError, match="wait_for needs the columns session_id and turn"):
        to_workload(Trace(programs().drop("session_id"), "t", "real"))
