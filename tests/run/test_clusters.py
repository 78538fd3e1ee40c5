"""Sweeps on a Ray cluster of two nodes and through submitit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import outside_policy, run, runs_below

pytestmark = pytest.mark.slow
JOBS = ("-m", "trace=synthetic", "trace.limit=300", "cluster=mixed", "cluster.instances=2")
SWEEP = (*JOBS, "policy=chunked,continuous", "seed=1,2", "trace.rate_scale=1,2")


def summaries(sweep: Path) -> dict[str, bytes]:
    return {path.name: (path / "summary.json").read_bytes() for path in runs_below(sweep)}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the basic launcher leaves of SWEEP."""
    directory = tmp_path_factory.mktemp("basic")
    assert run(directory, *SWEEP).returncode == 0
    return summaries(directory)


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


@pytest.fixture
def submitit() -> None:
    pytest.importorskip("submitit", reason="submitit is not installed")


def test_a_ray_cluster_gives_what_the_basic_launcher_gives(
    tmp_path: Path, ray_address: str, expected: dict[str, bytes]
) -> None:
    finished = run(tmp_path, *SWEEP, "hydra/launcher=ray", RAY_ADDRESS=ray_address)
    assert finished.returncode == 0, finished.stderr
    assert summaries(tmp_path) == expected
    assert len(list((tmp_path / "results" / "records").iterdir())) == len(expected)
    assert finished.stdout.count("goodput") == 1


def test_both_nodes_of_a_ray_cluster_work(tmp_path: Path, ray_address: str) -> None:
    overrides = (*JOBS, "policy=faulty", "policy.kind=where", "seed=range(12)", "hydra/launcher=ray")
    finished = run(
        tmp_path,
        *(*outside_policy(tmp_path), *overrides),
        RAY_ADDRESS=ray_address,
        PYTHONPATH=str(tmp_path / "outside"),
    )
    assert finished.returncode == 0, finished.stderr
    assert len(list((tmp_path / "nodes").iterdir())) == 2
    assert len(runs_below(tmp_path / "multirun")) == 12


def test_ray_runs_the_jobs_of_dead_workers_again(tmp_path: Path, ray_address: str) -> None:
    overrides = (*JOBS, "policy=faulty", "policy.kind=none,once,deadly,bug", "hydra/launcher=ray")
    finished = run(
        tmp_path,
        *(*outside_policy(tmp_path), *overrides),
        RAY_ADDRESS=ray_address,
        PYTHONPATH=str(tmp_path / "outside"),
    )
    assert finished.returncode == 1
    assert (tmp_path / "died").exists()
    assert [path.name for path in runs_below(tmp_path / "multirun")] == ["0", "1"]
    assert finished.stderr.count("KeyError: 'nothing'") == 1
    errors = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, finished.stderr
    assert "policy.kind=deadly" in errors[0]


def test_without_a_cluster_ray_starts_one(tmp_path: Path, expected: dict[str, bytes]) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    finished = run(tmp_path, *SWEEP, "hydra/launcher=ray", "hydra.launcher.ray.init.address=local")
    assert finished.returncode == 0, finished.stderr
    assert summaries(tmp_path) == expected


def test_a_ray_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    finished = run(tmp_path, *SWEEP, "hydra/launcher=ray", RAY_ADDRESS="127.0.0.1:1")
    assert finished.returncode == 2, finished.stderr
    (line,) = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert "RAY_ADDRESS" in line


def test_submitit_on_this_machine(tmp_path: Path, submitit: None, expected: dict[str, bytes]) -> None:
    finished = run(tmp_path, *SWEEP, "hydra/launcher=submitit_local")
    assert finished.returncode == 0, finished.stderr
    assert summaries(tmp_path) == expected


def test_a_job_of_submitits_that_dies_is_told_and_the_others_go_on(tmp_path: Path, submitit: None) -> None:
    overrides = (*JOBS, "policy=faulty", "policy.kind=none,deadly", "hydra/launcher=submitit_local")
    finished = run(tmp_path, *(*outside_policy(tmp_path), *overrides), PYTHONPATH=str(tmp_path / "outside"))
    assert finished.returncode == 2, finished.stderr
    (line,) = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert "policy.kind=deadly" in line
    assert [path.name for path in runs_below(tmp_path / "multirun")] == ["0"]


SBATCH = """#!/bin/sh
# Stands for Slurm: runs the tasks of an array one after the other, in the background.
for file; do :; done
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$file")
script=$(cat "$file")
(
    for task in $(seq 0 "$last"); do
        SLURM_JOB_ID=7$task SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$task SLURM_ARRAY_TASK_COUNT=$((last + 1)) \\
        SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=here \\
            sh -c "$script"
    done
) >/dev/null 2>&1 &
echo "Submitted batch job 7"
"""
SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do
    case "$1" in --output | --error) shift ;; esac
    shift
done
exec "$@"
"""


def test_an_array_of_slurm_jobs(tmp_path: Path, submitit: None, expected: dict[str, bytes]) -> None:
    commands = {"sbatch": SBATCH, "srun": SRUN, "sacct": "#!/bin/sh\necho 'JobID|State|NodeList'\n"}
    (tmp_path / "bin").mkdir()
    for name, text in commands.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    finished = run(tmp_path, *SWEEP, "hydra/launcher=submitit_slurm", "hydra.launcher.partition=any", PATH=path)
    assert finished.returncode == 0, finished.stderr
    assert summaries(tmp_path) == expected
    (script,) = tmp_path.rglob("*_submission.sh")
    assert "#SBATCH --partition=any" in script.read_text()
    assert "#SBATCH --array=0-7" in script.read_text()


def test_without_slurm_it_is_one_line(tmp_path: Path, submitit: None) -> None:
    finished = run(tmp_path, *SWEEP, "hydra/launcher=submitit_slurm", PATH=os.path.dirname(sys.executable))
    assert finished.returncode == 2, finished.stderr
    (line,) = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert "sbatch" in line or "srun" in line
