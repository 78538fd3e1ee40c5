"""What the command line's edge takes for a mistake, and which directories it clears away."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework.cli.explain import explain
from framework.cli.launch import (
    _GROUPS,
    INTERRUPTED,
    USER_ERROR,
    _refuse_left_out_groups,
    guard,
)
from framework.errors import InputError, InvariantError, PolicyError
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from framework.run.callback import FreshDirectory
from framework.run.comparison import ended_runs, labelled, print_comparison
from tests.conftest import ROOT
from tests.helpers.composing import composing
from tests.helpers.results import small_result

INTERRUPTED_IN_C = """
import ctypes, signal, time
from framework.cli.launch import launch, take_interrupts

def main():
    take_interrupts()
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()
    time.sleep(60)

launch(main)
"""


INTERRUPTED_EARLY = """
import signal, time
from framework.cli.launch import launch

def main():
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        time.sleep(60)

launch(main)
"""


def broken(kind: str) -> None:
    if kind == "input":
        raise InputError("rate is -1,\n must be above 0")
    raise {"type": TypeError, "key": KeyError, "import": ImportError}[kind]("inside")


@pytest.mark.parametrize("error", [InputError("a  b\nc"), PolicyError("a b c")])
def test_a_mistake_is_put_on_one_line(error: InputError) -> None:
    assert explain(error) == "a b c"


@pytest.mark.parametrize("error", [KeyError("x"), InvariantError("x"), TypeError("x"), OSError(2, "gone", "file")])
def test_anything_else_is_a_bug(error: Exception) -> None:
    assert explain(error) is None


@pytest.mark.parametrize(
    ("kind", "line"),
    [("input", "rate is -1, must be above 0"), ("type", None), ("key", None), ("import", None)],
)
def test_a_constructor_is_told_from_its_arguments(kind: str, line: str | None) -> None:
    with pytest.raises(HydraException) as caught:
        instantiate({"_target_": f"{__name__}.broken", "kind": kind})
    assert explain(caught.value) == line


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"_target_": f"{__name__}.broken", "sort": 1}, ["sort"]),
        ({"_target_": f"{__name__}.absent"}, ["absent", "_target_"]),
        ({"_target_": "no_such_package.Thing"}, ["no_such_package", "_target_"]),
    ],
)
def test_arguments_and_names_are_the_users(node: dict[str, object], words: list[str]) -> None:
    with pytest.raises(HydraException) as caught:
        instantiate({"part": node})
    line = explain(caught.value)
    assert line is not None
    assert line.startswith("part: ")
    assert all(word in line for word in words)
    assert "\n" not in line


def test_a_module_that_breaks_while_it_is_imported_is_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_on_import.py").write_text("import package_that_is_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(HydraException) as caught:
        instantiate({"_target_": "breaks_on_import.Thing"})
    assert explain(caught.value) is None


def test_a_missing_value_is_named() -> None:
    with pytest.raises(OmegaConfBaseException) as caught:
        OmegaConf.create({"part": {"path": "???"}}).part.path  # noqa: B018
    line = explain(caught.value)
    assert line is not None
    assert line == "part.path has no default; give it a value, as in part.path=VALUE"


@pytest.mark.parametrize("group", sorted(_GROUPS))
def test_a_part_that_every_run_has_is_not_left_out(group: str) -> None:
    assert (ROOT / "conf" / group).is_dir()
    with pytest.raises(InputError, match=f"^~{group}=x: a run needs a {group}; choose one, as in {group}=NAME$"):
        _refuse_left_out_groups(["policy=ares", f"~{group}=x"])
    _refuse_left_out_groups([f"{group}=x", "~trace.limit"])


@pytest.mark.parametrize("word", ["chunked", "policy = chunked"])
def test_how_a_setting_is_written_is_reported(word: str) -> None:
    with composing(), pytest.raises(HydraException) as refused:
        compose("config", overrides=[word])
    assert explain(refused.value) == f"{word}: a setting is written key=value, without spaces"


def test_a_list_in_place_of_settings_is_told_how_they_are_written() -> None:
    with composing(), pytest.raises(HydraException) as refused:
        compose("config", overrides=["cluster=node_pools", "cluster.pools=[]"])
    assert explain(refused.value) == (
        "cluster.pools=[]: cluster.pools holds settings by name; write cluster.pools.NAME=VALUE, or "
        "cluster.pools={NAME: VALUE}"
    )


def test_an_interrupt_that_is_lost_in_a_callback_comes_again() -> None:
    finished = subprocess.run([sys.executable, "-c", INTERRUPTED_IN_C], capture_output=True, text=True, timeout=30)
    assert (finished.returncode, finished.stdout, finished.stderr) == (INTERRUPTED, "", "")


def test_an_interrupt_before_anything_has_begun_cannot_be_caught() -> None:
    finished = subprocess.run([sys.executable, "-c", INTERRUPTED_EARLY], capture_output=True, text=True, timeout=30)
    assert (finished.returncode, finished.stdout, finished.stderr) == (INTERRUPTED, "", "")


def test_an_exit_code_says_how_a_command_ended(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise InputError("rate is -1,\nmust be above 0")

    def interrupt() -> None:
        raise KeyboardInterrupt

    assert (guard(lambda: None), guard(lambda: 3)) == (0, 3)
    assert guard(refuse) == USER_ERROR
    assert capsys.readouterr().err == "error: rate is -1, must be above 0\n"
    assert guard(interrupt, "the runs that ended are kept") == INTERRUPTED
    assert capsys.readouterr().err == "the runs that ended are kept\n"
    with pytest.raises(ZeroDivisionError):
        guard(lambda: 1 // 0)


@pytest.mark.parametrize("is_named", [True, False])  # OmegaConf does not name what its errors follow
def test_an_error_that_an_interrupt_caused_is_an_interrupt(capsys: pytest.CaptureFixture[str], is_named: bool) -> None:
    def fail() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise SystemError("a callback returned a result") from (interrupt if is_named else None)

    assert guard(fail) == INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_fresh_directory_is_discarded_with_the_parents_made_for_it(tmp_path: Path) -> None:
    fresh = FreshDirectory.watch(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / ".hydra").mkdir(parents=True)
    (tmp_path / "a" / "b" / ".hydra" / "config.yaml").touch()
    (tmp_path / "a" / "b" / "run.log").touch()
    fresh.discard()
    assert not list(tmp_path.iterdir())


def test_a_parent_in_which_another_run_lives_is_kept(tmp_path: Path) -> None:
    fresh = FreshDirectory.watch(tmp_path / "a" / "b")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "other").mkdir()
    fresh.discard()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["other"]


def test_a_directory_with_results_is_kept(tmp_path: Path) -> None:
    fresh = FreshDirectory.watch(tmp_path / "a")
    (tmp_path / "a" / ".hydra").mkdir(parents=True)
    (tmp_path / "a" / "summary.json").touch()
    fresh.discard()
    assert {path.name for path in (tmp_path / "a").iterdir()} == {".hydra", "summary.json"}


def test_a_directory_that_was_there_keeps_what_it_held(tmp_path: Path) -> None:
    (tmp_path / "old.log").touch()
    fresh = FreshDirectory.watch(tmp_path)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "run.log").touch()
    fresh.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["old.log"]


def job(sweep: Path, number: int, overrides: list[str], source: str = "real") -> Path:
    directory = sweep / str(number)
    (directory / ".hydra").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(overrides), directory / ".hydra" / "overrides.yaml")
    OmegaConf.save(OmegaConf.create({"hydra": {"job": {"num": number}}}), directory / ".hydra" / "hydra.yaml")
    summary = {"policy": "P", "trace": "t", "trace_source": source, "number": number}
    (directory / "summary.json").write_text(json.dumps(summary))
    return directory


def test_runs_of_a_sweep_are_called_by_what_differs_and_kept_in_order(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        job(tmp_path, number, ["trace=t", f"policy=p{number}"])
    runs = labelled(ended_runs(tmp_path))
    assert [(label, summary["number"]) for label, summary in runs] == [
        ("policy=p1", 1),
        ("policy=p2", 2),
        ("policy=p10", 10),
    ]


def test_runs_of_an_earlier_sweep_in_the_same_directory_are_left_out(tmp_path: Path) -> None:
    old = job(tmp_path, 0, ["seed=0"])
    os.utime(old / "summary.json", ns=(10, 10))
    job(tmp_path, 1, ["seed=1"])
    assert [label for label, _ in labelled(ended_runs(tmp_path, since_ns=11))] == ["seed=1"]


def test_the_one_run_that_has_ended_is_named_by_what_the_sweep_varies(tmp_path: Path) -> None:
    task = ["policy=a,b", "trace=synthetic", "trace.limit=300"]
    OmegaConf.save(OmegaConf.create({"hydra": {"overrides": {"task": task}}}), tmp_path / "multirun.yaml")
    job(tmp_path, 1, ["policy=b", "trace=synthetic", "trace.limit=300"])
    assert [label for label, _ in labelled(ended_runs(tmp_path))] == ["policy=b"]


def test_a_twin_among_recordings_is_marked(tmp_path: Path) -> None:
    job(tmp_path, 0, ["trace.path=a"])
    job(tmp_path, 1, ["trace=b"], source="twin")
    assert [label for label, _ in labelled(ended_runs(tmp_path))] == ["trace.path=a", "trace=b (fitted)"]


@pytest.mark.parametrize("count", [40, 41])
def test_of_many_runs_the_best_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int) -> None:
    summary = evaluate(small_result(), Slo(ttft_s=1.0, tpot_s=0.1)).summary
    for number in range(count):
        goodput = float((number * 7) % count)
        directory = job(tmp_path, number, [f"policy.chunk={number:03d}"])
        (directory / "summary.json").write_text(json.dumps(summary | {"goodput_rps": goodput}))
    print_comparison(tmp_path, 0, OmegaConf.create({"_target_": "framework.objective.goodput.Goodput"}))
    out = capsys.readouterr().out
    if count == 40:
        assert out.count("chunk=") == 40
        assert "the best" not in out
    else:
        best = sorted(range(count), key=lambda number: (number * 7) % count, reverse=True)[:20]
        assert [int(number) for number in re.findall(r"chunk=(\d+)", out)] == best
        assert "the best 20 of 41 rows by goodput_rps" in out


@pytest.mark.slow
def test_a_short_run_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    """Each of these would add some hundredths to a tenth of its time."""
    code = (
        "import runpy, sys; sys.argv[0] = 'run.py'\n"
        "try:\n    runpy.run_path('run.py', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "print('IMPORTED', *sys.modules, file=sys.stderr)"
    )
    words = ["policy=chunked", "trace.limit=50", f"hydra.run.dir={tmp_path}/run"]
    for _ in range(2):  # the second loads what the first has compiled
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, timeout=600
        )
    imported = set(done.stderr.split("IMPORTED ")[1].split())
    assert "framework.engine.loop" in imported
    assert imported.isdisjoint({"scipy.linalg", "scipy.optimize", "framework.reference.loop", "ssl", "optuna"})
