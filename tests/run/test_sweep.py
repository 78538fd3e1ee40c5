"""Jobs through a launcher: outcomes in order, refusals reported, and nothing run that the store has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framework.objective.goodput import Measurement
from framework.run import job
from framework.run.store import Store
from framework.run.sweep import Sweep

BASE = ("policy=chunked", "trace=synthetic", "trace.limit=30", "cluster.instances=1")
JOBS = (["seed=1"], ["model=llama3_70b"], ["seed=2", "engine.token_budget=512"])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_outcomes_are_in_order_and_refusals_are_lines(tmp_path: Path) -> None:
    first, refused, last = Sweep(BASE, tmp_path / "study").run(JOBS)
    assert first.overrides == ("seed=1",)
    assert first.record is not None
    assert last.record is not None
    assert first.record.config["seed"] == 1
    assert last.record.config["engine.token_budget"] == 512
    assert first.record.value == first.record.summary["goodput_rps"] > 0
    assert first.record.choices["policy"] == "chunked"
    assert not any("/" in group for group in first.record.choices)
    assert refused.record is None
    assert "does not fit" in str(refused.refusal)
    assert "\n" not in str(refused.refusal)
    assert sorted(record.key for record in Store(tmp_path / "results").read()) == sorted(
        [first.record.key, last.record.key]
    )


def test_what_the_store_has_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Sweep(BASE, tmp_path / "study").run(JOBS[:1])
    runs = []
    measured = job._measured

    def counted(*parts: Any) -> Measurement:
        runs.append(parts)
        return measured(*parts)

    monkeypatch.setattr(job, "_measured", counted)
    again, other = Sweep(BASE, tmp_path / "study").run([["seed=1"], ["seed=3"]])
    assert again.record == before[0].record
    assert other.record is not None
    assert len(runs) == 1
    forced = Sweep([*BASE, "force=true"], tmp_path / "study").run(JOBS[:1])
    assert forced[0].record == before[0].record
    assert len(runs) == 2


def test_a_bug_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*parts: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(job, "_measured", broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        Sweep(BASE, tmp_path / "study").run(JOBS[:1])


def test_records_are_json(tmp_path: Path) -> None:
    Sweep(BASE, tmp_path / "study").run(JOBS[:1])
    (file,) = (tmp_path / "results" / "records").iterdir()
    assert json.loads(file.read_text())["choices"]["trace"] == "synthetic"
