"""What the arguments of a timeline say: judgements, routes, memory, the run, and programs."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.metrics.slo import Slo
from framework.objective.goodput import Measurement
from framework.result import Result
from framework.run.job import perform
from framework.workload import Workload
from tests.helpers.composing import configured
from tests.helpers.results import small_result
from tests.report.test_perfetto import Events, events_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measurement, Events]:
    """The files of a run with two instances of each phase and their timeline, by the user's door."""
    directory = tmp_path_factory.mktemp("run")
    small = ("trace=synthetic", "trace.requests=120", "trace.limit=120", "trace.arrivals.rate=60")
    own = ("cluster.prefill=2", "cluster.decode=2", "slo.ttft_s=0.15", "output.timeline=true", "timing=affine")
    measured = perform(configured("policy=distserve", *small, *own), directory)
    return measured, json.loads(gzip.decompress((directory / "timeline.json.gz").read_bytes()))["traceEvents"]


def arguments(events: Events) -> dict[int, dict[str, Any]]:
    """Those of each request."""
    return {one["args"]["request"]: one["args"] for one in events if one["ph"] == "b" and "args" in one}


def test_a_request_says_whether_it_kept_its_limits(run: tuple[Measurement, Events]) -> None:
    measured, events = run
    table = measured.evaluation.requests
    said = arguments(events)
    assert len(said) == len(table)
    verdicts = {args["slo"] for args in said.values()}
    assert {"good", "missed TTFT"} <= verdicts
    for r, row in enumerate(table.iter_rows(named=True)):
        assert (said[r]["slo"] == "good") == row["good"]
        assert said[r]["ttft_ms"] == pytest.approx(1e3 * row["ttft_s"], abs=1e-3)
        assert (said[r]["ttft_limit_ms"], said[r]["tpot_limit_ms"]) == (150.0, 50.0)
        assert ("missed TTFT" in said[r]["slo"]) == (row["ttft_s"] > 0.15)


def test_a_limit_that_is_not_in_force_is_not_shown() -> None:
    said = arguments(_judged(small_result(), Slo(ttft_s=None, tpot_s=0.3)))
    assert "ttft_limit_ms" not in said[0]
    assert {r: args["slo"] for r, args in said.items()} == {
        0: "good",
        1: "good",
        2: "not served",
        3: "not served",
        4: "missed TPOT",
    }
    assert "tpot_ms" not in said[1]  # of one token


def _judged(result: Result, slo: Slo) -> Events:
    return events_of(result, slo=slo)


def test_a_route_has_the_figures_of_both_instances(run: tuple[Measurement, Events]) -> None:
    measured, events = run
    rows = measured.result.requests
    tokens = measured.result.workload.input_tokens
    said = arguments(events)
    seen = set()
    for r in range(len(rows)):
        at_s = rows["arrival_s"][r]
        waits = (rows["arrival_s"] < at_s) & (rows["start_s"] >= at_s)
        queued = [int(tokens[waits & (rows["prefill_instance"] == i)].sum()) for i in range(2)]
        own = int(rows["prefill_instance"][r])
        assert said[r]["prefill_at"] == f"prefill {own}"
        assert said[r]["fewest_at"] == f"prefill {1 - own}"
        assert (said[r]["queued_tokens"], said[r]["fewest_queued_tokens"]) == (queued[own], queued[1 - own])
        seen.add(queued[own] < queued[1 - own])
    assert seen == {True, False}
    assert all(args["decode_at"].startswith("decode ") and args["least_kv_tokens"] >= 0 for args in said.values())


def test_memory_and_waiting_prompts_are_counters() -> None:
    """By hand: 16,000 KV tokens an instance; requests of 100 tokens."""
    result = small_result()
    shown = [one for one in events_of(result) if one["name"] in ("KV in use", "prompts that wait")]
    memory = [(one["pid"], one["ts"], one["args"]["%"]) for one in shown if one["name"] == "KV in use"]
    tokens = dict(zip(range(5), result.workload.input_tokens.tolist(), strict=True))
    at = {ts: level for pid, ts, level in memory if pid == 0}
    assert at[1e6] == round((tokens[0] + tokens[4]) / 160, 2)  # both prompts are under way
    assert [level for pid, _, level in memory if pid == 0][-1] == 0.0
    assert next(level for pid, _, level in memory if pid == 1) == round(101 / 160, 2)  # the first decode step
    waits = [(one["ts"], one["args"]["tokens"]) for one in shown if one["name"] == "prompts that wait"]
    assert waits[0] == (0.5e6, tokens[0] + tokens[4])
    assert waits[-1][1] == 0


def test_memory_is_never_more_than_there_is(run: tuple[Measurement, Events]) -> None:
    levels = [one["args"]["%"] for one in run[1] if one["name"] == "KV in use"]
    assert 0 < max(levels) <= 100
    assert min(levels) == 0


def test_the_run_is_described(run: tuple[Measurement, Events]) -> None:
    measured, events = run
    (said,) = [one["args"] for one in events if one["name"] == "run"]
    assert said["policy"] == "distserve"
    assert said["good"] == measured.evaluation.requests["good"].sum()
    assert said["slo"] == "ttft_s 0.15, tpot_s 0.05"
    assert "2 x h100" in said["pools"]


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_program_is_one_track_of_calls_and_waits(tmp_path: Path) -> None:
    small = ("trace=coding_agents", "trace.limit=40", "cluster.instances=2", "timing=affine")
    measured = perform(configured("policy=chunked", *small), tmp_path)
    events = events_of(measured.result)
    (process,) = [one["pid"] for one in events if one.get("args", {}).get("name") == "programs"]
    slices = [one for one in events if one["ph"] == "X" and one["pid"] == process]
    calls = [one for one in slices if one["name"] == "call"]
    workload = measured.result.workload
    sizes = np.bincount(workload.openers, minlength=len(workload))
    assert len(calls) == (sizes[workload.openers] > 1).sum() > 10
    waits = [one for one in slices if one["name"] != "call"]
    assert workload.think_s is not None
    assert workload.previous is not None
    assert {one["name"] for one in waits} <= {"tool", "user", "spawn"}
    assert sum(one["dur"] for one in waits) == pytest.approx(1e6 * workload.think_s[workload.previous >= 0].sum(), 1e-6)
    for track in {one["tid"] for one in slices}:
        own = sorted((one["ts"], one["ts"] + one["dur"]) for one in slices if one["tid"] == track)
        assert all(end <= begin + 0.002 for (_, end), (begin, _) in pairwise(own))


def test_calls_at_one_time_are_branches() -> None:
    """Calls 0, 1 and 4 of one program are under way at the same time."""
    base = small_result()
    previous = np.array([-1, 0, -1, -1, 0])
    workload = Workload(
        base.workload.arrival_s,
        base.workload.input_tokens,
        base.workload.output_tokens,
        previous=previous,
        think_s=np.zeros(5),
        session_id=np.array([7, 7, -1, -1, 7]),
    )
    events = events_of(replace(base, workload=workload))
    names = [one["args"]["name"] for one in events if one["name"] == "thread_name"]
    assert [name for name in names if name.startswith("program")] == [
        *("program 7", "program 7, branch 2", "program 7, branch 3"),
    ]
    assert sum(one["name"] == "call" for one in events) == 3


def test_turns_of_one_request_make_no_track(run: tuple[Measurement, Events]) -> None:
    assert not any(one.get("args", {}).get("name") == "programs" for one in run[1])
