"""The timeline as a viewer reads it."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pytest

from framework.report.perfetto import write_timeline
from tests.helpers.results import small_result


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    file = io.BytesIO()
    write_timeline(small_result(), file)
    trace = json.loads(gzip.decompress(file.getvalue()))
    assert trace["displayTimeUnit"] == "ms"
    return list(trace["traceEvents"])


def test_each_instance_is_a_process(events: list[dict[str, Any]]) -> None:
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "prefill 0 (instance 0)", 1: "decode 0 (instance 1)"}


def test_each_leap_is_a_slice(events: list[dict[str, Any]]) -> None:
    slices = [event for event in events if event["ph"] == "X"]
    assert [(event["pid"], event["name"], event["ts"], event["dur"]) for event in slices] == [
        (0, "prefill", 1e6, 0.5e6),
        (0, "prefill", 1.5e6, 0.5e6),
        (0, "prefill", 2e6, 0.5e6),
        (1, "decode", 1.625e6, 0.125e6),
        (1, "decode", 1.75e6, 0.25e6),
        (1, "decode", 2e6, 1e6),
    ]
    assert slices[-1]["args"] == {"steps": 2, "batch": 1, "prefill_tokens": 0, "context": 202}


def test_step_of_decodes_and_a_chunk_is_mixed() -> None:
    result = small_result()
    result.step_log["prefill_tokens"][3] = 64
    file = io.BytesIO()
    write_timeline(result, file)
    events = json.loads(gzip.decompress(file.getvalue()))["traceEvents"]
    assert [event["ts"] for event in events if event["name"] == "mixed"] == [1.75e6]


def test_counters_change_where_the_value_does(events: list[dict[str, Any]]) -> None:
    batch = [(event["pid"], event["ts"], event["args"]["batch"]) for event in events if event["name"] == "batch"]
    assert batch == [(0, 1e6, 0), (1, 1.625e6, 1), (1, 1.75e6, 2), (1, 2e6, 1)]


def test_arrows_start_within_the_prefill_and_end_at_the_transfer(events: list[dict[str, Any]]) -> None:
    arrows = [(event["ph"], event["id"], event["pid"], event["ts"]) for event in events if event["name"] == "transfer"]
    assert arrows == [
        ("s", 0, 0, 1.5e6 - 0.001),
        ("f", 0, 1, 1.625e6),
        ("s", 4, 0, 1.5e6 - 0.001),
        ("f", 4, 1, 1.75e6),
    ]


def test_instance_that_never_ran_is_still_named() -> None:
    result = small_result()
    file = io.BytesIO()
    write_timeline(small_result(step_log=result.step_log[:0], token_log=result.token_log[:0]), file)
    events = json.loads(gzip.decompress(file.getvalue()))["traceEvents"]
    assert sum(event["ph"] == "M" for event in events) == 6
    assert not any(event["ph"] == "X" for event in events)
