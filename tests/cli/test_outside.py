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
        ("soonest.py:Soones", "there is no class Soones; did you mean Soonest[?] it has Soonest"),
        ("soonest.py:Another", "there is no class Another; it has Soonest"),
        ("./soonest.py", r"name the class, too: policy=./soonest.py:CLASS; it has Soonest"),
        ("./nowhere.py", "there is no such file"),
        ("broken.py:A", "broken.py:1"),
    ],
)
def test_a_mistake_is_one_line(own: Path, choice: str, line: str) -> None:
    (own / "broken.py").write_text("1 / 0\n")
    with pytest.raises(InputError, match=line):
        with_files([f"policy={choice}"])


MISTAKEN = """
import servelab


class InInit(servelab.Disaggregated):
    def __init__(self, a: int = 1) -> None:
        raise RuntimeError("broken")


class InPrepare(servelab.Disaggregated):
    def prepare(self, cluster):
        self.x = cluster.nothing


class InLayout(servelab.Disaggregated):
    def layout(self, spec):
        return spec.nothing


class NoPolicy:
    pass


class Needs(servelab.Disaggregated):
    def __init__(self, a) -> None:
        self.a = a
"""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["policy=./mistaken.py:InInit"], "policy InInit: __init__, mistaken.py:7: RuntimeError: broken; see "),
        (["policy=./mistaken.py:InPrepare"], "policy InPrepare: prepare, mistaken.py:12: AttributeError: 'Cluster'"),
        (["policy=./mistaken.py:InLayout"], "policy InLayout: layout, mistaken.py:17: AttributeError: 'ClusterSpec'"),
        (["policy=./mistaken.py:NoPolicy"], "it made a NoPolicy; inherit servelab.Policy, Aggregated or Disaggregated"),
        (["policy=./mistaken.py:Needs"], "policy.a has no default; give it a value, as in policy.a=VALUE"),
        (
            ["policy=ares", "predictor=./mistaken.py:NoPolicy"],
            "predictor: _target_ must make a Predictor, it made a NoPolicy; inherit servelab.Predictor",
        ),
    ],
)
def test_what_it_raises_before_a_run_is_one_line_too(own: Path, words: list[str], line: str) -> None:
    (own / "mistaken.py").write_text(MISTAKEN)
    finished = run(own, *words)
    assert finished.returncode == 2
    assert line in finished.stderr
    assert finished.stderr.count("\n") == 1
    if "; see " in finished.stderr:
        assert "Traceback" in Path(finished.stderr.rpartition("; see ")[2].strip()).read_text()


def test_its_run_ends_in_a_command_that_compares_it(own: Path) -> None:
    finished = run(own, "policy=./soonest.py:Soonest", "predictor=ten.py:Ten")
    command = (
        "run.py -m policy=./soonest.py:Soonest,chunked,distserve trace=synthetic trace.limit=60 predictor=./ten.py:Ten"
    )
    assert command in " ".join(finished.stdout.split())


def test_its_defaults_are_settings(own: Path) -> None:
    assert settings_of(class_of(own / "soonest.py", "Soonest")) == {"patience_s": 2.0, "names": ["a", "b"]}


def test_other_words_stay(own: Path) -> None:
    words = ["policy=chunked,ares", "trace.path=mine.py:x", "-m"]
    assert with_files(words) == words
