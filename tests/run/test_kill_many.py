"""A thousand configurations, killed again and again: in the end the same command leaves what it always leaves."""

from __future__ import annotations

import functools
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from framework.run.store import Store
from tests.helpers.processes import Finished, eventually, of_session, run, runs_below, start_quietly, workers_of

pytestmark = pytest.mark.slow
SETTINGS = ("policy=chunked", "cluster.instances=1", "trace=synthetic", "trace.limit=50")
RUNS = {"basic": 100, "joblib": 1_000, "ray": 1_000}
LAUNCHERS = {
    "basic": (),
    "joblib": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
    "ray": (
        "hydra/launcher=ray",
        "hydra.launcher.ray.init.address=local",
        "+hydra.launcher.ray.init.num_cpus=2",
    ),
}
KILLS = {
    "basic": ("parent",) * 10,
    "joblib": ("worker", "worker", "parent") * 6,
    "ray": ("worker", "worker", "worker", "parent") * 3,
}
_LATER_S = 7_200.0  # when what killed writers left counts as abandoned


def test_forty_are_killed() -> None:
    assert sum(map(len, KILLS.values())) >= 40


def sweep(runs: int) -> tuple[str, ...]:
    return ("-m", *SETTINGS, f"seed=range({runs})")


class Whole(NamedTuple):
    """A sweep that was left alone."""

    directory: Path
    finished: Finished
    records: set[str]  # names of files, which the store puts together when it is read


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Whole]:
    """Such a sweep of so many runs."""

    @functools.cache
    def made(runs: int) -> Whole:
        directory = tmp_path_factory.mktemp("whole")
        finished = run(directory, *sweep(runs))
        assert finished.returncode == 0, finished.stderr
        return Whole(directory, finished, {path.name for path in _loose(directory)})

    return made


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_sweep_outlives_its_processes(launcher: str, tmp_path: Path, expected: Callable[[int], Whole]) -> None:
    if launcher == "ray":
        pytest.importorskip("ray", reason="Ray is not installed")
    runs, rng = RUNS[launcher], random.Random(launcher)
    words = (*LAUNCHERS[launcher], *sweep(runs))
    seen = dict[str, int]()
    process = start_quietly(tmp_path, *words)
    for some, who in zip(_marks(runs, len(KILLS[launcher]), rng), KILLS[launcher], strict=True):
        assert eventually(partial(_has, tmp_path, some), within_s=1800), f"no {some} records"
        if who == "worker":
            assert eventually(partial(_kill_one, process, rng))
            continue
        process.kill()
        process.wait()
        assert eventually(partial(_is_gone, process), within_s=180), "all that it started end with it"
        now = _written(tmp_path)
        assert seen.items() <= now.items(), "what was done is neither lost nor done again"
        seen = now
        process = start_quietly(tmp_path, *words)
    assert process.wait(timeout=1800) == 0
    assert "Traceback" not in (tmp_path / "said.txt").read_text()
    assert seen.items() <= _written(tmp_path).items()
    _is_what_it_always_is(tmp_path, expected(runs))
    _leaves_nothing_behind(tmp_path)


def _marks(runs: int, kills: int, rng: random.Random) -> list[int]:
    """After how many records each is."""
    return sorted(rng.sample(range(1, runs * 9 // 10), kills))


def _loose(directory: Path) -> list[Path]:
    return list((directory / "results" / "records").glob("[!.]*.json"))


def _has(directory: Path, some: int) -> bool:
    return len(_loose(directory)) >= some


def _written(directory: Path) -> dict[str, int]:
    """When each record was; each must be whole."""
    return {path.name: path.stat().st_mtime_ns for path in _loose(directory) if json.loads(path.read_bytes())}


def _is_gone(process: subprocess.Popen[str]) -> bool:
    """Whether nothing lives of what it started."""
    return not of_session(process)


def _kill_one(process: subprocess.Popen[str], rng: random.Random) -> bool:
    """Kill a worker, if there is one."""
    workers = workers_of(process)
    if workers:
        os.kill(rng.choice(workers), signal.SIGKILL)
        time.sleep(0.2)
    return bool(workers)


def _is_what_it_always_is(directory: Path, whole: Whole) -> None:
    """Every record, every file of a run, and the table at the end, to the byte."""
    assert {path.name for path in _loose(directory)} == whole.records
    kept, all_of_it = Store(directory / "results").read(), Store(whole.directory / "results").read()
    assert [json.dumps(asdict(record)) for record in kept] == [json.dumps(asdict(record)) for record in all_of_it]
    assert sorted(record.config["seed"] for record in kept) == list(range(len(all_of_it)))
    contents = {_seed(path): _files(path) for path in runs_below(whole.directory / "multirun")}
    ends = list[int]()
    for path in runs_below(directory / "multirun"):
        own, seed = _files(path), _seed(path)
        assert own.items() <= contents[seed].items(), path
        if len(own) > 1:  # of a run that a later sweep found in the store there is the summary alone
            ends.append(seed)
    assert set(ends) == set(contents)
    assert (directory / "table.txt").read_text().endswith(whole.finished.stdout)  # Ray says things of its own before


def _seed(run_directory: Path) -> int:
    (seed,) = re.findall(r"seed=(\d+)", (run_directory / ".hydra" / "overrides.yaml").read_text())
    return int(seed)


def _files(run_directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run_directory.iterdir() if path.is_file()}


def _temporary(directory: Path) -> Iterator[Path]:
    """What a writer that is killed may leave until an hour later."""
    yield from directory.rglob(".*.tmp")


def _leaves_nothing_behind(directory: Path) -> None:
    """Where the sweep goes on later, nothing unfinished is left, and its store holds records alone."""
    for path in _temporary(directory):
        os.utime(path, (time.time() - _LATER_S,) * 2)
    assert run(directory, "-m", *SETTINGS, "seed=9999").returncode == 0
    assert [*_temporary(directory)] == []
    left = {path.name for path in (directory / "results").rglob("*") if path.is_file() and path.suffix != ".parquet"}
    assert [name for name in left if not re.fullmatch(r"[0-9a-f]{32}\.json", name)] == []
