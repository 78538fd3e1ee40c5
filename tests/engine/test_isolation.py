"""Simulations that run side by side, in threads, in processes and one after another, give the same bytes as alone."""

from __future__ import annotations

import gc
import hashlib
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from hydra import compose as compose_config
from hydra import initialize_config_dir

from framework.metrics.summary import evaluate
from framework.objective.experiment import Experiment
from framework.run.compose import compose
from framework.run.output import write
from tests.conftest import ROOT

# Plain-Python hooks (on_tick of ares, prioritize), compiled ones, preemption, a prefix cache, and random predictions.
RUNS = (
    ("policy=ares", "engine.kv_tokens=12000", "seed=3"),
    ("policy=chunked", "policy.order=shortest_prompt_aged", "cluster.instances=2", "seed=4"),
    ("policy=distserve", "engine.prefix_cache=true", "cluster.prefill=1", "cluster.decode=1"),
    ("policy=continuous", "predictor=bucket", "policy.order=shortest_predicted", "engine.kv_tokens=9000"),
)
CLEAN = get_context("forkserver")  # whose processes begin with what is imported, and have run nothing
CLEAN.set_forkserver_preload(["tests.helpers.ready_engine", "tests.engine.test_isolation"])
LOAD = ("trace=synthetic", "trace.limit=200", "trace.rate=20")


def experiment(overrides: Sequence[str]) -> Experiment:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(compose_config("config", [*LOAD, *overrides]))


def digest(one: Experiment, directory: Path) -> str:
    """Hash of every file that a run can leave."""
    result = one.run()
    files = write(directory, result, evaluate(result, one.slo), steps=True, timeline=True)
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()


def run(overrides: Sequence[str], directory: Path) -> str:
    return digest(experiment(overrides), directory)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    digests = []
    for number, overrides in enumerate(RUNS):
        with ProcessPoolExecutor(1, mp_context=CLEAN) as pool:
            digests.append(pool.submit(run, overrides, tmp_path_factory.mktemp(f"alone{number}")).result())
    assert len(set(digests)) == len(RUNS)
    return digests


@pytest.mark.parametrize("overrides", RUNS, ids=lambda overrides: overrides[0])
def test_nothing_of_a_run_waits_for_the_collector(overrides: Sequence[str]) -> None:
    """Else a process that makes many runs holds the memory of them all."""
    one = experiment(overrides)
    gc.collect()
    gc.disable()
    try:
        result = one.run()
        policy, left = weakref.ref(one.policy), weakref.ref(result)
        del one, result
        assert left() is None
        assert policy() is None
    finally:
        gc.enable()


def test_one_after_another(alone: list[str], tmp_path: Path) -> None:
    order = [0, 2, 0, 3, 1, 2, 1]
    assert [run(RUNS[i], tmp_path / str(at)) for at, i in enumerate(order)] == [alone[i] for i in order]


def test_in_threads(alone: list[str], tmp_path: Path) -> None:
    order = [*range(len(RUNS))] * 3
    made = [experiment(RUNS[i]) for i in order]  # Hydra's own composition is not for threads
    start = threading.Barrier(len(order))

    def together(at: int) -> str:
        start.wait()
        return digest(made[at], tmp_path / str(at))

    with ThreadPoolExecutor(len(order)) as pool:
        assert list(pool.map(together, range(len(order)))) == [alone[i] for i in order]


@pytest.mark.slow  # as in threads, and one after another
def test_in_processes(alone: list[str], tmp_path: Path) -> None:
    order = [0, 1, 2, 3, 1, 0]
    with ProcessPoolExecutor(2, mp_context=CLEAN) as pool:
        digests = pool.map(run, [RUNS[i] for i in order], [tmp_path / str(at) for at in range(len(order))])
        assert list(digests) == [alone[i] for i in order]


def test_the_same_experiment_again_is_another_run(tmp_path: Path) -> None:
    one = experiment(RUNS[0])
    again, other = one.on(one.workload), one.on(one.workload)
    assert digest(again, tmp_path / "again") == digest(other, tmp_path / "other") == digest(one, tmp_path / "one")
