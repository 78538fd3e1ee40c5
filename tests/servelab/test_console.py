"""The console command: one run, lists, and every other command by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from framework.errors import InputError
from framework.version import VERSION
from servelab.__main__ import COMMANDS, main
from servelab.list_command import main as list_main
from tests.conftest import ROOT
from tests.helpers import warm
from tests.helpers.launcher import typed


def servelab(directory: Path, *arguments: str, module: str = "servelab") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [str(warm.path() / "python"), "-m", *filter(None, [module]), *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)


def test_a_run_from_any_directory(tmp_path: Path) -> None:
    finished = servelab(tmp_path, "policy=chunked", "trace=synthetic", "trace.limit=50", "hydra.run.dir=here")
    assert finished.returncode == 0, finished.stderr
    assert "goodput" in finished.stdout
    assert (tmp_path / "here" / "summary.json").exists()


def test_a_sweep_from_any_directory(tmp_path: Path) -> None:
    finished = servelab(tmp_path, "-m", "policy=chunked,continuous", "trace=synthetic", "trace.limit=50")
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "results" / "records").exists()


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        assert main(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 100
        assert all(any(line.startswith(f"  {name} ") for line in lines) for name in COMMANDS)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{VERSION}\n"


SINGLE = [
    *(name for name in COMMANDS if name != "traces"),
    *(f"traces {name}" for name in ("fetch", "check", "fit")),
    *(f"validation {name}" for name in ("bench", "claims", "fidelity", "optimum", "steps", "twins")),
]


@pytest.mark.parametrize("name", SINGLE)
def test_every_command_has_help_of_one_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(*name.split())(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    started = name.replace("validation", "python -m experiments.validation")
    assert lines[0].startswith(f"usage: {started}" if "validation" in name else f"usage: servelab {name}")
    assert len(lines) > 2
    assert not any(f"  python -m experiments.{name.replace(' ', '.')}" in line for line in lines), "as it was typed"


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("word", ["--frob", "--out=x", "=", "-x"])
def test_every_command_refuses_nonsense_in_one_line(name: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(*name.split())([word]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1


def test_a_flag_is_told_how_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timing", "decode=8x512", "--json"]) == 2
    assert "json=VALUE" in capsys.readouterr().err
    assert main(["timing", "decode=8x512", "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["step_ms"] > 0


@pytest.mark.parametrize("module", ["experiments.tune", "framework.report.show_step", "traces.fetch", "traces fetch"])
def test_a_command_starts_by_its_module(tmp_path: Path, module: str) -> None:
    finished = servelab(tmp_path, *module.split(), "--help", module="")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith(f"usage: python -m {module} ")


def test_the_bound_of_a_configuration(tmp_path: Path) -> None:
    finished = servelab(tmp_path, "bound", "policy=chunked", "trace=synthetic", "trace.limit=50")
    assert finished.returncode == 0, finished.stderr
    assert "req/s" in finished.stdout
    refused = servelab(tmp_path, "bound", "policy=chunkd")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("tabel", "servelab table"),
        ("frobnicate", "--help"),
        ("chunked", "did you mean policy=chunked?"),
        ("trace", "did you mean trace=NAME?"),
    ],
)
def test_a_word_that_is_no_command(word: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {word}: ")
    assert advice in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("kind", ["policies", "traces", "models", "gpus", "options", "predictors", "metrics"])
def test_lists(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_main([kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert len(names) >= 5
    assert all(len(line) <= 120 for line in lines)
    assert all(line.split(maxsplit=1)[1:] for line in lines if not line.startswith(" ")), "each says what it is"


def test_a_list_that_there_is_not() -> None:
    with pytest.raises(InputError, match="did you mean policies"):
        list_main(["polices"])


@pytest.mark.slow
def test_a_wheel_has_all_that_it_needs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--quiet", "-w", str(tmp_path)]
    built = subprocess.run(build, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"a wheel cannot be built here: {built.stderr.splitlines()[-1:]}")
    (wheel,) = tmp_path.glob("*.whl")
    target, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True)
    assert not [*target.glob("experiments/validation"), *target.glob("conf/experiment")], "a checkout's alone"
    environment = os.environ | {"PYTHONPATH": str(target)}
    for arguments in (
        ["policy=ares", "trace=mooncake", "trace.limit=100"],
        ["list", "policies"],
        ["timing", "decode=8x512"],
    ):
        command = [sys.executable, "-m", "servelab", *arguments]
        finished = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        assert str(ROOT) not in finished.stdout + finished.stderr
    script = "import servelab\nprint(servelab.run('chunked', 'synthetic', limit=20).requests)"
    subprocess.run([sys.executable, "-c", script], cwd=elsewhere, env=environment, check=True)
