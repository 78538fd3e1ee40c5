"""Rows of the table at the end of a sweep: means over seeds, groups that can be compared."""

from __future__ import annotations

from typing import Any

from framework.report.sweep_groups import mean_of, rows_of


def summary(goodput: float, **more: Any) -> dict[str, Any]:
    return {"policy": "chunked", "goodput_rps": goodput, "p99_ttft_ms": None, "seed": 0, **more}


def test_runs_that_differ_in_their_seed_are_one_row() -> None:
    rows = rows_of(
        [
            ("policy=a seed=0", summary(1.0, p99_ttft_ms=4.0)),
            ("policy=a seed=1", summary(3.0)),
            ("policy=b seed=0", summary(5.0)),
        ]
    )
    assert [(row.label, row.summary["goodput_rps"], row.seeds) for row in rows] == [
        ("policy=a", 2.0, 2),
        ("policy=b", 5.0, 1),
    ]
    assert rows[0].summary["p99_ttft_ms"] == 4.0
    assert rows[0].summary["policy"] == "chunked"


def test_a_sweep_over_seeds_alone_is_called_by_its_policy() -> None:
    (row,) = rows_of([("seed=0", summary(1.0)), ("seed=1", summary(2.0))])
    assert (row.label, row.seeds) == ("chunked", 2)


def test_runs_of_one_trace_and_load_stand_together() -> None:
    words = ["policy=a trace.rate=1", "policy=a trace.rate=2", "policy=b trace.rate=1", "policy=b trace.rate=2"]
    rows = rows_of([(label, summary(1.0)) for label in words])
    assert [row.label for row in rows] == [words[0], words[2], words[1], words[3]]
    assert [row.group for row in rows] == [("trace.rate=1",)] * 2 + [("trace.rate=2",)] * 2


def test_what_is_equal_in_all_runs_stays_the_whole_number_that_it_is() -> None:
    mean = mean_of([{"gpus": 5, "offered": 2000}, {"gpus": 5, "offered": 2001}])
    assert repr(mean["gpus"]) == "5"
    assert mean["offered"] == 2000.5


def test_a_mean_leaves_flags_and_words_alone() -> None:
    mean = mean_of([{"a": True, "b": "x", "c": 1, "d": None}, {"a": False, "b": "y", "c": 2, "d": None}])
    assert mean == {"a": True, "b": "x", "c": 1.5, "d": None}


def test_a_mean_has_the_worst_state_of_its_runs() -> None:
    states = ("stable", "overloaded", None, "backlogged")
    runs = [{"load_state": state, "latency_growth": 0.5, "window_is_short": state is None} for state in states]
    assert mean_of(runs) == {"load_state": "overloaded", "latency_growth": 0.5, "window_is_short": True}
    assert mean_of([runs[0], runs[3]]) == runs[3]
    assert mean_of([runs[2], runs[2]]) == runs[2]
