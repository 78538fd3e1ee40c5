"""What the process of a policy that is judged may do: no other process, no network, no file but the compiler's cache.

The kernel bounds time, memory and sizes of files (`setrlimit`), and, where it allows namespaces of one's own, takes the
network away. The interpreter refuses the rest (audit hooks, PEP 578). That stops programs that search for scores; it is
no wall against somebody who attacks the interpreter itself.
"""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from framework.checks import Positive, check_fields, up_to
from framework.cli.files import user_cache

_REFUSED = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.kill")
_CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.truncate",
    "shutil.",
)
_LARGEST_FILE = 256 * 2**20
_ALONE = ("unshare", "--user", "--map-root-user", "--net")  # of util-linux: a namespace without a network


@dataclass(frozen=True)
class Limits:
    """`cpu_s`: CPU seconds of a policy over all scenarios; `memory_bytes`: what it may add to the address space."""

    cpu_s: Positive = 20.0
    memory_bytes: Annotated[int, up_to(2**50)] = 2 * 2**30

    def __post_init__(self) -> None:
        check_fields(self, "")


class RefusedError(Exception):
    """Something that a policy may not do."""


@functools.cache
def without_network() -> Sequence[str]:
    """The words before a command that take the network from it; none if the kernel refuses that."""
    try:
        tried = subprocess.run([*_ALONE, "true"], capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ()
    return _ALONE if tried.returncode == 0 else ()


def isolation() -> str:
    """How a policy is kept apart on this machine, in a line."""
    network = "in a namespace without a network" if without_network() else "with a network that audit hooks refuse"
    return f"a process of its own {network}, limits on CPU time and memory, audit hooks on files and processes"


def confine(limits: Limits) -> None:
    """Bound this process from now on. What it has loaded stays as it is."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + limits.cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    most = _address_space_bytes() + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    caches = [os.path.realpath(place) for place in (user_cache(), os.environ.get("NUMBA_CACHE_DIR")) if place]

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED):
            raise RefusedError(f"{event} is not allowed")
        if event == "open" and _writes(arguments) and not _is_below(arguments[0], caches):
            raise RefusedError(f"{arguments[0]} is not written by a policy")
        if event.startswith(_CHANGES) and not _is_below(arguments[0] if arguments else None, caches):
            raise RefusedError(f"{event} is not allowed")

    sys.addaudithook(audit)


def _address_space_bytes() -> int:
    """That of this process now; 8 GiB where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 8 * 2**30


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = (*arguments, None, None, None)[:3]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def _is_below(path: Any, folders: Sequence[str]) -> bool:
    if isinstance(path, int):
        return True  # a file that is open already, which has been asked about
    if not isinstance(path, str | bytes | Path):
        return False
    real = os.path.realpath(os.fsdecode(path))
    return any(real.startswith(folder + os.sep) for folder in folders)
