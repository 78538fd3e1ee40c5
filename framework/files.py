"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

from framework.errors import InputError


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` under a temporary name and rename it; InputError, and nothing left behind, if that fails."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")  # many machines may write to one directory
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        _remove(temporary)
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be written ({reason}); choose another directory") from error


def require_writable(directory: Path) -> None:
    """Make a directory, if need be, before the work whose results go there; InputError where that cannot be."""
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
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "servelab"
