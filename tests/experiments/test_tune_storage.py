"""What a search says of storages that cannot be used, and of a study of which nothing could be run."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from sqlalchemy.exc import OperationalError

from experiments.tune import command, storage
from framework.errors import InputError
from tests.experiments.test_tune_words import FOUND

URL = "postgresql://somebody:secret@host/studies"


def test_a_driver_that_lacks_is_named_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: Any, **__: Any) -> None:
        raise ImportError("No module named 'psycopg2'")

    monkeypatch.setattr(storage, "RDBStorage", lacks)
    with pytest.raises(
        InputError, match=r"driver is not installed \(No module named 'psycopg2'\); pip install"
    ) as said:
        storage.open_storage(URL)
    assert "secret" not in str(said.value)


def test_who_comes_as_another_process_makes_the_tables_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    answers: list[Any] = []

    def connected(*_: Any, **__: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, str):
            raise OperationalError("CREATE TABLE studies", None, Exception(answer))
        return answer

    monkeypatch.setattr(storage, "RDBStorage", connected)
    monkeypatch.setattr(time, "sleep", waits.append)
    there = "table studies already exists"
    for answers, waited in (([1], []), ([there, 2], [0.3]), ([there, there, 3], [0.3, 1.0])):
        waits.clear()
        last, found = answers[-1], storage.open_storage(URL)
        assert (found, answers, waits) == (last, [], waited)
    for answers in (["no route"], [there, there, "no route"]):
        with pytest.raises(InputError, match=r"cannot be reached \(no route\)$"):
            storage.open_storage(URL)
        assert answers == []


def test_a_journal_that_has_been_opened_or_refused_is_not_locked(tmp_path: Path) -> None:
    storage.open_storage(str(tmp_path / "own"))
    (tmp_path / "none").write_text("no journal")
    with pytest.raises(InputError, match="not a journal of studies"):
        storage.open_storage(str(tmp_path / "none"))
    assert {path.name for path in tmp_path.iterdir()} == {"own", "none"}


def test_a_storage_that_goes_away_is_one_line_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(arguments: Any) -> None:
        raise optuna.exceptions.StorageInternalError("a guess") from OSError("no route for somebody:secret")

    monkeypatch.setattr(command, "tune", gone)
    arguments: Any = SimpleNamespace(every=(f"storage={URL}",))
    with pytest.raises(InputError, match=r"reached any more \(no route for .*\); once it can, the same") as said:
        command._with_storage(arguments)
    assert "secret" not in str(said.value)


def test_a_study_of_which_nothing_could_be_run_says_where_the_reasons_are(tmp_path: Path) -> None:
    none = replace(FOUND, rows=tuple(row for row in FOUND.rows if row.outcome == "infeasible"))
    with pytest.raises(InputError, match=rf"^none of the {len(none.rows)} trials could be run; .*trials\.csv says"):
        command._conclude(none, None, tmp_path, ())  # type: ignore[arg-type]
    assert (tmp_path / "trials.csv").exists()


def test_where_processes_have_no_files_one_that_there_is_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setattr(storage, "Path", lambda name: tmp_path / name[1:])
    assert storage._started(os.getpid()) == "running"
    assert storage._started(ended.pid) == ""


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_study_can_be_seen_in_a_browser(monkeypatch: pytest.MonkeyPatch, is_installed: bool) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if is_installed else None)
    install = "" if is_installed else "pip install optuna-dashboard; "
    said = storage.dashboard("studies/a b.journal")
    assert said == f"trials in a browser, also of a study that runs: {install}optuna-dashboard 'studies/a b.journal'"
    assert "secret" not in storage.dashboard("postgresql://me:secret@host/studies")
