"""Reading a file once a process: a sweep's worker asks for the same trace and profile in every job."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def read_once(keep: int) -> Callable[[Callable[Concatenate[Path, P], T]], Callable[Concatenate[Path, P], T]]:
    """Decorate a function of a path (and of other values, hashable): it is called again only for what has changed.

    The `keep` results that were asked for last are kept. All callers share them, so they must not be altered. A file
    is the same while its inode, size and time of change are; a folder, while all that is in it is.
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
    """What changes when a file is written to or replaced; None where there is none."""
    try:
        status = path.stat()
        within = tuple((entry.name, _state(entry)) for entry in sorted(path.iterdir())) if path.is_dir() else ()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, within
