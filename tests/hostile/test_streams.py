"""Full disks, closed outputs, and paths that are no files: one line, exit code 2, nothing half-written."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from framework.cli.explain import explain
from framework.cli.files import remove_abandoned, write_whole
from framework.errors import InputError
from framework.run.callback import clear_after_killed
from tests.conftest import ROOT
from traces.load import load

RUN = (sys.executable, str(ROOT / "run.py"), "policy=chunked", "trace=synthetic", "trace.limit=20")


def command(
    directory: Path, *words: str, before: Callable[[], None] | None = None, **streams: int
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *words],
        cwd=directory,
        preexec_fn=before,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        env=os.environ | {"HYDRA_FULL_ERROR": "0"},
        **({"stdout": subprocess.PIPE} | streams),  # type: ignore[call-overload]
    )


def refused(finished: subprocess.CompletedProcess[str], *words: str) -> None:
    assert finished.returncode == 2, finished.stderr
    lines = [line for line in finished.stderr.splitlines() if not line.startswith("results in")]
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("error: ")
    assert all(word in lines[0] for word in words), lines[0]


def left_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_output_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        finished = command(tmp_path, stdout=full.fileno())
    refused(finished, "No space left")


def test_a_closed_output_is_one_line(tmp_path: Path) -> None:
    finished = command(tmp_path, before=lambda: os.close(1), stdout=subprocess.DEVNULL)
    refused(finished, "stdout is closed")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("kilobytes", [0, pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_disk_that_takes_no_more_is_one_line(kilobytes: int, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, kilobytes << 10))

    finished = command(tmp_path, "hydra.run.dir=here", before=limit)
    refused(finished, "cannot be written")
    assert [name for name in left_in(tmp_path) if not name.startswith("here/.hydra/")] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a file system of so many kilobytes."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mounted(kilobytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        return disk

    yield mounted
    subprocess.run(["umount", str(disk)], capture_output=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_small_disk_is_one_line(tmp_path: Path, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(64)
    finished = command(tmp_path, f"hydra.run.dir={disk}/run", "trace.limit=5000")
    refused(finished, "No space left")
    assert not [name for name in left_in(disk) if ".hydra" not in name]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("kilobytes", [16, 32, 64, 100, 200])
def test_what_a_small_disk_keeps_is_whole(kilobytes: int, tmp_path: Path, small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(kilobytes)
    for words in (
        (f"hydra.run.dir={disk}/run", "output.steps=true", "output.timeline=true", "report=true"),
        ("-m", "seed=range(8)", f"hydra.sweep.dir={disk}/sweep", f"store={disk}/store"),
        ("-m", "seed=range(8)", f"hydra.sweep.dir={disk}/sweep", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
    ):
        finished = command(tmp_path, *words, "trace.limit=300")
        lines = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
        assert finished.returncode == 2, finished.stderr
        assert lines
        assert all("cannot be written (No space left on device)" in line for line in lines), lines
        assert not [word for word in ("Traceback", "Warning", "warnings.warn") if word in finished.stderr]
        for name in left_in(disk):
            assert not name.endswith(".tmp") or "joblib" in words[-2]  # whose workers are killed while they write
            if name.endswith(".parquet"):
                pl.read_parquet(disk / name)
            elif name.endswith(".json"):
                json.loads((disk / name).read_bytes())
        for folder in disk.iterdir():
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    "path", ["", " ", ".", "/dev/zero", "/dev/null", "/", "fifo", "a\0b", "missing", "/proc/self/mem"]
)
@pytest.mark.parametrize("format_name", [None, "mooncake", "azure", "twin", "parquet", "servegen"])
def test_what_is_no_file_is_one_line(path: str, format_name: str | None, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    began_s = time.monotonic()
    with pytest.raises(InputError) as error:
        load(path=str(tmp_path / "fifo") if path == "fifo" else path, format=format_name)
    line = explain(error.value)
    assert line is not None
    assert line.isprintable()
    assert time.monotonic() - began_s < 5


def test_a_full_disk_is_explained_wherever_it_is_met() -> None:
    saving = RuntimeError("saving")
    saving.__cause__ = OSError(28, "No space left on device", "/a/b")
    assert explain(saving) == "/a/b: cannot be written (No space left on device); make room, or choose another"
    assert explain(OSError(2, "No such file", "/a/b")) is None


def test_what_killed_writers_left_is_removed_an_hour_later(tmp_path: Path) -> None:
    names = {
        ".records.json.0123456789ab.tmp": True,
        ".summary.json.4711.tmp": True,
        ".own.tmp": False,
        "summary.json": False,
        ".notes.txt": False,
        ".x.0123456789ab.tmp.bak": False,
    }
    for name in names:
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (time.time() - 3700,) * 2)
    young = tmp_path / ".young.json.0123456789ab.tmp"
    young.write_text("x")
    remove_abandoned.cache_clear()
    write_whole(tmp_path / "new.json", b"{}")
    assert {path.name for path in tmp_path.iterdir()} == {
        *(name for name, is_ours in names.items() if not is_ours),
        young.name,
        "new.json",
    }


@pytest.mark.parametrize(("sweep", "other"), [("2026-11-24/b", "2026-11-23/a"), ("mine/b", "mine/a")])
def test_a_sweep_clears_what_killed_runs_of_others_left(sweep: str, other: str, tmp_path: Path) -> None:
    run_directory, elsewhere = tmp_path / other / "0", tmp_path / other / "files"
    for directory in (run_directory / ".hydra", elsewhere):
        directory.mkdir(parents=True)
    left = {name: name / ".requests.parquet.4711.tmp" for name in (run_directory, elsewhere)}
    for path in left.values():
        path.write_text("x")
        os.utime(path, (time.time() - 3700,) * 2)
    clear_after_killed(tmp_path / sweep)
    assert {name for name, path in left.items() if path.exists()} == {elsewhere}, (
        "what is no run of ours is not touched"
    )
    clear_after_killed(tmp_path / "nowhere" / "2026-11-24" / "c")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()])
def test_a_writer_that_fails_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises((InputError, KeyboardInterrupt, MemoryError)):
        write_whole(tmp_path / "x", b"content")
    assert left_in(tmp_path) == []
