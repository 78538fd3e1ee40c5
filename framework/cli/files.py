"""Files that appear complete or not at all.

It also reads a file once in a process, as a sweep's worker needs the same trace and profile in every job, and keeps
what takes long to make of one for other processes.
"""

from __future__ import annotations

import functools
import os
import pickle
import re
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from framework.compiler.sources import import_closure, source_hash
from framework.compiler.user_cache import keep_youngest, kept_file, read_back, write_back
from framework.errors import InputError

_TEMPORARY = re.compile(
    r"\..+\.([0-9a-f]{12}|\d+)\.tmp"
)  # temporary names of `write_whole`, with the number of the process
_ABANDONED_S = 3600.0
_ROOT = Path(__file__).resolve().parents[2]
_MOST_FILES, _MOST_BYTES = 32, 1 << 23  # of one kind of kept results, and of one result


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` under a temporary name and rename it. Raises InputError, and leaves nothing behind, if that
    fails.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")  # many machines may write to one directory
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException as error:
        _remove(temporary)
        if not isinstance(error, OSError):
            raise
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be written ({reason}); choose another directory") from error


@functools.cache
def remove_abandoned(directory: Path) -> None:
    """Remove temporary files of writers that were killed an hour ago or earlier; once in a process."""
    with suppress(OSError):
        for file in directory.glob(".*.tmp"):
            with suppress(OSError):
                if _TEMPORARY.fullmatch(file.name) and time.time() - file.lstat().st_mtime > _ABANDONED_S:
                    file.unlink(missing_ok=True)


def require_writable(directory: Path) -> None:
    """Make a directory, if needed, before the work whose results go there. Raises InputError if that fails."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{directory}: cannot be made ({reason}); choose another directory") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(f"{directory}: cannot be written to; choose another directory")


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # its directory cannot be written, or is none: nothing was made
        return


def user_cache() -> Path:
    """The project's folder in the user's cache: $XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "servelab"


# --- files that are read once -----------------------------------------------------------------------------------------


P = ParamSpec("P")
T = TypeVar("T")


def read_once(keep: int) -> Callable[[Callable[Concatenate[Path, P], T]], Callable[Concatenate[Path, P], T]]:
    """Decorate a function of a path (and of other hashable values): it is called again only for what has changed.

    The `keep` results that were used last are kept. All callers share them, so no caller may alter them. A file
    counts as unchanged while its inode, size and time of change are; a folder, while its direct entries are.
    """

    def decorate(read: Callable[Concatenate[Path, P], T]) -> Callable[Concatenate[Path, P], T]:
        def at(state: Hashable, path: Path, *args: P.args, **kwargs: P.kwargs) -> T:
            return read(path, *args, **kwargs)

        known: Callable[..., T] = functools.lru_cache(maxsize=keep)(at)

        @functools.wraps(read)
        def reader(path: Path, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return known(_state(path), path, *args, **kwargs)

        return reader

    return decorate


def _state(path: Path) -> Hashable:
    """What changes when a file is written or replaced; None if there is no file."""
    try:
        status = path.stat()
        within = sorted((entry.name, _stamp(entry.stat())) for entry in os.scandir(path)) if path.is_dir() else ()
    except (OSError, ValueError):  # a name that no file can have
        return None
    return _stamp(status), tuple(within)


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def kept_or_made(kind: type[T], depends_on: tuple[object, ...], code: Path, make: Callable[[], T]) -> T:
    """The result of `make`, which `depends_on` and the code in a file, with all that it imports, determine; the user's
    cache keeps it from one process to the next.

    A kept result that is damaged, or that is no `kind`, is made and written again. Large ones are not kept.
    """
    made_by = source_hash(import_closure(code, _ROOT), _ROOT)
    file = kept_file(f"{kind.__name__.lower()}s", repr((depends_on, made_by)), _MOST_FILES)
    kept = _read_back(file)
    if isinstance(kept, kind):
        return kept
    made = make()
    pickled = pickle.dumps(made)
    if file is not None and len(pickled) <= _MOST_BYTES:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        write_back(file, pickled)
        keep_youngest(file.parent, _MOST_FILES)  # a process may make thousands
    return made


def _read_back(file: Path | None) -> object:
    content = read_back(file)
    try:
        return None if content is None else pickle.loads(content)
    except Exception:  # pickle may raise any exception, depending on the bytes
        return None
