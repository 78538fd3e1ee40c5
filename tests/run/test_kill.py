"""Sweeps whose processes are killed at any moment: nothing half-written, nothing lost, nothing run twice."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from framework.run.store import Store
from tests.helpers import warm
from tests.helpers.processes import eventually, finish, of_session, run, runs_below, start, workers_of

JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
SIZES = [
    pytest.param(8, 0, id="8 runs", marks=pytest.mark.slow),
    *(pytest.param(200, seed, id=f"200 runs, seed {seed}", marks=pytest.mark.slow) for seed in range(1, 4)),
]


def sweep(runs: int) -> tuple[str, ...]:
    return ("-m", "policy=chunked", "cluster.instances=1", "trace=synthetic", "trace.limit=500", f"seed=range({runs})")


def records(directory: Path) -> dict[str, int]:
    """When each loose record was written."""
    return {path.name: path.stat().st_mtime_ns for path in (directory / "results" / "records").glob("[!.]*.json")}


def everything_is_whole(directory: Path) -> bool:
    for path in (directory / "results" / "records").glob("[!.]*.json"):
        json.loads(path.read_bytes())
    for run_directory in runs_below(directory):
        summary = json.loads((run_directory / "summary.json").read_bytes())
        requests = run_directory / "requests.parquet"
        assert not requests.exists() or len(pl.read_parquet(requests)) == summary["offered"]
    return True


@pytest.mark.parametrize(("runs", "seed"), SIZES)
def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path, runs: int, seed: int) -> None:
    process = start(tmp_path, *JOBLIB, *sweep(runs))
    some = random.Random(seed).randrange(1, runs)
    assert eventually(lambda: len(records(tmp_path)) >= some)
    process.kill()
    finish(process)
    assert eventually(lambda: not of_session(process), within_s=30), "workers end with the sweep"
    assert everything_is_whole(tmp_path)
    before = records(tmp_path)
    assert some <= len(before)
    finished = run(
        tmp_path, *sweep(runs), python=str(warm.path() / "python")
    )  # in one process: it is the store that knows what is done
    assert finished.returncode == 0, finished.stderr
    assert everything_is_whole(tmp_path)
    after = records(tmp_path)
    assert len(after) == runs
    assert {name: after[name] for name in before} == before, "what was done is not done again"
    found = Store(tmp_path / "results").read()
    assert sorted(record.config["seed"] for record in found) == list(range(runs))


@pytest.mark.slow  # as a job that kills its worker does in tests/run/test_launchers.py
@pytest.mark.parametrize(("runs", "seed"), SIZES)
def test_a_sweep_finishes_without_the_workers_that_are_killed(tmp_path: Path, runs: int, seed: int) -> None:
    rng = random.Random(seed)
    process = start(tmp_path, *JOBLIB, *sweep(runs), PATH="")  # a small system has no pgrep

    def has(some: int) -> bool:
        return len(records(tmp_path)) >= some and len(workers_of(process)) > 0

    for some in sorted(rng.sample(range(1, runs // 2), k=2 if runs > 100 else 1)):
        assert eventually(partial(has, some))
        os.kill(rng.choice(workers_of(process)), signal.SIGKILL)
        time.sleep(0.2)
    finished = finish(process)
    assert finished.returncode == 0, finished.stderr
    assert re.search("a worker was killed", finished.stderr)
    assert "Traceback" not in finished.stderr
    assert everything_is_whole(tmp_path)
    assert len(runs_below(tmp_path / "multirun")) == len(records(tmp_path)) == runs
