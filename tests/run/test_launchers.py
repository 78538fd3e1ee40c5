"""Sweeps through launchers other than the basic one: what they return, and what becomes of jobs that go wrong."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import types
from pathlib import Path

import pytest
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from framework.cli.composition import Loader
from framework.errors import InputError
from framework.run.callback import Refusals
from framework.run.launchers import jobs
from framework.run.sweep import Sweep
from tests.helpers import warm
from tests.helpers.composing import hydra_alone
from tests.helpers.processes import (
    Finished,
    eventually,
    finish,
    of_session,
    outside_policy,
    run,
    runs_below,
    start,
    workers_of,
)
from tests.helpers.quick import every_second

JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
SMALL = ("trace=synthetic", "trace.limit=50", "policy=chunked", "cluster=mixed")


@pytest.fixture
def faulty(tmp_path: Path) -> tuple[str, ...]:
    return (*outside_policy(tmp_path), *SMALL, "policy=faulty")


# --- composition ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loader() -> ConfigLoader:
    with hydra_alone():
        return GlobalHydra.instance().config_loader()


COMPOSED = [
    [],
    ["seed=3", "policy=distserve", "cluster=disaggregated", "cluster.prefill=3"],
    ["engine.token_budget=512", "engine.token_budget=1024", "output={steps: true}", "output.steps=false"],
    ["+extra=1", "extra=2", "++other.deep=[1,2]"],
    ["~slo.ttft_s", "seed=2"],
    ["policy=ares", "policy={imbalance: 1.5}", "policy.moves=2"],
    ["trace.path='a=b,c'", "model.dtype=fp8"],
]


@pytest.mark.parametrize("overrides", every_second(COMPOSED), ids=" ".join)
def test_a_sweep_composes_what_hydra_composes(loader: ConfigLoader, overrides: list[str]) -> None:
    master = loader.load_configuration("config", ["hydra.sweep.dir=here", "seed=7"], RunMode.MULTIRUN)
    sweeping = Loader(loader.get_search_path())
    expected = OmegaConf.to_yaml(loader.load_sweep_config(master, overrides))
    for _ in range(2):  # composed, and remembered
        sweeping.load_sweep_config(master, ["policy=ares", "seed=99"])
        assert OmegaConf.to_yaml(sweeping.load_sweep_config(master, overrides)) == expected


def test_a_joblib_that_brings_no_cloudpickle_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("cloudpickle")
    monkeypatch.setitem(sys.modules, "joblib.externals", types.ModuleType("joblib.externals"))
    monkeypatch.delitem(sys.modules, "joblib.externals.cloudpickle", raising=False)
    monkeypatch.setitem(sys.modules, "cloudpickle", package)
    spec = importlib.util.spec_from_file_location("jobs_again", jobs.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "jobs_again", again)  # where dataclasses look for it
    spec.loader.exec_module(again)
    assert again.cloudpickle is package


# --- joblib -----------------------------------------------------------------------------------------------------------


def swept(directory: Path, *overrides: str, **environment: str) -> Finished:
    return run(directory, *overrides, python=str(warm.path() / "python"), **environment)


@pytest.mark.slow  # what a policy raises is told below, and a worker that dies
def test_refused_runs_of_workers_are_told_once_and_the_others_go_on(tmp_path: Path) -> None:
    overrides = ("policy=chunked,distserve,ares", "seed=1,-1", "model=llama3_8b,llama3_70b")
    finished = swept(tmp_path, "-m", *JOBLIB, *SMALL[:2], "cluster=mixed", *overrides)
    assert finished.returncode == 2, finished.stderr
    errors = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(set(errors)) == 4, finished.stderr
    for words in ("seed must be", "does not fit", "distserve", "ares"):
        assert sum(words in error for error in errors) == 1, (words, errors)
    assert [path.name for path in runs_below(tmp_path / "multirun")] == ["0"]
    assert finished.stdout.count("goodput") == 1
    assert "Traceback" not in finished.stderr


@pytest.mark.slow
def test_a_bug_in_a_worker_keeps_its_traceback_and_the_other_runs(tmp_path: Path, faulty: tuple[str, ...]) -> None:
    words = ("policy.kind=none,bug,other", "hydra.launcher.n_jobs=1")
    finished = swept(tmp_path, *faulty, "-m", JOBLIB[0], *words, PYTHONPATH=str(tmp_path / "outside"))
    assert finished.returncode == 1
    assert finished.stderr.count("KeyError: 'nothing'") == 1, finished.stderr
    assert "faulty_policy.py" in finished.stderr
    assert [path.name for path in runs_below(tmp_path / "multirun")] == ["0", "2"]
    (trace,) = tmp_path.rglob("traceback.txt")
    assert "KeyError: 'nothing'" in trace.read_text()
    assert (trace.parent / ".hydra" / "config.yaml").exists()


def test_what_a_policy_raises_is_told_once_and_the_other_runs_go_on(tmp_path: Path, faulty: tuple[str, ...]) -> None:
    words = ("policy.kind=none,raises", "engine.max_batch=8,16")
    finished = swept(tmp_path, *faulty, "-m", *words, PYTHONPATH=str(tmp_path / "outside"))
    assert finished.returncode == 2
    (error,) = (line for line in finished.stderr.splitlines() if line.startswith("error: "))
    assert error.startswith("error: policy Faulty: route_prefill for request 0 at ")
    assert "faulty_policy.py:" in error
    assert "KeyError: 'nothing'" in error
    assert "Traceback" not in finished.stderr
    assert [path.name for path in runs_below(tmp_path / "multirun")] == ["0", "1"]
    assert len(list(tmp_path.rglob("traceback.txt"))) == 2


@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_sweep_outlives_its_workers_and_gives_up_a_job_that_kills_three(
    tmp_path: Path, faulty: tuple[str, ...], seeds: int
) -> None:
    words = ("policy.kind=none,once,deadly,other", f"seed=range({seeds})")
    workers = f"hydra.launcher.n_jobs={seeds}"
    finished = swept(tmp_path, *faulty, "-m", JOBLIB[0], workers, *words, PYTHONPATH=str(tmp_path / "outside"))
    assert finished.returncode == 2, finished.stderr
    survivors = [number for number in range(4 * seeds) if number // seeds != 2]  # those that are not deadly
    assert [path.name for path in runs_below(tmp_path / "multirun")] == [str(number) for number in survivors]
    errors = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, finished.stderr
    assert "killed three times" in errors[0]
    assert "policy.kind=deadly" in errors[0]
    assert "a worker was killed" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(("requests", "kept"), [pytest.param("3000000", 0, marks=pytest.mark.slow), ("10,3000000", 4)])
def test_an_interrupted_sweep_ends_quietly_with_its_workers(tmp_path: Path, requests: str, kept: int) -> None:
    process = start(tmp_path, "-m", *JOBLIB, "trace=synthetic", f"trace.requests={requests}", "seed=range(4)")
    assert eventually(lambda: list(tmp_path.rglob("overrides.yaml")) and len(runs_below(tmp_path)) == kept)
    process.send_signal(signal.SIGINT)
    finished = finish(process)
    assert finished.returncode == 130
    assert "Traceback" not in finished.stderr
    assert "error" not in finished.stderr
    line = "the sweep was interrupted: 4 of 8 runs are kept; the same command goes on with the others"
    assert finished.stderr.count(line) == (kept > 0)
    assert eventually(lambda: not of_session(process), within_s=30)
    assert (tmp_path / "multirun").exists() == (kept > 0)


@pytest.mark.slow  # as a killed sweep of tests/run/test_kill.py does
def test_workers_end_soon_after_the_process_that_gave_them_work(tmp_path: Path) -> None:
    process = start(tmp_path, "-m", *JOBLIB, *SMALL, "seed=range(300)")
    assert eventually(lambda: runs_below(tmp_path))
    assert workers_of(process)
    process.kill()
    finish(process)
    assert eventually(lambda: not of_session(process), within_s=30)


@pytest.mark.slow
def test_workers_persist_between_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from joblib.externals.loky import get_reusable_executor

    def pids() -> set[int]:
        return set(get_reusable_executor(reuse=True)._processes)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    sweep = Sweep([*JOBLIB, *SMALL], tmp_path / "study")
    outcomes = sweep.run([["seed=1"], ["model=llama3_70b"]])
    before = pids()
    assert outcomes[0].record is not None
    assert "does not fit" in str(outcomes[1].refusal)
    monkeypatch.chdir(elsewhere)
    (outcome,) = sweep.run([["seed=2"]])
    assert outcome.record is not None
    assert len(before) == 2
    assert pids() == before
    os.kill(before.pop(), signal.SIGKILL)
    assert [outcome.refusal for outcome in sweep.run([["seed=3"], ["seed=4"]])] == [None, None]
    assert len(list((elsewhere / "results" / "records").iterdir())) == 3, "relative to where the command now is"
    with pytest.raises(InputError, match="nonesuch"):
        sweep.run([["policy=nonesuch"]])


@pytest.mark.parametrize("count", ["0", "many", "1.5"])
def test_a_number_of_workers_is_a_whole_number(tmp_path: Path, count: str) -> None:
    sweep = Sweep(["hydra/launcher=joblib", f"hydra.launcher.n_jobs={count}", *SMALL], tmp_path)
    with pytest.raises(InputError, match=r"hydra\.launcher\.n_jobs"):
        sweep.run([["seed=1"]])


# --- the others -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launcher", "extra"), [("ray", "ray"), ("submitit_slurm", "slurm"), ("submitit_local", "slurm")]
)
def test_a_launcher_that_is_not_installed_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, extra: str
) -> None:
    from hydra_plugins.servelab import launchers

    monkeypatch.setattr(launchers, "_is_installed", lambda package: False)
    with pytest.raises(InputError, match=rf"hydra/launcher={launcher}.*pip install '\.\[{extra}\]'"):
        Sweep([f"hydra/launcher={launcher}", *SMALL], tmp_path)


def test_refusals_of_an_earlier_sweep_are_forgotten(tmp_path: Path) -> None:
    refusals = Refusals(tmp_path / "refused")
    refusals.clear()
    refusals.add(10, "ten", "seed=10")
    refusals.add(9, "nine", "")
    assert refusals.read() == [("nine", ""), ("ten", "seed=10")]
    refusals.clear()
    assert refusals.read() == []
