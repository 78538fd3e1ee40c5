"""The files of examples/ run, in this process and as they stand."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import servelab
from framework.cli.outside import class_of
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
NOTEBOOK = "frame_to_figure.ipynb"  # tests/servelab/test_notebook.py runs it


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of one's own, no recording at hand: what these runs leave behind lies there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACES_OFFLINE", "1")
    monkeypatch.delenv("TRACES_DIR", raising=False)


def test_each_file_is_tried_here() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    policies = {"least_work.py", "interactive_first.py", "mlfq.py", "autoscaler.py"}
    assert files == policies | {
        "running_mean.py",
        "compare.py",
        "retry_storm.py",
        "herding.py",
        "diurnal.py",
        "first_look.ipynb",
        NOTEBOOK,
    }


def test_a_router_by_old_reports_herds() -> None:
    """All requests of 5 s go to one of eight instances; two random choices, or counts of its own, spread them."""
    herding = runpy.run_path(str(EXAMPLES / "herding.py"))
    found = {name: herding["run"](herding[name](), 5.0, 600) for name in ("Fewest", "TwoChoices", "OwnCounts", "Turns")}
    assert found["Fewest"][1] > 2.0
    assert max(found[name][1] for name in ("TwoChoices", "OwnCounts", "Turns")) < 1.0


def test_the_policy_turns_away_what_would_wait() -> None:
    kind = class_of(EXAMPLES / "least_work.py", "LeastWork")
    patient, hasty = (servelab.run(kind(patience_s=limit), "azure_conv", rate=200, limit=300) for limit in (1e9, 0.5))
    assert patient.summary["completed"] == 300
    assert 0 < hasty.summary["rejected"] < 300
    assert set(hasty.requests["reason"].drop_nulls()) == {"too busy"}


def test_a_chat_request_does_not_wait_for_the_jobs_before_it() -> None:
    """Four jobs have all seats for 23.6 s; the one that steps aside comes back to the seat of the chat request."""
    jobs = {"input_tokens": [4000] * 4 + [200], "output_tokens": [3200] * 4 + [100], "priority": [0] * 4 + [1]}
    rows = pl.DataFrame({"arrival_s": [0.0] * 4 + [1.0], **jobs})
    kind = class_of(EXAMPLES / "interactive_first.py", "InteractiveFirst")
    settings = {"cluster__instances": 1, "engine__max_batch": 4}
    waits, first = (servelab.run(policy, rows, **settings).requests for policy in ("chunked", kind()))
    assert waits["ttft_s"].to_list()[4] > 20.0
    assert first["ttft_s"].to_list()[4] < 0.1
    assert first["preemptions"].to_list() == [1, 0, 0, 0, 0]
    assert first["state"].unique().to_list() == ["finished"]
    assert max(first["e2e_s"].to_list()) < 1.05 * max(waits["e2e_s"].to_list())


def test_a_feedback_queue_by_hand() -> None:
    """One seat, steps of 1 s; a level has 2, 4, 8 tokens. Request 0 of one prompt token is at the level of 4 with its
    third token, at 3 s. Request 1 comes at 3.5 s with 2 tokens, takes the seat at 4 s, and has it to its end. The
    prompt of request 2, of 8 tokens, skips to a level below that of request 0, and waits for its end at 10 s.
    """
    rows = pl.DataFrame({"arrival_s": [0.0, 3.5, 7.5], "input_tokens": [1, 2, 8], "output_tokens": [8, 2, 2]})
    policy = class_of(EXAMPLES / "mlfq.py", "SkipJoinMlfq")(quantum_tokens=2, decode_tokens=1, period_s=0.5)
    terms = ("per_prefill_token_s", "prefill_quadratic_s", "per_sequence_s", "per_context_token_s")
    settings: dict[str, Any] = {"timing": "affine", "timing__base_s": 1.0, **{f"timing__{term}": 0.0 for term in terms}}
    run = servelab.run(policy, rows, cluster__instances=1, engine__max_batch=1, server="none", **settings)
    ends_s = run.requests["arrival_s"] + run.requests["e2e_s"]
    assert ends_s.to_list() == pytest.approx([10.0, 6.0, 12.0])
    assert run.requests["preemptions"].to_list() == [0, 0, 0]


def test_the_hours_of_an_autoscaler_by_hand() -> None:
    """One seat, steps of 1 s, a start takes 2 s, ticks every second.

    The first of three instances serves a request of 10 tokens from 0 s on, then two of 4 tokens, which come at 4 s and
    end at 14 and 18 s. For these the others start at 5 s; they serve what comes at 8 s until 10 s. From 10 s on two
    requests are left, from 14 s on one. So the instances are on from 0, 5 and 5 s until 18, 14 and 10 s. With a calm
    time of 3 s two more ticks must agree, and the last two instances are on for 2 s longer.
    """
    arrival_s = [0.0, 4.0, 4.0, 8.0, 8.0]
    rows = pl.DataFrame({"arrival_s": arrival_s, "input_tokens": [1] * 5, "output_tokens": [10, 4, 4, 2, 2]})
    kind = class_of(EXAMPLES / "autoscaler.py", "Autoscaler")
    terms = ("per_prefill_token_s", "prefill_quadratic_s", "per_sequence_s", "per_context_token_s")
    settings: dict[str, Any] = {"timing": "affine", "timing__base_s": 1.0, **{f"timing__{term}": 0.0 for term in terms}}
    settings |= {"cluster__instances": 3, "cluster__on_at_start": 1, "engine__start__provisioning_s": 2.0}
    settings |= {"engine__max_batch": 1, "server": "none"}
    hasty, calm = (servelab.run(kind(1.0, 1.0, calm_s), rows, **settings) for calm_s in (0.0, 3.0))
    ends_s = (hasty.requests["arrival_s"] + hasty.requests["e2e_s"]).to_list()
    assert ends_s == pytest.approx([10, 14, 18, 10, 10])
    assert hasty.summary["gpu_hours"] == pytest.approx((18 + 9 + 5) / 3600)
    assert calm.summary["gpu_hours"] == pytest.approx((18 + 11 + 7) / 3600)
    assert [hasty.summary[key] for key in ("starts", "stops")] == [2, 2]
    assert hasty.summary["mean_instances_on"] == pytest.approx(32 / 18)


def test_the_predictor_learns() -> None:
    kind = class_of(EXAMPLES / "running_mean.py", "RunningMean")
    predictor = kind(prior_tokens=100.0)
    for tokens in (200, 300):
        predictor.observe(0, tokens)
    assert predictor.predict(None, pl.Series([0, 150, 900]).to_numpy())[0].tolist() == [200.0, 50.0, 1.0]


def test_the_script_ends_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "compare.py"))
    printed = capsys.readouterr().out
    assert "goodput_rps" in printed
    assert "shape: (5, 5)" in printed


def test_the_cells_of_the_notebook_run_one_after_another() -> None:
    notebook = json.loads((EXAMPLES / "first_look.ipynb").read_text())
    known: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec(compile("".join(cell["source"]), "first_look.ipynb", "exec"), known)
    assert known["rates"].height == 3
    assert known["run"].summary["completed"] == 500


def test_retries_keep_a_fleet_overloaded_that_sheds_no_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / "retry_storm.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    late = {line[:26].strip(): float(line[34:42].strip().rstrip("%")) for line in lines}
    assert late["clients give up after 4 s"] == late["the same, load is shed"] == 100.0
    assert late["and retry up to 5 times"] == 0.0


@pytest.mark.slow
def test_slow_starts_cost_a_fleet_its_limits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / "diurnal.py"), run_name="__main__")
    rows = {line[:22].strip(): line[22:].split() for line in capsys.readouterr().out.splitlines()}
    assert {name: (cells[0], cells[1], int(cells[3])) for name, cells in rows.items()} == {
        "all are on": ("100.0%", "3.00", 0),
        "starts take no time": ("100.0%", "2.00", 16),
        "a server starts": ("100.0%", "1.96", 10),
        "a machine is added": ("89.6%", "2.12", 11),
    }
