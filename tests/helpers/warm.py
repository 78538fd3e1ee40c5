"""Commands as copies of a process that has imported everything: most of what a short command costs is its start.

`path()` is a folder for PATH with a `python` of that kind. It hands scripts and modules (`python run.py`, `python -m
experiments.tune`) to a server, which forks; of whatever it is asked otherwise it makes a process like any other. Both
ends of a pipe, working directory, environment, exit codes and what is done at exit are those of a process of its own.
What is not: signals to the client end the client alone, and a module that is imported already is not found missing.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from framework.compiler.decorators import prepare
from framework.engine.loop import run, run_plain
from framework.metrics.paper_scores import gaps_of
from framework.objective.goodput import bound_of
from framework.run.compose import compose
from framework.run.job import flattened
from framework.run.run_key import run_key
from tests.helpers.composing import composing, configured

ROOT = Path(__file__).resolve().parents[2]
STARTS = [pytest.param(True, id="warm"), pytest.param(False, id="cold", marks=pytest.mark.slow)]
_IMPORTED = (
    *("framework.run.job", "framework.report.capacity_table", "framework.report.run_table", "framework.run.sweep"),
    *("scipy.optimize", "scipy.special", "traces.drawn.synthetic", "traces.load", "policies.chunked"),
    *(
        "optuna",
        "experiments.tune.command",
        "experiments.table.command",
        "experiments.curve.command",
        "experiments.plot.command",
    ),
)
_CLIENT = """
import json, os, socket, sys

arguments, server = sys.argv[1:], socket.socket(socket.AF_UNIX)
if not arguments or arguments[0].startswith("-") and arguments[0] != "-m":
    os.execv({python!r}, [{python!r}, *arguments])
server.connect({address!r})
socket.send_fds(server, [b"!"], [0, 1, 2])
server.sendall(json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
code = server.recv(1)
sys.exit(code[0] if code else "the command was killed")
"""


@functools.cache
def path() -> Path:
    """Of this process, and as long as it lives."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    client, address, python = (Path(folder.name, name) for name in ("client.py", "socket", "bin/python"))
    client.write_text(_CLIENT.format(python=sys.executable, address=str(address)))
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS '{client}' \"$@\"\n")
    python.chmod(0o700)
    arguments = [sys.executable, "-m", "tests.helpers.warm", str(address)]
    server = subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.communicate)  # ends it
    return python.parent


def serve(address: str) -> None:
    """Until stdin ends, which it does with the process that asked for it."""
    for module in _IMPORTED:
        import_module(module)
    prepare(run_plain)
    prepare(run)
    for policy in ("chunked", "distserve", "ares"):  # what most of them read and load
        config = configured(f"policy={policy}", "trace=synthetic", "trace.limit=5")
        one = compose(config)
        gaps_of(one.run())
        bound_of(one)
        run_key(flattened(config), one)
    with composing():  # what sweeps read
        GlobalHydra.instance().config_loader().load_configuration("config", ["seed=0,1"], RunMode.MULTIRUN)
    assert not _has_pool(), "polars has started its threads: a copy of this process would wait for them for ever"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    signal.signal(signal.SIGCHLD, _forget)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _become_command(connection)
        connection.close()


def _has_pool() -> bool:
    """Whether polars' threads, which no fork takes along, run in this process; False where the system does not tell."""
    return any(path.read_text().startswith("polars-0") for path in Path("/proc/self/task").glob("*/comm"))


def _forget(*_: object) -> None:
    """Let commands that have ended vanish; their clients know how."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become_command(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    arguments, directory, environment = json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    code = _run(arguments)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(bytes([code]))
    os._exit(code)


def _run(arguments: list[str]) -> int:
    """The exit code."""
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    first = os.getcwd() if is_module else str(Path(arguments[0]).resolve().parent)
    sys.path[:1] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
