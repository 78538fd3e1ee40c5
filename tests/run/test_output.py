"""The files of a run: complete, equal for equal runs, and never half written."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import polars as pl
import pytest

from framework.errors import InputError
from framework.metrics.paper_scores import gaps_of
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from framework.objective.goodput import Measurement
from framework.run import output
from framework.run.command import why
from framework.run.job import perform
from framework.run.output import gap_table, step_table, write
from tests.helpers.composing import configured
from tests.helpers.results import reduced_result, small_result

EVALUATION = evaluate(small_result(), Slo())


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_files_hold_what_was_computed(tmp_path: Path) -> None:
    files = write(tmp_path, small_result(), EVALUATION, steps=True, timeline=True)
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert names(tmp_path) == ["requests.parquet", "steps.parquet", "summary.json", "timeline.json.gz"]
    assert json.loads((tmp_path / "summary.json").read_text()) == EVALUATION.summary
    assert pl.read_parquet(tmp_path / "requests.parquet").equals(EVALUATION.requests)
    assert pl.read_parquet(tmp_path / "steps.parquet").equals(step_table(small_result()))


def test_steps_and_timeline_only_on_request(tmp_path: Path) -> None:
    write(tmp_path / "new" / "directory", small_result(), EVALUATION)
    assert names(tmp_path / "new" / "directory") == ["requests.parquet", "summary.json"]


def test_step_table_keeps_each_leap() -> None:
    table = step_table(small_result())
    assert table.columns == [
        *("instance", "steps", "batch", "prefill_tokens", "start_s", "first_s", "increment_s", "step0", "context")
    ]
    assert table.row(5) == (1, 2, 1, 0, 2.0, 0.5, 0.0, 2, 202)


def test_gaps_of_all_requests_add_up_to_one() -> None:
    """Two of 0.25 s and three of 0.5 s, in bins that are 0.4 % wide."""
    table = gap_table(small_result())
    assert table["share"].to_list() == pytest.approx([0.4, 1.0])
    assert table["gap_s"].to_list() == pytest.approx([0.25, 0.5], rel=0.004)


def test_same_run_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, small_result(), evaluate(small_result(), Slo()), steps=True, timeline=True)
    for file in names(tmp_path / "a"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written") as caught:
        write(tmp_path / "file" / "results", small_result(), EVALUATION)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_without_permission(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(InputError, match="Permission denied"):
        write(tmp_path / "locked" / "results", small_result(), EVALUATION)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(output, "write_timeline", fail)
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt):
        write(tmp_path / "new" / "results", small_result(), EVALUATION, steps=True, timeline=True)
    assert names(tmp_path) == []


def test_a_full_disk_is_named_where_polars_keeps_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise pl.exceptions.ComputeError("Invalid thrift")

    monkeypatch.setattr(output, "write_timeline", fail)
    with pytest.raises(InputError, match="Invalid thrift"):
        write(tmp_path / "results", small_result(), EVALUATION, timeline=True)
    monkeypatch.setattr(output, "_is_full", lambda directory: True)
    with pytest.raises(InputError, match="No space left"):
        write(tmp_path / "results", small_result(), EVALUATION, timeline=True)
    assert names(tmp_path) == []


def test_results_of_an_earlier_run_survive_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, small_result(), EVALUATION)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, "write_timeline", fail)
    with pytest.raises(InputError, match="No space left"):
        write(tmp_path, small_result(seed=1), EVALUATION, timeline=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("asked", ["steps", "timeline"])
def test_reduced_run_has_no_steps_to_write(tmp_path: Path, asked: str) -> None:
    reduced = reduced_result(gaps_of(small_result()))
    with pytest.raises(InputError, match=f"output.{asked} needs the step log"):
        write(tmp_path, reduced, EVALUATION, steps=asked == "steps", timeline=asked == "timeline")
    assert names(tmp_path) == []


@pytest.mark.parametrize("report", [True, False])
def test_a_report_is_written_on_request(tmp_path: Path, report: bool) -> None:
    config = configured("policy=chunked", "trace=synthetic", "trace.limit=20", f"report={str(report).lower()}")
    measurement = perform(config, tmp_path)
    assert ("report.html" in names(tmp_path)) == report
    if report:
        page = (tmp_path / "report.html").read_text()
        assert f'<data value="{measurement.value!r}">' in page
        assert "engine.token_budget" in page


def test_a_report_is_asked_for_by_yes_or_no() -> None:
    with pytest.raises(InputError, match="report must be true or false"):
        perform(configured("trace=synthetic", "trace.limit=20", "report=html"), Path("nowhere"))


def test_a_run_that_lost_requests_says_why_on_the_terminal() -> None:
    slo = Slo(ttft_s=0.1, tpot_s=10.0)
    assert why(Measurement(0.0, small_result(), evaluate(small_result(), slo), slo)) is not None
    kept = Slo(ttft_s=None, tpot_s=None)
    result = small_result()
    result.requests["state"] = 1
    assert why(Measurement(0.0, result, evaluate(result, kept), kept)) is None


def test_a_window_bounds_the_timeline_of_a_run(tmp_path: Path) -> None:
    words = ("policy=chunked", "trace=synthetic", "trace.limit=20", "output.timeline=true")
    perform(configured(*words), tmp_path / "whole")
    perform(configured(*words, "output.window_s=[0,0.5]"), tmp_path / "part")
    slices = {}
    for name in ("whole", "part"):
        trace = json.loads(gzip.decompress((tmp_path / name / "timeline.json.gz").read_bytes()))
        slices[name] = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert slices["part"] == [event for event in slices["whole"] if event["ts"] < 0.5e6]
    assert 0 < len(slices["part"]) < len(slices["whole"])
