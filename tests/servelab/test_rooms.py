"""Folders with the names of servelab's own packages with a user's script, and in the working directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from servelab.rooms import NEEDED, ROOMS
from tests.conftest import ROOT

SCRIPT = "import servelab\nprint(servelab.run('chunked', 'synthetic', limit=20).summary['completed'])\n"
RUN = ("policy=chunked", "trace=synthetic", "trace.limit=20")
SWEEP = ("-m", *RUN, "seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


@pytest.fixture
def folder(folder: Path) -> Path:
    """That folder, with a script with its packages."""
    (folder / "script.py").write_text(SCRIPT)
    return folder


def run(folder: Path, *words: str, path: str | None = str(ROOT)) -> subprocess.CompletedProcess[str]:
    """A command that ends well in `folder`, with `path` for modules and no other."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {} if path is None else {"PYTHONPATH": path}
    finished = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stderr
    return finished


def output_of(folder: Path, *words: str, path: str | None = str(ROOT)) -> tuple[str, list[str]]:
    """What a command that ends well prints in `folder`, and the lines in which it says what it hides."""
    finished = run(folder, *words, path=path)
    return finished.stdout, [line for line in finished.stderr.splitlines() if "with servelab" in line]


def test_a_script_finds_the_packages_of_servelab(folder: Path) -> None:
    printed, lines = output_of(folder, sys.executable, "script.py")
    assert printed == "20\n"
    assert len(lines) == 1
    assert all(str(folder / name) in lines[0] for name in ROOMS)


def test_a_package_that_was_imported_before_gives_way(folder: Path) -> None:
    for name in ROOMS[1:]:
        (folder / name / "__init__.py").unlink()  # without one it hides nothing
    (folder / ROOMS[0] / "__init__.py").write_text("MINE = 1\n")
    line = f"import {ROOMS[0]} as mine, servelab; import {ROOMS[0]} as theirs; print(mine.MINE, theirs.__file__)"
    printed, lines = output_of(folder, sys.executable, "-c", line)
    assert printed == f"1 {ROOT / ROOMS[0] / '__init__.py'}\n"
    assert len(lines) == 1
    assert lines[0].count(str(folder)) == 1


def test_a_folder_without_modules_is_not_reported(folder: Path) -> None:
    for name in ROOMS:
        (folder / name / "__init__.py").rename(folder / name / "table.csv")
    assert output_of(folder, sys.executable, "-c", "import servelab; print(servelab.Policy.__name__)") == (
        "Policy\n",
        [],
    )


@pytest.mark.slow
def test_a_policy_in_a_file_of_such_a_name(folder: Path) -> None:
    policy = "from policies.chunked import Chunked\nclass Mine(Chunked):\n    pass\n"
    (folder / "policies.py").write_text(policy)
    printed, _ = output_of(folder, sys.executable, "-m", "servelab", "policy=./policies.py:Mine", *RUN[1:])
    assert "Mine on synthetic" in printed


@pytest.mark.parametrize("words", [pytest.param(("script.py",), marks=pytest.mark.slow), ("-m", "servelab", *RUN)])
def test_a_module_of_python_is_not_hidden(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    hiding = ("numpy", "random", "yaml")
    for name in (*hiding, "enum", "pathlib", "re", "typing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    (tmp_path / "trace.py").write_text("")  # which nobody imports, so that nothing is said of it
    finished = run(tmp_path, sys.executable, *words)
    assert "20" in finished.stdout
    notes = [one for one in finished.stderr.splitlines() if one.startswith("note: ") and any(map(one.count, hiding))]
    needed = "is not imported, for servelab needs the module"
    assert sorted(notes) == sorted(f"note: {tmp_path / name}.py: {needed} {name} itself; rename it" for name in hiding)


def test_a_package_of_tests_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "__init__.py").write_text("MINE = 1\n")
    assert run(tmp_path, sys.executable, "-c", "import servelab, test; print(test.MINE)").stdout == "1\n"


def test_what_is_needed_is_not_hidden() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    called = {"hydra-core": "hydra", "pyyaml": "yaml", "hydra-joblib-launcher": "hydra"}
    wanted = {re.split("[<>=]", one)[0] for one in project["dependencies"]}
    assert {called.get(name, name) for name in wanted} <= set(NEEDED)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("-m", "framework.report.show_step", "decode=8x512"), marks=pytest.mark.slow),
        pytest.param(("-m", "experiments.tune", "--help"), marks=pytest.mark.slow),
        ("-m", "traces.fetch"),
        pytest.param(  # as a worker does
            ("-c", "import framework.run.sweep, policies, traces.load; print(policies.__file__)"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=" ".join,
)
def test_each_package_puts_the_others_first(folder: Path, words: tuple[str, str]) -> None:
    first = "framework" if words[0] == "-c" else words[1].partition(".")[0]
    (folder / first / "__init__.py").unlink()  # of two, Python itself takes the one in the working directory
    printed, lines = output_of(folder, sys.executable, *words)
    assert printed
    assert len(lines) == 1


@pytest.mark.slow
def test_workers_find_the_packages_of_servelab(folder: Path) -> None:
    printed, lines = output_of(folder, sys.executable, "-m", "servelab", *SWEEP)
    assert "2 seeds" in printed
    assert len(lines) == 1


@pytest.mark.slow
def test_an_installed_wheel_finds_its_packages(folder: Path, installed: Path) -> None:
    console = str(installed.with_name("servelab"))
    for words in ((str(installed), "script.py"), (str(installed), "-m", "servelab", *RUN)):
        printed, lines = output_of(folder, *words, path=None)
        assert "20" in printed
        assert len(lines) == 1
    for more in (RUN, SWEEP):
        printed, lines = output_of(folder, console, *more, path=None)
        assert "chunked" in printed
        assert not lines, "the working directory is not on the path of a console command"
