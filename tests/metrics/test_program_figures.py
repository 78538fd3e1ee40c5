"""Figures of programs, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import servelab
from framework.metrics.service.programs import _shared_tokens, program_figures, program_slowdowns
from framework.metrics.service.tail import tail_figures
from framework.workload import Workload
from tests.helpers.results import small_result
from traces.formats.own import write_parquet
from traces.frame import from_rows

COUNTED = np.ones(5, np.bool_)


def result(**changes: Any) -> Any:
    """Five requests: a program of 0, 2 and 3, and one of 1 and 4."""
    plain = small_result()
    workload = replace(
        plain.workload,
        previous=np.array([-1, -1, 0, 0, 1]),
        joins=np.array([[3, 2]]),
        session_id=np.array([7, 8, 7, 7, 8]),
        think_s=np.zeros(5),
        trigger=np.array([1, 1, 3, 2, 2], np.int8),
        **changes,
    )
    rows = plain.requests.copy()
    rows["state"], rows["start_s"] = 1, 0.0
    rows["arrival_s"], rows["end_s"] = [0.0, 1.0, 2.0, 4.0, 6.0], [2.0, 6.0, 4.0, 5.0, 9.0]
    rows["cached_tokens"] = [0, 0, 0, 3, 5]
    return replace(plain, workload=workload, requests=rows)


def test_a_program_lasts_from_its_first_call_to_the_end_of_its_last() -> None:
    found = program_figures(result(), COUNTED)
    assert [found["programs"], found["programs_completed"]] == [2, 2]
    assert [found["mean_program_s"], found["median_program_s"]] == [6.5, 6.5]
    assert found["p99_program_s"] == pytest.approx(5.0 + 0.99 * 3.0)


def test_a_program_with_a_call_that_was_not_served_is_not_completed() -> None:
    run = result()
    run.requests["state"][2] = 2
    found = program_figures(run, COUNTED)
    assert [found["programs"], found["programs_completed"], found["mean_program_s"]] == [2, 1, 8.0]


def test_a_program_counts_if_its_first_call_does() -> None:
    found = program_figures(result(), np.array([True, False, False, False, True]))
    assert [found["programs"], found["mean_program_s"]] == [1, 5.0]
    nothing = program_figures(result(), ~COUNTED)
    assert [nothing["programs"], nothing["mean_program_s"], nothing["p99_program_s"]] == [0, None, None]


def test_slowdowns_are_relative_to_the_least_time_of_each_program() -> None:
    run, least_s = result(), np.array([2.5, 4.0])  # they took 5 s and 8 s
    found = program_slowdowns(run, COUNTED, least_s)
    assert found == {"mean_program_slowdown": 2.0, "p99_program_slowdown": 2.0}
    only = program_slowdowns(run, np.array([True, False, False, False, True]), np.array([5.0, 1.0]))
    assert only["mean_program_slowdown"] == 1.0
    run.requests["state"][4] = 2
    unserved = program_slowdowns(run, COUNTED, np.array([0.0, 4.0]))
    assert unserved == {"mean_program_slowdown": None, "p99_program_slowdown": None}
    plain = replace(run, workload=replace(run.workload, trigger=None))
    assert program_slowdowns(plain, COUNTED, least_s) == {}


def test_hits_are_told_apart_by_what_set_a_call_off() -> None:
    run = result()
    tokens = run.workload.input_tokens
    found = program_figures(run, COUNTED)
    assert [found["user_hit_rate"], found["tool_hit_rate"]] == [0.0, 8 / (tokens[3] + tokens[4])]


def test_what_a_call_shares_with_the_one_before_and_no_cache_holds_is_computed_again() -> None:
    """Blocks of 4 tokens: 0 has four, of which 2 has three and 3 two; 1 has two, which 4 begins with."""
    spans = np.array([[0, 4], [8, 10], [4, 8], [10, 13], [8, 11]])
    ids = np.array([1, 2, 3, 4, 1, 2, 3, 9, 5, 6, 1, 2, 8], np.int32)
    run = result(hash_ids=ids, hash_spans=spans, hash_block_tokens=4)
    assert program_figures(run, COUNTED)["recomputed_tokens"] == 12 + (8 - 3) + (8 - 5)
    run.requests["start_s"][2] = np.nan  # never began
    assert program_figures(run, COUNTED)["recomputed_tokens"] == (8 - 3) + (8 - 5)
    assert program_figures(result(), COUNTED)["recomputed_tokens"] == 0


def test_kv_waits_for_tools_as_long_as_they_run() -> None:
    """3 and 4 wait for tools; the run takes 9 s."""
    run = result()
    waits = replace(run.workload, think_s=np.array([0.0, 0.0, 7.0, 6.0, 1.5]))
    assert program_figures(replace(run, workload=waits), COUNTED)["tool_kv_tokens"] == (3 * 6.0 + 5 * 1.5) / 9.0
    for name in ("arrival_s", "end_s"):
        run.requests[name] /= 16
    assert program_figures(replace(run, workload=waits), COUNTED)["tool_kv_tokens"] == (3 * 6.0 + 5 * 1.5) * 16 / 9


def test_a_prompt_whose_blocks_end_where_those_of_the_call_before_begin_shares_none() -> None:
    calls: dict[str, Any] = {"previous": np.array([-1, 0]), "session_id": np.zeros(2, np.int64), "think_s": np.zeros(2)}
    spans: dict[str, Any] = {"hash_ids": np.array([1, 2, 3, 4]), "hash_spans": np.array([[2, 4], [0, 2]])}
    workload = Workload(np.zeros(2), np.array([8, 9]), np.ones(2, np.int64), **calls, **spans, hash_block_tokens=4)
    assert _shared_tokens(workload).tolist() == [0, 0]
    assert _shared_tokens(replace(workload, hash_spans=np.array([[0, 2], [0, 2]]))).tolist() == [0, 8]


def test_the_tail_begins_when_nine_tenths_have_ended() -> None:
    run = result()
    assert tail_figures(run) == {}
    run.requests["arrival_s"] = 1.0
    assert tail_figures(run) == {"tail_s": 0.0}  # of five, the last alone is past nine tenths
    twenty = replace(run, requests=np.repeat(run.requests, 4))
    twenty.requests["end_s"] = np.arange(20.0)
    assert tail_figures(twenty) == {"tail_s": 19.0 - 17.0}
    twenty.requests["state"] = 2
    assert tail_figures(twenty) == {"tail_s": None}


def test_a_trace_that_does_not_say_what_sets_calls_off_has_none() -> None:
    run = result()
    assert program_figures(replace(run, workload=replace(run.workload, trigger=None)), COUNTED) == {}


def test_a_run_of_a_file_says_them(tmp_path: Path) -> None:
    calls = {
        "arrival_s": [0.0, 1.0, 1.0, 2.0],
        "input_tokens": [800, 200, 200, 950],
        "output_tokens": [90, 30, 50, 40],
        "session_id": [0] * 4,
        "turn": [0, 1, 2, 3],
        "wait_for": [[], [0], [0], [1, 2]],
        "think_s": [0.0, 0.0, 0.0, 4.0],
        "trigger": ["user", "spawn", "spawn", "tool"],
    }
    write_parquet(from_rows(pl.DataFrame(calls), "search", "synthetic"), tmp_path / "search.parquet")
    run = servelab.run("chunked", str(tmp_path / "search.parquet"))
    ends_s = (run.requests["arrival_s"] + run.requests["e2e_s"]).to_list()
    assert run.requests["arrival_s"][3] == pytest.approx(max(ends_s[1:3]) + 4.0)
    assert run.summary["programs_completed"] == 1
    assert run.summary["mean_program_s"] == pytest.approx(ends_s[3])
    assert run.requests["trigger"].to_list() == ["user", "spawn", "spawn", "tool"]
