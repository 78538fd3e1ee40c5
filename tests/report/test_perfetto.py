"""The timeline as a viewer reads it."""

from __future__ import annotations

import gzip
import io
import json
from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.metrics.slo import Slo
from framework.objective.goodput import Measurement
from framework.report.timeline.perfetto import ALWAYS_S, write_timeline
from framework.result import CRASHED, Result
from framework.run.job import perform
from tests.helpers.composing import configured
from tests.helpers.results import small_result

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def events() -> Events:
    return events_of(small_result())


def events_of(result: Result, window_s: tuple[float, float] = ALWAYS_S, slo: Slo | None = None) -> Events:
    file = io.BytesIO()
    write_timeline(result, file, window_s, slo)
    trace = json.loads(gzip.decompress(file.getvalue()))
    assert trace["displayTimeUnit"] == "ms"
    return list(trace["traceEvents"])


def test_each_instance_is_a_process(events: Events) -> None:
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "prefill 0 (instance 0)", 1: "decode 0 (instance 1)", 2: "requests"}


def test_each_leap_is_a_slice(events: Events) -> None:
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


def test_an_instance_that_is_down_has_a_slice() -> None:
    """Instances 0 and 1 crash together at 1.75 s, and 0 again, and is not back when the run ends at 3 s."""
    crashes = np.array([(1.75, 2.25, 0, 2, 1.75), (2.5, 9.0, 0, 1, 2.5)], CRASHED)
    events = events_of(small_result(crashes=crashes))
    threads = {(event["pid"], event["tid"]) for event in events if event.get("args", {}).get("name") == "crashes"}
    down = [event for event in events if event["name"] == "down"]
    slices = [(event["pid"], event["ts"], event["dur"]) for event in down]
    assert slices == [(0, 1.75e6, 0.5e6), (1, 1.75e6, 0.5e6), (0, 2.5e6, 0.5e6)]
    assert {(event["pid"], event["tid"]) for event in down} == threads
    within = [event for event in events_of(small_result(crashes=crashes), (2.25, 2.75)) if event["name"] == "down"]
    assert [event["ts"] for event in within] == [2.5e6]


def test_a_run_with_crashes_has_a_timeline(tmp_path: Path) -> None:
    """Whose requests end as the run says, though crashes have taken them off their instances."""
    config = configured(
        *("policy=distserve", "trace=azure_conv", "trace.limit=200", "trace.rate=20", "cluster.prefill=2"),
        *("cluster.decode=2", "engine/faults=crash", "predictor=none", "timing=affine"),
        "engine.faults.crashes=[{instance: 2, at_s: 3.0, down_s: 2.0}, {instance: 0, at_s: 4.0, down_s: 1.0}]",
    )
    measured = perform(config, tmp_path)
    events = events_of(measured.result)
    assert len([event for event in events if event["name"] == "down"]) == 2
    assert measured.evaluation.summary["dropped"] > 0
    finished = sum(one[1] == "finished" for one in spans_of(events))
    assert finished == measured.evaluation.summary["completed"] == 200


def test_step_of_decodes_and_a_chunk_is_mixed() -> None:
    result = small_result()
    result.step_log["prefill_tokens"][3] = 64
    file = io.BytesIO()
    write_timeline(result, file)
    events = json.loads(gzip.decompress(file.getvalue()))["traceEvents"]
    assert [event["ts"] for event in events if event["name"] == "mixed"] == [1.75e6]


def test_counters_change_where_the_value_does(events: Events) -> None:
    """Of the instance that decodes; it has none when it idles."""
    batch = [(event["pid"], event["ts"], event["args"]["requests"]) for event in events if event["name"] == "batch"]
    assert batch == [(1, 1.625e6, 1), (1, 1.75e6, 2), (1, 2e6, 1), (1, 3e6, 0)]
    assert {event["pid"] for event in events if event["name"] == "context"} == {1}


def test_arrows_start_within_the_prefill_and_end_at_the_transfer(events: Events) -> None:
    """One nanosecond before it, so that the step which begins then is the next one."""
    assert [(event["name"], event["ph"], event["id"], event["pid"], event["ts"]) for event in arrows_of(events)] == [
        ("transfer", "s", 0, 0, 1.5e6 - 0.001),
        ("transfer", "f", 0, 1, 1.625e6 - 0.001),
        ("transfer", "s", 1, 0, 1.5e6 - 0.001),
        ("transfer", "f", 1, 1, 1.75e6 - 0.001),
    ]


def arrows_of(events: Events) -> Events:
    return [event for event in events if event["ph"] in "sf"]


def _of(event: dict[str, Any]) -> int:
    """The request of an async event; its number is one of the process, so that it is shown there."""
    return int(event["id2"]["local"])


def spans_of(events: Events) -> list[tuple[int, str, float, float]]:
    """The async slices: request, name, begin and end (us), each within the one that is open around it."""
    found, open_ones = [], dict[int, list[tuple[str, float]]]()
    for event in (one for one in events if one["ph"] in "be"):
        assert event["cat"] == "request"
        own = open_ones.setdefault(_of(event), [])
        if event["ph"] == "b":
            assert not own or own[-1][1] <= event["ts"]
            own.append((event["name"], event["ts"]))
        else:
            name, begin = own.pop()
            assert name == event["name"]
            found.append((_of(event), name, begin, event["ts"]))
    assert not any(open_ones.values())
    return found


def test_each_request_is_a_slice_with_its_phases(events: Events) -> None:
    assert [one for one in spans_of(events) if one[0] in (0, 1, 2, 3)] == [
        (0, "queue", 0.5e6, 1e6),
        (0, "prefill", 1e6, 1.5e6),
        (0, "transfer", 1.5e6, 1.625e6),
        (0, "decode", 1.625e6, 2e6),
        (0, "finished", 0.5e6, 2e6),
        (1, "queue", 1e6, 1.5e6),
        (1, "prefill", 1.5e6, 2e6),
        (1, "finished", 1e6, 2e6),
        (2, "queue", 1e6, 1e6),
        (2, "rejected", 1e6, 1e6),
        (3, "queue", 2e6, 2e6),
        (3, "prefill", 2e6, 2.5e6),
        (3, "failed", 2e6, 2.5e6),
    ]
    shown = next(event["args"] for event in events if event["ph"] == "b" and event["name"] == "finished")
    counts = {"request": 0, "input_tokens": 100, "output_tokens": 3, "preemptions": 0, "migrations": 1}
    assert shown == counts | {"prefill_at": "prefill 0", "queued_tokens": 0} | {
        "decode_at": "decode 0",
        "decode_kv_tokens": 0,
    }


def test_requests_that_wait_and_that_are_served_are_counted(events: Events) -> None:
    for name, levels in (
        ("waiting", [(0.5e6, 2), (1e6, 1), (1.5e6, 0)]),
        ("served", [(1e6, 2), (1.5e6, 3), (2e6, 2), (2.5e6, 1), (3e6, 0)]),
    ):
        found = [(event["ts"], event["args"]["requests"]) for event in events if event["name"] == name]
        assert found == levels


def test_instance_that_never_ran_is_still_named() -> None:
    result = small_result()
    file = io.BytesIO()
    write_timeline(small_result(step_log=result.step_log[:0], token_log=result.token_log[:0]), file)
    events = json.loads(gzip.decompress(file.getvalue()))["traceEvents"]
    assert sum(event["ph"] == "M" for event in events) == 8
    assert not any(event["ph"] == "X" for event in events)


# --- a window of it ---------------------------------------------------------------------------------------------------


def test_window_of_a_few_steps(events: Events) -> None:
    shown = events_of(small_result(), (1.7, 2.0))
    assert [event["ts"] for event in shown if event["ph"] == "X"] == [1.5e6, 1.625e6, 1.75e6]
    assert arrows_of(shown) == []
    assert {one[0] for one in spans_of(shown)} == {0, 1, 4}
    assert [event for event in shown if event["ph"] == "M"] == [event for event in events if event["ph"] == "M"]
    assert [event["id"] for event in arrows_of(events_of(small_result(), (1.25, 1.7)))] == [0, 0]


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run on several instances, with transfers of KV, from 0 s to a few."""
    small = ("trace=synthetic", "trace.requests=80", "trace.limit=80", "trace.arrivals.rate=40")
    return perform(
        configured("policy=ares", "policy.amortised_by=decoding", *small), tmp_path_factory.mktemp("run")
    ).result


@pytest.mark.parametrize("share", [(0.0, 1.1), (0.2, 0.3), (0.5, 0.9), (2.0, 3.0)])
def test_events_of_a_window_are_those_of_the_whole(moving: Result, share: tuple[float, float]) -> None:
    whole = events_of(moving)
    last_s = max(event["ts"] + event["dur"] for event in whole if event["ph"] == "X") / 1e6
    from_s, to_s = share[0] * last_s, share[1] * last_s
    shown = events_of(moving, (from_s, to_s))

    def within(event: dict[str, Any]) -> bool:
        return bool(event["ts"] < to_s * 1e6 and event["ts"] + event["dur"] > from_s * 1e6)

    slices = [event for event in whole if event["ph"] == "X"]
    assert [event for event in shown if event["ph"] == "X"] == [event for event in slices if within(event)]
    every = arrows_of(whole)
    ends = zip(every[::2], every[1::2], strict=True)
    kept = [event for s, f in ends if s["ts"] >= from_s * 1e6 and f["ts"] < to_s * 1e6 for event in (s, f)]
    assert arrows_of(shown) == kept
    there = {one[0] for one in spans_of(whole) if one[2] < to_s * 1e6 and one[3] > from_s * 1e6}
    asked = [event for event in whole if event["ph"] in "be" and _of(event) in there]
    assert [event for event in shown if event["ph"] in "be"] == asked
    counted: dict[tuple[str, int], list[tuple[float, Any]]] = {}
    for event in whole:
        if event["name"] in ("batch", "context"):
            counted.setdefault((event["name"], event["pid"]), []).append((event["ts"], event["args"]))
    for event in (event for event in shown if event["name"] in ("batch", "context")):
        series = counted[event["name"], event["pid"]]
        assert series[bisect_right(series, event["ts"], key=itemgetter(0)) - 1][1] == event["args"]
    assert (share[0] > 1) == (not any(event["ph"] in "XCsfbe" for event in shown))
    assert (share == (0.0, 1.1)) == (shown == whole)


def test_a_counter_starts_with_the_first_step_of_the_window() -> None:
    batch = [(e["ts"], e["args"]["requests"]) for e in events_of(small_result(), (2.1, 9.0)) if e["name"] == "batch"]
    assert batch == [(2e6, 1), (3e6, 0)]
    same = small_result()
    same.step_log["batch"][[2, 3, 5]] = 1
    assert [e["ts"] for e in events_of(same, (1.8, 9.0)) if e["name"] == "batch" and e["pid"] == 1] == [1.75e6, 3e6]


# --- totals -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def migrating(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measurement, Events]:
    """A run in which KV is transferred and requests migrate, with its timeline."""
    small = ("trace=synthetic", "trace.requests=300", "trace.limit=300", "trace.arrivals.rate=60")
    measured = perform(
        configured("policy=ares", "policy.amortised_by=decoding", *small), tmp_path_factory.mktemp("run")
    )
    return measured, events_of(measured.result)


def test_totals_are_those_of_the_summary(migrating: tuple[Measurement, Events]) -> None:
    measured, events = migrating
    summary, result = measured.evaluation.summary, measured.result
    spans = spans_of(events)
    states = {state: sum(one[1] == state for one in spans) for state in ("finished", "rejected", "failed")}
    assert states == {"finished": summary["completed"], "rejected": summary["rejected"], "failed": summary["failed"]}
    assert sum(event["args"]["steps"] for event in events if event["ph"] == "X") == result.steps
    assert 1e-6 * (max(one[3] for one in spans) - min(one[2] for one in spans)) == pytest.approx(summary["duration"])
    queue_ms = [1e-3 * (one[3] - one[2]) for one in spans if one[1] == "queue"]
    assert sum(queue_ms) / len(queue_ms) == pytest.approx(summary["mean_queue_ms"], abs=1e-6)
    names = [event["name"] for event in arrows_of(events)]
    assert names.count("migration") == 2 * summary["migrations"] > 0
    moved = measured.evaluation.requests["transfer_s"].drop_nulls().len()
    assert names.count("transfer") == sum(one[1] == "transfer" for one in spans) * 2 == 2 * moved > 0


def test_batches_add_up_over_time(migrating: tuple[Measurement, Events]) -> None:
    """Nothing where an instance idles."""
    measured, events = migrating
    series: dict[int, list[tuple[float, float]]] = {}
    for event in (one for one in events if one["name"] == "batch"):
        series.setdefault(event["pid"], []).append((event["ts"], event["args"]["requests"]))
    assert all(levels[-1][1] == 0 for levels in series.values())
    instances = measured.result.instances
    for process, levels in series.items():
        batch_s = sum(level * (end - begin) * 1e-6 for (begin, level), (end, _) in pairwise(levels))
        assert batch_s == pytest.approx(instances["batch_s"][process], rel=1e-6)
    assert set(series) == set(np.flatnonzero(instances["batch_s"]))


def test_each_arrow_leads_from_the_slice_that_ends_there_to_one_that_follows(
    migrating: tuple[Measurement, Events],
) -> None:
    _, events = migrating
    slices: dict[int, Events] = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault(event["pid"], []).append(event)
    every = arrows_of(events)
    for begin, end in zip(every[::2], every[1::2], strict=True):
        assert (begin["ph"], end["ph"], begin["id"]) == ("s", "f", end["id"])
        around = [one for one in slices[begin["pid"]] if one["ts"] <= begin["ts"] < one["ts"] + one["dur"]]
        assert around[0]["ts"] + around[0]["dur"] == pytest.approx(begin["ts"], abs=0.0021)
        follows = next(one for one in slices[end["pid"]] if one["ts"] > end["ts"])
        assert follows["args"]["batch"] > 0
        assert begin["pid"] != end["pid"]
