"""What runs now: a small file for each sweep and study in the store, from its beginning to its end.

A file appears after a few seconds, so that short sweeps leave nothing, and is renewed about once a second. A sweep does
not end because its progress cannot be written.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from uuid import uuid4

from framework.cli.files import require_writable, write_whole
from framework.cli.safe_text import one_line
from framework.cli.terminal import Progress, Standing, progress_line
from framework.errors import InputError

_FOLDER = "running"
_FIRST_S, _EVERY_S = 2.0, 0.9
_WHAT = 120  # characters
SILENT_S = 60.0  # seconds without a word after which a process on another machine counts as gone


@dataclass(frozen=True)
class Running:
    """A sweep or study that runs: `what` it is, `done` of `total` (0: unknown) of its `unit`, of which `failed`.

    `best`: the best result so far in words. Times are Unix seconds; `time_left_s` is -1 while it is unknown.
    """

    what: str
    unit: str
    done: int = 0
    total: int = 0
    failed: int = 0
    best: str = ""
    began_s: float = 0.0
    told_s: float = 0.0
    time_left_s: float = -1.0
    host: str = ""
    pid: int = 0


class Told:
    """The file of one sweep or study."""

    def __init__(self, store: Path, what: str, unit: str) -> None:
        now_s = time.time()
        self._state = Running(what, unit, began_s=now_s, told_s=now_s, host=socket.gethostname(), pid=os.getpid())
        self._file = store / _FOLDER / f"{uuid4().hex[:12]}.json"
        self._next_s = now_s + _FIRST_S

    def tell(self, standing: Standing) -> None:
        """Renew the file, at most once a second."""
        now_s = time.time()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        own = {name: getattr(standing, name) for name in ("done", "total", "failed", "best")}
        self._state = replace(self._state, **own, told_s=now_s, time_left_s=standing.left_s)
        with suppress(InputError):
            write_whole(self._file, json.dumps(asdict(self._state)).encode())

    def end(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
            self._file.parent.rmdir()


@contextmanager
def told(store: Path, what: str, label: str, unit: str) -> Iterator[Progress]:
    """The progress of one sweep or study, in the line of its command and in a file, which is removed in any case.

    Raises InputError, before anything runs, for a store that cannot be written.
    """
    is_new = not store.exists()
    _require_writable(store)
    for path, one in _files(store):
        if one.host == socket.gethostname() and not _exists(one.pid):
            path.unlink(missing_ok=True)  # its process was killed
    line = one_line(what)
    file = Told(store, line if len(line) <= _WHAT else f"{line[:_WHAT]} …", unit)
    try:
        with progress_line(label, unit, file.tell) as progress:
            yield progress
    finally:
        file.end()
        if is_new:
            with suppress(OSError):  # it has results
                store.rmdir()


def _require_writable(store: Path) -> None:
    if store.exists() and not store.is_dir():
        raise InputError(f"store={store}: is no directory; name a directory for the results of sweeps")
    try:
        require_writable(store)
    except InputError as error:
        raise InputError(f"store={error}") from error


def running_in(store: Path) -> list[Running]:
    """What runs now with this store, the oldest first; processes that have died are left out."""
    return sorted((one for _, one in _files(store) if _is_there(one)), key=lambda one: one.began_s)


def _files(store: Path) -> list[tuple[Path, Running]]:
    found = []
    for path in (store / _FOLDER).glob("[!.]*.json"):
        with suppress(OSError, ValueError, TypeError):
            known = json.loads(path.read_bytes())
            if isinstance(known, dict) and set(known) == {field.name for field in fields(Running)}:
                found.append((path, Running(**known)))
    return found


def _is_there(one: Running) -> bool:
    if one.host == socket.gethostname():
        return _exists(one.pid)
    return time.time() - one.told_s < SILENT_S


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True
