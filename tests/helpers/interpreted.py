"""The engine as plain Python: slow, and with functions that can be replaced and called.

Each code runs in a process of its own, a copy of one that has imported what most need: most of the time is the import.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

from tests.conftest import ROOT

_IMPORTED = ("framework.engine.loop", "framework.simulate", "tests.helpers.agreement", "tests.helpers.bounds")
_PYTHON = (sys.executable, "-W", "error::RuntimeWarning")


def interpreted(code: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, where nothing is compiled and numpy's warnings are errors."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        server.stdin.write(json.dumps([code, folder]) + "\n")
        server.stdin.flush()
        ended = int(server.stdout.readline())
        printed, said = ((Path(folder) / name).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(code, ended, printed, said)


def printed_interpreted(code: str) -> str:
    """What code that ends well prints there."""
    run = interpreted(code)
    assert run.returncode == 0, run.stderr
    return run.stdout


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Of this process, and as long as it lives."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    words = [*_PYTHON, "-m", "tests.helpers.interpreted"]
    server = subprocess.Popen(
        words, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)  # ends it
    return server


def _serve() -> None:
    """Run each code that comes in a copy of this process, and tell how it ended."""
    for name in _IMPORTED:
        import_module(name)
    for line in sys.stdin:
        code, folder = json.loads(line)
        child = os.fork()
        if not child:
            _end(code, Path(folder))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _end(code: str, folder: Path) -> None:
    """Run it, with what it prints in files of `folder`, and end this process."""
    for stream in (sys.stdout, sys.stderr):
        file = os.open(folder / stream.name.strip("<>"), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream.fileno())
    ended = 0
    try:
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        ended = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)


if __name__ == "__main__":
    _serve()
