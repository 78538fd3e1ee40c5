"""A user who waits for the compiler sees why, at once, and at a terminal how far it is."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import event

from framework.compiler import telling
from tests.compiler.packages import REPORT, start, write_project

LINE = "compiling, once for this code: about half a minute for the engine, a second for the rules of a policy"
numba_config: Any = numba.config
pytestmark = pytest.mark.skipif(bool(numba_config.DISABLE_JIT), reason="NUMBA_DISABLE_JIT is set")


def stderr_of(process: subprocess.Popen[str]) -> list[str]:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return errors.splitlines()


@pytest.mark.slow
def test_a_log_file_says_in_one_line_that_code_is_compiled_and_nothing_once_it_is_kept(tmp_path: Path) -> None:
    package = write_project(tmp_path / "source")
    assert stderr_of(start(package, REPORT)) == [LINE]
    assert stderr_of(start(package, REPORT)) == []


@pytest.mark.slow
def test_a_process_that_waits_for_another_compiler_says_so_and_compiles_nothing(tmp_path: Path) -> None:
    package = write_project(tmp_path / "source")
    assert stderr_of(start(package, REPORT)) == [LINE]
    (symbols,) = (tmp_path / "cache").rglob("*.symbols")
    content = symbols.read_bytes()
    symbols.unlink()
    with symbols.with_suffix(".compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start(package, REPORT)
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting for another process, which compiles the same code\n"
        symbols.write_bytes(content)
    output, errors = process.communicate(timeout=120)
    assert (json.loads(output)["hits"], errors) == (1, "")


def test_a_terminal_sees_the_line_before_the_code_runs(tmp_path: Path) -> None:
    package = write_project(tmp_path / "source")
    ours, theirs = pty.openpty()
    code = f"{REPORT}\nimport time; time.sleep(60)"
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=package.parent,
        env=os.environ | cache,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    try:
        seen, until = b"", time.monotonic() + 60
        while LINE.encode() not in seen and time.monotonic() < until:
            seen += os.read(ours, 4096)
        assert LINE.encode() in seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def compile_some(functions: int, tmp_path: Path) -> None:
    """Tell listeners what numba tells them, within the progress of a file with so many inner functions."""
    source = tmp_path / "rules.py"
    source.write_text("@inner\ndef f() -> None: ...\n\n\n@either(g)\ndef f() -> None: ...\n" * (functions // 2))
    with telling.progress([source]):
        for _ in range(functions):
            event.start_event("numba:compile")
            event.end_event("numba:compile")


def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    compile_some(200, tmp_path)
    shown = sys.stderr.getvalue().split("\r")  # type: ignore[union-attr]
    assert shown[1] == "compiling: 1 of about 200 functions\x1b[K"
    assert shown[199] == "compiling: 199 of about 200 functions\x1b[K"
    assert shown[200] == "compiling: all functions are read, their machine code is made\x1b[K"
    assert shown[201:] == ["\x1b[K"]  # nothing of it is left


@pytest.mark.parametrize(("stream", "functions"), [(io.StringIO, 200), (Terminal, 20)], ids=["file", "few functions"])
def test_neither_a_file_nor_a_short_wait_sees_progress(
    stream: type[io.StringIO], functions: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stderr", stream())
    compile_some(functions, tmp_path)
    assert sys.stderr.getvalue() == ""  # type: ignore[union-attr]
