"""Commands of the project as processes, for tests that end them early or want many."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tests.conftest import ROOT

_POLICY = """
import os
import signal
from pathlib import Path

from framework.policy import Aggregated


class Faulty(Aggregated):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        if kind == "where":
            import ray

            Path("nodes").mkdir(exist_ok=True)
            Path("nodes", ray.get_runtime_context().get_node_id()).touch()

    @property
    def name(self):  # no method that the user's mistakes are told of
        return {}["nothing"] if self.kind == "bug" else "Faulty"

    def route_prefill(self, request, cluster):
        if self.kind == "raises":
            return {}["nothing"]
        if self.kind == "deadly" or self.kind == "once" and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 0
"""

Finished = subprocess.CompletedProcess[str]


def outside_policy(directory: Path) -> tuple[str, str]:
    """Write a policy that goes wrong in several ways to `directory`/outside, for PYTHONPATH; arguments that add it."""
    package = directory / "outside"
    (package / "conf" / "policy").mkdir(parents=True)
    (package / "faulty_policy.py").write_text(_POLICY)
    (package / "conf" / "policy" / "faulty.yaml").write_text("_target_: faulty_policy.Faulty\nkind: none\n")
    return "--config-dir", str(package / "conf")


def start(directory: Path, *overrides: str, python: str = sys.executable, **environment: str) -> subprocess.Popen[str]:
    """run.py in `directory`, without recorded traces, as the first of a group of processes."""
    return _started(directory, [python, str(ROOT / "run.py"), *overrides], environment, subprocess.PIPE)


def start_quietly(directory: Path, *overrides: str) -> subprocess.Popen[str]:
    """The same with its words in `table.txt` and `said.txt`: those of a thousand runs fill a pipe."""
    with (directory / "table.txt").open("w") as table, (directory / "said.txt").open("w") as said:
        return _started(directory, [sys.executable, str(ROOT / "run.py"), *overrides], {}, table, said)


def _started(
    directory: Path, words: list[str], environment: dict[str, str], stdout: int | IO[str], stderr: IO[str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        cwd=directory,
        env={key: value for key, value in os.environ.items() if key != "TRACES_DIR"} | environment,
        stdout=stdout,
        stderr=subprocess.PIPE if stderr is None else stderr,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> Finished:
    out, err = process.communicate(timeout=600)
    return Finished(process.args, process.returncode, out, err)


def run(directory: Path, *overrides: str, **environment: str) -> Finished:
    return finish(start(directory, *overrides, **environment))


def of_session(process: subprocess.Popen[str]) -> list[int]:
    """The processes that `process` started, and theirs, as far as they live; that of `process` itself left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has ended
            continue
        if int(session) == process.pid != int(entry.name) and state != "Z":
            found.append(int(entry.name))
    return found


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The workers of a sweep by joblib or Ray, apart from what they are copies of and what serves them."""
    own = of_session(process)
    copied = [pid for pid in own if "multiprocessing.forkserver" in _words(pid)]
    return [pid for pid in own if _words(pid).startswith("ray::perform") or (pid in copied and _parent(pid) in copied)]


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def eventually(holds: Callable[[], object], within_s: float = 120.0) -> bool:
    """Whether it does, sooner or later."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if holds():
            return True
        time.sleep(0.02)
    return False


def runs_below(directory: Path) -> list[Path]:
    """Directories of runs with results, in the order of their names."""
    found = (Path(folder) for folder, _, files in os.walk(directory) if "summary.json" in files)  # others may vanish
    return sorted(found)
