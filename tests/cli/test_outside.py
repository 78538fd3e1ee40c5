"""`policy=FILE.py:CLASS`: a policy in a file of the user's own, without a YAML and without a package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from framework.cli.outside import class_of, settings_of, with_files
from framework.errors import InputError
from tests.conftest import ROOT
from tests.helpers import warm
from tests.helpers.readme import environment

POLICY = """
from helpers_of_mine import SHORTEST

from framework.policy import Disaggregated


class Soonest(Disaggregated):
    def __init__(self, patience_s: float = 2.0, names: list = ["a", "b"]) -> None:
        self.patience_s = patience_s

    def admit(self, request, cluster):
        return True if request.input_tokens < SHORTEST * self.patience_s else "too long"
"""
PREDICTOR = """
import numpy as np

from framework.policy.predictor import Predictor


class Ten(Predictor):
    def predict(self, requests, generated):
        return np.full(len(requests), 10.0), np.zeros(len(requests))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, with a folder named like one of the project's in it."""
    (tmp_path / "soonest.py").write_text(POLICY)
    (tmp_path / "helpers_of_mine.py").write_text("SHORTEST = 100\n")
    (tmp_path / "ten.py").write_text(PREDICTOR)
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "__init__.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    told = environment(directory)
    told["PATH"] = f"{warm.path()}:{told['PATH']}"
    words = ("python", str(ROOT / "run.py"), "trace=synthetic", "trace.limit=60", *words)
    return subprocess.run(words, cwd=directory, env=told, capture_output=True, text=True, timeout=300)


def test_it_runs_and_takes_settings(own: Path) -> None:
    finished = run(own, "policy=./soonest.py:Soonest", "predictor=ten.py:Ten", "policy.patience_s=1.5")
    assert finished.returncode == 0, finished.stderr
    assert "Soonest on synthetic" in finished.stdout
    assert "too long" in finished.stdout
    assert "prefill" in finished.stdout, "it has the cluster that its base class suggests"


def test_it_is_swept_beside_others(own: Path) -> None:
    finished = run(own, "-m", "policy=distserve,./soonest.py:Soonest", "seed=0,1")
    assert finished.returncode == 0, finished.stderr
    assert "Soonest" in finished.stdout
    assert "distserve" in finished.stdout
    again = run(own, "-m", "policy=./soonest.py:Soonest", "seed=0")
    (own / "helpers_of_mine.py").write_text("SHORTEST = 1\n")
    edited = run(own, "-m", "policy=./soonest.py:Soonest", "seed=0")
    assert edited.stdout != again.stdout, "another state of its file, or of what it imports, is another run"


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        ("nowhere.py:Soonest", "there is no such file"),
        ("soonest.py:Sooner", "has no class Sooner; it has Soonest"),
        ("broken.py:A", "broken.py:1"),
    ],
)
def test_a_mistake_is_one_line(own: Path, choice: str, line: str) -> None:
    (own / "broken.py").write_text("1 / 0\n")
    with pytest.raises(InputError, match=line):
        with_files([f"policy={choice}"])


def test_its_defaults_are_settings(own: Path) -> None:
    assert settings_of(class_of(own / "soonest.py", "Soonest")) == {"patience_s": 2.0, "names": ["a", "b"]}


def test_other_words_stay(own: Path) -> None:
    words = ["policy=chunked,ares", "trace.path=mine.py:x", "-m"]
    assert with_files(words) == words
