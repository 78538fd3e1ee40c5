"""run.py from the outside: what it prints, what it leaves behind, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.conftest import ROOT
from tests.helpers import warm

Finished = subprocess.CompletedProcess[str]
SMALL = ("trace=synthetic", "trace.limit=200")
FAULTY_POLICY = """
from framework.policy import Aggregated


class Faulty(Aggregated):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def name(self):  # no method that the user's mistakes are told of
        return {}["nothing"] if self.kind == "bug" else "Faulty"

    def route_prefill(self, request, cluster):
        if self.kind == "raises":
            return {}["nothing"]
        if self.kind == "interrupted":
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                raise SystemError("a clean-up fails")
        return 99
"""


def command(*overrides: str, python: str = sys.executable) -> list[str]:
    return [python, str(ROOT / "run.py"), *overrides]


@pytest.fixture(params=warm.STARTS)
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Finished]:
    """Run in an empty directory; without recorded traces unless `env` brings them; `cold` as a process of its own."""

    def run_there(*overrides: str, cold: bool = not request.param, **env: str) -> Finished:
        environment = {key: value for key, value in os.environ.items() if key != "TRACES_DIR"} | env
        words = command(*overrides) if cold else command(*overrides, python=str(warm.path() / "python"))
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    return run_there


def runs_below(directory: Path) -> list[Path]:
    return sorted(path.parent for path in directory.rglob("summary.json"))


def refused(finished: Finished, *words: str) -> bool:
    """One line on stderr that says all of `words`, exit code 2, no result."""
    lines = finished.stderr.splitlines()
    assert finished.returncode == 2, finished.stderr
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("error: ")
    assert not finished.stdout
    missing = [word for word in words if word not in lines[0]]
    assert not missing, f"{missing} not in: {lines[0]}"
    return True


def trace_file(directory: Path, *rows: dict[str, object]) -> Path:
    path = directory / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(**changes: object) -> dict[str, object]:
    return {"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 1]} | changes


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_leaves_its_results_and_its_configuration(run: Callable[..., Finished], tmp_path: Path) -> None:
    finished = run(*SMALL, "policy=chunked", "seed=3")
    assert finished.returncode == 0, finished.stderr
    (directory,) = runs_below(tmp_path)
    summary = json.loads((directory / "summary.json").read_text())
    requests = pl.read_parquet(directory / "requests.parquet")
    assert summary["offered"] == len(requests) == 200
    assert summary["completed"] + summary["rejected"] + summary["failed"] == 200
    assert (summary["trace_source"], summary["seed"]) == ("synthetic", 3)
    assert f"{requests['good'].sum() / 200:.6f}" == f"{summary['slo_attainment']:.6f}"
    assert "chunked" in finished.stdout.lower()
    assert "goodput" in finished.stdout
    assert "seed: 3" in (directory / ".hydra" / "config.yaml").read_text()


@pytest.mark.parametrize("other", [{}, pytest.param({"cold": True}, marks=pytest.mark.slow)])
def test_the_same_configuration_gives_the_same_bytes_in_another_directory(
    run: Callable[..., Finished], tmp_path: Path, other: dict[str, Any]
) -> None:
    for start in ({}, other):
        assert run(*SMALL, "policy=ares", **start).returncode == 0
    first, second = runs_below(tmp_path)
    for name in ("summary.json", "requests.parquet"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_without_the_recording_the_twin_is_run_and_said_so(run: Callable[..., Finished], tmp_path: Path) -> None:
    finished = run("trace.limit=200", XDG_CACHE_HOME=str(tmp_path / "cache"), NUMBA_CACHE_DIR=numba_cache())
    assert finished.returncode == 0, finished.stderr
    (directory,) = runs_below(tmp_path)
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["trace"], summary["trace_source"], summary["offered"]) == ("mooncake", "twin", 200)
    assert "fitted trace" in finished.stderr
    assert "fitted trace" in finished.stdout


def numba_cache() -> str:
    """Where this process keeps compiled code, so that a run with another cache folder need not compile anew."""
    return os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")


def test_a_recording_is_told_from_its_twin(
    run: Callable[..., Finished], real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    recording = real_trace("conversation_trace.jsonl")
    overrides = ("policy=distserve", "trace=mooncake", "trace.limit=300", f"hydra.run.dir={tmp_path / 'out'}")
    finished = run(*overrides, TRACES_DIR=str(recording.parent))
    assert finished.returncode == 0, finished.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["trace_source"], summary["offered"]) == ("real", 300)
    assert "fitted trace" not in finished.stdout + finished.stderr


def test_a_file_of_ones_own(run: Callable[..., Finished], tmp_path: Path) -> None:
    path = trace_file(tmp_path, *(row(timestamp=100 * i) for i in range(20)))
    overrides = (f"trace.path={path}", "trace.format=mooncake", f"hydra.run.dir={tmp_path / 'out'}")
    finished = run("policy=chunked", "cluster=mixed", "cluster.instances=8", *overrides)
    assert finished.returncode == 0, finished.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["offered"], summary["completed"], summary["gpus"]) == (20, 20, 8)
    finished = run("policy=distserve", "cluster=disaggregated", "cluster.prefill=4", "cluster.decode=4", *overrides)
    assert finished.returncode == 0, finished.stderr


def test_a_request_too_large_is_rejected_and_the_run_goes_on(run: Callable[..., Finished], tmp_path: Path) -> None:
    path = trace_file(tmp_path, row(), row(input_length=5000, hash_ids=list(range(10))), row(timestamp=5))
    finished = run(
        *("policy=chunked", f"trace.path={path}", "trace.format=mooncake", "engine.kv_tokens=4096"),
        f"hydra.run.dir={tmp_path / 'out'}",
    )
    assert finished.returncode == 0, finished.stderr
    requests = pl.read_parquet(tmp_path / "out" / "requests.parquet")
    assert requests["state"].to_list() == ["finished", "rejected", "finished"]
    assert requests["reason"].to_list() == [None, "kv", None]


def test_a_sweep_ends_in_one_table_and_a_refused_run_does_not_end_it(
    run: Callable[..., Finished], tmp_path: Path
) -> None:
    finished = run("-m", *SMALL, "policy=chunked,distserve,ares", "cluster=mixed", "trace.limit=50")
    assert finished.returncode == 2
    errors = [line for line in finished.stderr.splitlines() if line.startswith("error:")]
    assert [re.findall(r"policy=(\w+)", line) for line in errors] == [["distserve"], ["ares"]]
    assert [path.name for path in runs_below(tmp_path)] == ["0"]
    assert finished.stdout.count("goodput") == 1
    assert "Besides the policy" not in finished.stdout
    finished = run("-m", *SMALL, "policy=chunked,sglang", "seed=0,1", "trace.limit=50")
    assert finished.returncode == 0, finished.stderr
    assert len(runs_below(tmp_path)) == 5
    table = finished.stdout
    assert table.count("goodput") == 1
    assert len(re.findall(r"policy=\w+", table)) == 2
    assert "mean over 2 seeds" in table
    assert table.count("Besides the policy, runs differ in server (vllm_v1; sglang: sglang)") == 1


def test_the_configuration_can_be_seen_without_a_run(run: Callable[..., Finished], tmp_path: Path) -> None:
    finished = run("--cfg", "job", "policy=distserve", "cluster.prefill=3")
    assert finished.returncode == 0
    assert "_target_: policies.distserve.DistServe" in finished.stdout
    assert "prefill: 3" in finished.stdout
    assert not list(tmp_path.iterdir())


# --- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES = {
    "unknown policy": (["policy=nonesuch"], ["nonesuch", "ares", "chunked", "continuous", "distserve"]),
    "several values without -m": (["policy=ares,chunked"], ["policy=ares,chunked", "-m"]),
    "zero instances": (["policy=chunked", "cluster.instances=0"], ["cluster.instances", "at least 1", "0"]),
    "cluster that a policy cannot use": (["policy=distserve", "cluster=mixed"], ["cluster", "disaggregated"]),
    "missing file": (["trace.path=nowhere.jsonl"], ["nowhere.jsonl"]),
    "output below a file": (["hydra.run.dir=/dev/null/out"], ["/dev/null/out", "hydra.run.dir"]),
    "sweep below a file": (["-m", "seed=0,1", "hydra.sweep.dir=/dev/null/out"], ["/dev/null/out"]),
    "sweep with an unknown policy": (["-m", "policy=ares,nonesuch"], ["nonesuch", "chunked"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(run: Callable[..., Finished], tmp_path: Path, mistake: str) -> None:
    overrides, words = MISTAKES[mistake]
    assert refused(run("trace.limit=200", *overrides), *words)
    assert not list(tmp_path.iterdir())


def test_a_bad_row_is_named(run: Callable[..., Finished], tmp_path: Path) -> None:
    path = trace_file(tmp_path, row(), row(input_length=-5), row())
    assert refused(run(f"trace.path={path}", "trace.format=mooncake"), "trace.jsonl", "line 2", "input_length", "-5")
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.jsonl"]


@pytest.fixture
def faulty(tmp_path: Path) -> tuple[str, ...]:
    """A policy outside the project, with a configuration folder of its own."""
    package = tmp_path / "outside"
    (package / "conf" / "policy").mkdir(parents=True)
    (package / "faulty_policy.py").write_text(FAULTY_POLICY)
    (package / "conf" / "policy" / "faulty.yaml").write_text("_target_: faulty_policy.Faulty\nkind: value\n")
    return ("--config-dir", str(package / "conf"), *SMALL, "policy=faulty", "cluster=mixed")


def test_a_policy_that_names_no_instance_is_named(
    run: Callable[..., Finished], tmp_path: Path, faulty: tuple[str, ...]
) -> None:
    finished = run(*faulty, PYTHONPATH=str(tmp_path / "outside"))
    assert refused(finished, "Faulty", "route_prefill", "99")
    assert [entry.name for entry in tmp_path.iterdir()] == ["outside"]


def test_a_bug_keeps_its_traceback(run: Callable[..., Finished], tmp_path: Path, faulty: tuple[str, ...]) -> None:
    finished = run(*faulty, "policy.kind=bug", PYTHONPATH=str(tmp_path / "outside"))
    assert finished.returncode == 1
    assert "KeyError: 'nothing'" in finished.stderr
    assert "faulty_policy.py" in finished.stderr
    assert list((tmp_path / "outputs").rglob("config.yaml")), "the configuration that met the bug is kept"


def test_what_a_policy_raises_is_one_line(
    run: Callable[..., Finished], tmp_path: Path, faulty: tuple[str, ...]
) -> None:
    for implementation in ("compiled", "reference"):
        words = ("policy.kind=raises", f"engine.implementation={implementation}")
        finished = run(*faulty, *words, PYTHONPATH=str(tmp_path / "outside"))
        assert finished.returncode == 2
        (error,) = finished.stderr.splitlines()
        found = re.fullmatch(
            r"error: policy Faulty: route_prefill for request 0 at [\d.e-]+ s, faulty_policy\.py:\d+: "
            r"KeyError: 'nothing'; see (.*)",
            error,
        )
        assert found is not None, error
        assert "faulty_policy.py" in Path(found[1]).read_text()


def test_an_existing_output_directory_survives_a_mistake(run: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    assert refused(run(*SMALL, "seed=-1", "hydra.run.dir=mine"), "seed")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("trace=synthetic", "trace.requests=3000000", "policy=ares"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline_s = time.monotonic() + 60
    while not (tmp_path / "outputs").exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == ("", "")
    assert not runs_below(tmp_path)


def test_an_error_that_an_interrupt_caused_ends_quietly(
    run: Callable[..., Finished], tmp_path: Path, faulty: tuple[str, ...]
) -> None:
    finished = run(*faulty, "policy.kind=interrupted", PYTHONPATH=str(tmp_path / "outside"))
    assert (finished.returncode, finished.stdout, finished.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        ("timing=roofline", "only timing=measured has a server"),
        ("timing.calibrated=true", "step times are fitted to whole servers"),
        ("timing.calibrated=false", ""),
    ],
)
def test_times_of_the_server_that_count_for_nothing_are_told(
    run: Callable[..., Finished], timing: str, said: str
) -> None:
    words = ("policy=chunked", "trace=synthetic", "trace.requests=20", "cluster.instances=1", timing)
    told = run(*words, "server.host_s=0.05").stderr.partition("with others")[0]
    assert ("server.host_s" in told) == bool(said)
    assert said in told
