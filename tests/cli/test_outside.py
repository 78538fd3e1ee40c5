"""`policy=FILE.py:CLASS`: a policy in a file of the user's own, without a YAML and without a package."""

from __future__ import annotations

import os
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


def run(directory: Path, *arguments: str, unread: bool = False) -> subprocess.CompletedProcess[str]:
    """A run; `unread`: nobody reads its output, as behind a `| head -1` that has ended."""
    variables = environment(directory)
    variables["PATH"] = f"{warm.path()}:{variables['PATH']}"
    arguments = ("python", str(ROOT / "run.py"), "trace=synthetic", "trace.limit=60", *arguments)
    if not unread:
        return subprocess.run(arguments, cwd=directory, env=variables, capture_output=True, text=True, timeout=300)
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes) as gone:
        return subprocess.run(
            arguments, cwd=directory, env=variables, stdout=gone, stderr=subprocess.PIPE, text=True, timeout=300
        )


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
        ("broken.py:A", "broken.py:1: ZeroDivisionError: division by zero$"),
        ("ends.py:A", r"ends.py:1: SystemExit: sys.exit\(\) would end the process; raise an exception to end the run$"),
        ("deadly.py:A", "deadly.py:1: GeneratorExit: gone$"),
        ("silent.py:A", r"silent.py:4: Silent: \(its text fails with ValueError\)$"),
        ("number.py:A", "int: its arguments are not known"),
    ],
)
def test_a_mistake_is_one_line(own: Path, choice: str, line: str) -> None:
    for name, text in MODULES.items():
        (own / name).write_text(text)
    with pytest.raises(InputError, match=line):
        with_files([f"policy={choice}"])


def test_a_yaml_of_it_that_is_damaged_is_written_again(own: Path) -> None:
    words = with_files(["policy=soonest.py:Soonest"])
    (yaml,) = Path(words[-1].removeprefix("--config-dir=")).rglob("*.yaml")
    written = yaml.read_text()
    yaml.write_text("junk\n")
    assert with_files(["policy=soonest.py:Soonest"]) == words
    assert yaml.read_text() == written


MODULES = {
    "broken.py": "1 / 0\n",
    "ends.py": "exit()\n",
    "deadly.py": "raise GeneratorExit('gone')\n",
    "silent.py": "class Silent(Exception):\n    def __str__(self):\n        raise ValueError\nraise Silent",
    "number.py": "A = int\n",
}


@pytest.mark.parametrize(("module", "code"), [("raise SystemExit(0)", 2), ("raise KeyboardInterrupt", 130)])
def test_a_module_that_ends_the_process(own: Path, module: str, code: int) -> None:
    (own / "ends.py").write_text(f"{module}\n")
    finished = run(own, "policy=ends.py:A")
    assert finished.returncode == code
    assert finished.stderr.count("\n") == (code == 2)


FAULTY = """
import abc
import sys

import servelab


class SilentError(Exception):
    def __str__(self):
        raise ValueError("no text")

    __repr__ = __str__


class Unfinished(servelab.Aggregated, abc.ABC):
    @abc.abstractmethod
    def more(self): ...


class SilentInit(servelab.Aggregated):
    def __init__(self):
        raise SilentError


class SilentHook(servelab.Aggregated):
    def admit(self, request, cluster):
        raise SilentError


class ExitInit(servelab.Aggregated):
    def __init__(self):
        sys.exit(0)


class ExitHook(servelab.Aggregated):
    def admit(self, request, cluster):
        sys.exit(0)


class DeadlyLayout(servelab.Aggregated):
    def layout(self, spec):
        raise GeneratorExit("gone")


class DeadlyHook(servelab.Aggregated):
    def route_prefill(self, request, cluster):
        raise GeneratorExit("gone")


class Huge(servelab.Aggregated):
    def route_prefill(self, request, cluster):
        return 2**80


class Writes(servelab.Aggregated):
    def admit(self, request, cluster):
        cluster.instances.queued.setflags(write=True)
        return True


class Asks(servelab.Aggregated):
    def admit(self, request, cluster):
        return cluster.requests.kv_tokens([request.id])[0] > 0


class Interrupted(servelab.Aggregated):
    def admit(self, request, cluster):
        raise KeyboardInterrupt


class Closes(servelab.Aggregated):
    def admit(self, request, cluster):
        sys.stdout.close()
        return True


class Prints(servelab.Aggregated):
    def admit(self, request, cluster):
        print("x" * 1000)
        return True


class DeadlyTextError(BaseException):
    def __str__(self):
        raise SystemExit


class DeadlyText(servelab.Aggregated):
    def __init__(self):
        raise DeadlyTextError


class AsksNobody(servelab.Aggregated):
    def admit(self, request, cluster):
        return cluster.remaining_tokens([10**9])[0] > 0


class TakesTheOutput(servelab.Aggregated):
    def admit(self, request, cluster):
        sys.stdout = None
        return True
"""
SAID = {
    "Unfinished": "faulty.py: Unfinished cannot be made: Can't instantiate abstract class Unfinished",
    "SilentInit": "policy SilentInit: __init__, faulty.py:22: SilentError: (its text fails with ValueError)",
    "SilentHook": "policy SilentHook: admit for request 0 at 0.00634009 s, faulty.py:27: SilentError: (its text fails",
    "ExitInit": "policy ExitInit: __init__, faulty.py:32: RuntimeError: sys.exit(0) would end the process",
    "ExitHook": "faulty.py:37: RuntimeError: sys.exit(0) would end the process; raise an exception to end the run",
    "DeadlyLayout": "policy DeadlyLayout: layout, faulty.py:42: RuntimeError: GeneratorExit is no Exception: gone",
    "DeadlyHook": "faulty.py:47: RuntimeError: GeneratorExit is no Exception: gone; raise an exception to end the run",
    "Huge": "route_prefill returned instance 1208925819614629174706176 for request 0; the cluster has instances 0 to 4",
    "Writes": "faulty.py:57: ValueError: cannot set WRITEABLE flag to True of this array",
    "Asks": "faulty.py:63: ValueError: request 0 does not decode now: its KV tokens are not known",
    "DeadlyText": "faulty.py:90: RuntimeError: DeadlyTextError is no Exception: (its text fails with SystemExit)",
    "AsksNobody": "faulty.py:95: IndexError: no request has that number",
}


def test_what_policies_do_is_told_in_a_line_each(own: Path) -> None:
    (own / "faulty.py").write_text(FAULTY)
    finished = run(own, "-m", "policy=" + ",".join(["chunked", *(f"faulty.py:{name}" for name in SAID)]))
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr
    lines = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == len(SAID)
    for said in SAID.values():
        assert sum(said in line for line in lines) == 1, said


def test_the_output_of_a_policy(own: Path) -> None:
    (own / "faulty.py").write_text(FAULTY)
    closed = run(own, "policy=faulty.py:Closes")
    assert (closed.returncode, closed.stderr) == (2, "error: stdout is closed; send it to a file, or to /dev/null\n")
    taken = run(own, "policy=faulty.py:TakesTheOutput")
    assert (taken.returncode, taken.stderr.splitlines()[-1]) == (2, closed.stderr.strip())
    assert run(own, "policy=faulty.py:Interrupted").returncode == 130
    for word in ("policy=faulty.py:Prints", "policy=chunked"):
        unread = run(own, word, unread=True)
        assert (unread.returncode, unread.stderr) == (141, "")


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
    ("arguments", "line"),
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
def test_what_it_raises_before_a_run_is_one_line_too(own: Path, arguments: list[str], line: str) -> None:
    (own / "mistaken.py").write_text(MISTAKEN)
    finished = run(own, *arguments)
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
    arguments = ["policy=chunked,ares", "trace.path=mine.py:x", "-m"]
    assert with_files(arguments) == arguments
