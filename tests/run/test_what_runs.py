"""What a store says of the sweeps and studies that run: to the page over it, while they run, and not afterwards."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from framework.cli.files import write_whole
from framework.errors import InputError
from framework.run import live
from framework.run.live import told
from framework.run.sweep import Sweep
from tests.helpers import warm
from tests.helpers.launcher import typed
from tests.helpers.processes import eventually, finish, of_session, start
from tests.servelab.test_ui import read, showing

SMALL = ("trace=synthetic", "trace.limit=60", "policy=chunked", "cluster=mixed")
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=1")
# Runs of half a second each on any machine: a sweep tells of itself after two seconds, until its last run has ended.
UNHURRIED = """
import time

import servelab


class Unhurried(servelab.Aggregated):
    def __init__(self, wait_s: float = 0.6) -> None:
        time.sleep(wait_s)
"""
LAUNCHERS = [pytest.param((), id="basic"), pytest.param(JOBLIB, id="joblib", marks=pytest.mark.slow)]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_page_shows_a_sweep_while_it_runs_and_then_its_runs(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    store = tmp_path / "results"
    (tmp_path / "unhurried.py").write_text(UNHURRIED)
    words = (*SMALL, "policy=unhurried.py:Unhurried", "seed=-1,0,1,2,3,4")
    with showing(store) as port:
        process = start(tmp_path, "-m", *launcher, *words, python=str(warm.path() / "python"))
        answers: list[dict[str, Any]] = []

        def is_over() -> bool:
            answers.extend(read(port, "/live")["running"])
            return process.poll() is not None

        assert eventually(is_over)
        finished = finish(process)
        after = read(port, "/live")
    assert finished.returncode == 2, finished.stderr  # seed=-1 is refused
    assert answers, finished.stderr
    first, last = answers[0], answers[-1]
    assert first["what"].startswith("sweep "), first
    assert "policy=unhurried" in first["what"]
    assert {(one["unit"], one["total"]) for one in answers} == {("runs", 6)}
    assert first["done"] <= last["done"] <= 6
    assert last["failed"] == 1
    assert last["best"].startswith("goodput ")
    assert last["best"].endswith(" req/s")
    assert last["time_left_s"] >= 0
    assert (after["running"], after["runs"]) == ([], 5)
    assert not (store / "running").exists()
    assert "#1" not in finished.stderr
    assert len(finished.stderr.splitlines()) < 10, finished.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.slow  # tests/run/test_launchers.py interrupts a sweep, too
def test_an_interrupted_sweep_leaves_nothing_that_runs(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    process = start(tmp_path, "-m", *launcher, *SMALL, "seed=range(500)")
    folder = tmp_path / "results" / "running"
    assert eventually(lambda: list(folder.glob("[!.]*.json")))
    process.send_signal(signal.SIGINT)
    assert finish(process).returncode == 130
    assert not folder.exists()
    assert eventually(lambda: not of_session(process), within_s=30)


def test_a_study_tells_its_store_also_if_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[dict[str, Any]] = []

    def kept(path: Path, content: bytes) -> None:
        written.append(json.loads(content))
        write_whole(path, content)

    monkeypatch.setattr(live, "_FIRST_S", -1.0)
    monkeypatch.setattr(live, "_EVERY_S", 0.0)
    monkeypatch.setattr(live, "write_whole", kept)
    sweep = Sweep([*SMALL, f"store={tmp_path / 'store'}"], tmp_path)
    assert sweep.store == tmp_path / "store"
    outcomes = sweep.shown([["seed=1"], ["seed=-1"], ["seed=2"]])
    assert [outcome.record is None for outcome in outcomes] == [False, True, False]
    best = max(outcome.record.value for outcome in outcomes if outcome.record is not None)
    counts = [(one["done"], one["total"], one["failed"]) for one in written]
    assert list(dict.fromkeys(counts)) == [(0, 3, 0), (1, 3, 0), (2, 3, 1), (3, 3, 1)]
    assert written[-1]["best"] == f"goodput {best:.2f} req/s"
    assert written[-1]["what"].startswith("study ")
    with pytest.raises(InputError, match="failed"):
        _fail(tmp_path / "store")
    assert not (tmp_path / "store" / "running").exists()


def test_long_answers_tell_their_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide, and defaults against tuned settings: both are a hundred runs and more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "_FIRST_S", -1.0)
    seen: list[str] = []

    def stopped(*words: Any) -> None:
        if callable(words[-1]):
            words[-1](1, 2)
        seen.extend(json.loads(path.read_text())["what"] for path in Path("results", "running").iterdir())
        raise InputError("enough")

    monkeypatch.setattr("experiments.guide.command.answered", stopped)
    monkeypatch.setattr("experiments.validation.defaults.command.search", stopped)
    assert typed("guide")(["preset=chat", "gpus=2", "out=out"]) == 2
    assert typed("validation", "defaults")(["azure_code", "only=chunked"]) == 2
    assert seen == ["guide chat", "defaults"]
    assert not Path("results", "running").exists()


def _fail(store: Path) -> None:
    with told(store, "it", "it", "runs") as progress:
        progress(1, 2)
        assert (store / "running").exists()
        raise InputError("failed")


@pytest.mark.parametrize(
    ("store", "line"),
    [
        ("file", "file: is no directory; name a directory for the results of sweeps"),
        pytest.param(
            "file/below",
            "file/below: cannot be made (Not a directory); choose another directory",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_store_that_cannot_be_is_told_before_anything_runs(tmp_path: Path, store: str, line: str) -> None:
    (tmp_path / "file").touch()
    words = ("-m", *SMALL, "seed=0,1", f"store={store}")
    finished = finish(start(tmp_path, *words, python=str(warm.path() / "python")))
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.splitlines()[-1] == f"error: store={tmp_path}/{line}"
    assert not list(tmp_path.glob("multirun/*/*/*/summary.json"))


def test_the_file_of_a_killed_process_goes_with_the_next_sweep(tmp_path: Path) -> None:
    folder = tmp_path / "running"
    folder.mkdir()
    known = {**vars(live.Running("lost", "runs")), "host": socket.gethostname(), "pid": 2**22 + 1}
    (folder / "lost.json").write_text(json.dumps(known))
    (folder / "elsewhere.json").write_text(json.dumps(known | {"host": "elsewhere"}))
    with told(tmp_path, "sweep", "sweep", "runs"):
        assert [path.name for path in folder.iterdir()] == ["elsewhere.json"]
