"""A PostgreSQL server of a test's own, from the machine's packages (Debian's lie below /usr/lib/postgresql)."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

_USER = "postgres"  # whom the packages make: the server refuses to run as root


def programs() -> Path:
    """The folder of initdb and pg_ctl; skips the test where no server is installed."""
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if found is None and not folders:
        pytest.skip("no PostgreSQL server is installed (Debian: apt install postgresql)")
    return Path(found).parent if found is not None else folders[0]


@dataclass(frozen=True)
class Server:
    """A running server: the URL of an empty database for SQLAlchemy, and a way to restart it."""

    url: str
    restart: Callable[[], None]


@contextmanager
def postgres() -> Iterator[str]:
    """A running server; yields the URL of an empty database for SQLAlchemy. It ends with the block."""
    with server() as running:
        yield running.url


@contextmanager
def server() -> Iterator[Server]:
    """A running server, which ends with the block."""
    folder = programs()
    as_user: dict[str, Any] = {"user": _USER, "group": _USER, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="postgres") as directory:  # pytest's own cannot be entered by others
        if as_user:
            os.chmod(directory, 0o755)
            os.chown(directory, pwd.getpwnam(_USER).pw_uid, -1)
        data, port = f"{directory}/data", _free_port()

        def call(program: str, *arguments: str) -> None:
            command = [str(folder / program), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=120, **as_user)
            assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"

        call("initdb", "-D", data, "-U", "study", "-A", "trust", "--no-sync")
        settings = f"-p {port} -k {directory} -c listen_addresses=127.0.0.1 -c fsync=off"
        begin = partial(call, "pg_ctl", "-D", data, "-o", settings, "-l", f"{directory}/log", "-w")
        begin("start")
        try:
            yield Server(
                f"postgresql+psycopg://study@127.0.0.1:{port}/postgres", partial(begin, "-m", "fast", "restart")
            )
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
