"""The timeline as Perfetto's own trace processor reads it; the package and the program that it fetches are not ours."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

from framework.objective.goodput import Measurement
from framework.report.perfetto import write_timeline
from framework.run.job import perform
from tests.helpers.composing import configured

QUESTIONS = """
import json, sys
from perfetto.trace_processor import TraceProcessor

processor = TraceProcessor(trace=sys.argv[1])


def ask(question):
    return [row.__dict__ for row in processor.query(question)]


print(json.dumps({
    "errors": ask("select name, value from stats where severity = 'error' and value > 0"),
    "slices": ask("select name, count(*) as n, sum(dur) as ns from slice group by name"),
    "steps": ask("select sum(int_value) as n from args join slice using (arg_set_id) where key = 'args.steps'"),
    "flows": ask("select count(*) as n from flow"),
    "processes": ask("select name from process where name is not null order by pid"),
    "counters": ask("select distinct name from counter_track order by name"),
    "span": ask("select min(ts) as begin, max(ts + dur) as end from slice"),
}))
"""


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the package, in an environment of its own."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    words = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "perfetto"]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if finished.returncode:
        pytest.skip(f"the package perfetto cannot be installed: {finished.stderr.strip().splitlines()[-1]}")
    return python


def asked(python: Path, file: Path) -> dict[str, list[dict[str, Any]]]:
    finished = subprocess.run([str(python), "-c", QUESTIONS, str(file)], capture_output=True, text=True, timeout=300)
    if finished.returncode and "trace_processor_shell" in finished.stderr:
        pytest.skip("the package perfetto cannot fetch its trace processor: no network")
    assert finished.returncode == 0, finished.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(finished.stdout)
    return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """A run in which KV is transferred and requests migrate."""
    small = ("trace=synthetic", "trace.requests=300", "trace.limit=300", "trace.arrivals.rate=60")
    return perform(configured("policy=ares", *small), tmp_path_factory.mktemp("run"))


@pytest.mark.slow
def test_perfetto_reads_what_the_summary_says(processor: Path, measured: Measurement, tmp_path: Path) -> None:
    file = tmp_path / "timeline.json.gz"
    with file.open("wb") as out:
        write_timeline(measured.result, out)
    found, summary, result = asked(processor, file), measured.evaluation.summary, measured.result
    assert found["errors"] == []
    slices = {row["name"]: row for row in found["slices"]}
    assert slices["finished"]["n"] == summary["completed"]
    assert slices["queue"]["n"] == summary["offered"]
    assert 1e-6 * slices["queue"]["ns"] / summary["offered"] == pytest.approx(summary["mean_queue_ms"], rel=1e-6)
    assert found["steps"] == [{"n": result.steps}]
    moved = measured.evaluation.requests["transfer_s"].drop_nulls().len()
    assert found["flows"] == [{"n": moved + summary["migrations"]}]
    instances = sum(pool.instances for pool in result.cluster.pools)
    names = [row["name"] for row in found["processes"]]
    assert len(names) == instances + 1
    assert names[-1] == "requests"
    counters = " ".join(row["name"] for row in found["counters"])
    assert all(name in counters for name in ("batch", "context", "waiting", "served"))
    (span,) = found["span"]
    assert 1e-9 * (span["end"] - span["begin"]) == pytest.approx(summary["duration"], rel=1e-6)
    busy_ns = sum(slices[name]["ns"] for name in ("prefill", "decode", "mixed") if name in slices)
    assert 1e-9 * busy_ns == pytest.approx(result.instances["busy_s"].sum(), rel=1e-6)
