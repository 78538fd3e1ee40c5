"""The cache of compiled code and of facts about files, which this program can rebuild."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_NAME = "servelab"


def user_directory(name: str) -> Path | None:
    """The folder `name` of the user's cache, made if it is missing; None if nothing can be written.

    It is under $NUMBA_CACHE_DIR, else the user's cache ($XDG_CACHE_HOME, ~/.cache), else a private temporary directory.
    Its content is unpickled, that is executed, so no other user may own it or write there."""
    environment = os.environ
    return _writable(environment.get("NUMBA_CACHE_DIR"), environment.get("XDG_CACHE_HOME"), name)


@functools.cache
def _writable(numba_directory: str | None, user_directory: str | None, name: str) -> Path | None:
    base = os.path.expanduser(numba_directory or user_directory or "~/.cache")  # ~ stays if no home is known
    own = Path(base) / _NAME / name
    if not base.startswith("~") and _is_writable(own) and _is_own(own.parent) and _is_own(own):
        return own.absolute()
    shared = Path(tempfile.gettempdir()) / f"{_NAME}-{os.getuid()}"
    return shared / name if _is_private(shared) and _is_writable(shared / name) else None


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def _is_own(directory: Path) -> bool:
    """Whether it belongs to this user and no other user can write there; write access of a group is removed first."""
    try:
        status = directory.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o002:
            return False
        if status.st_mode & 0o020:
            directory.chmod(stat.S_IMODE(status.st_mode) & ~0o020)
    except OSError:
        return False
    return True


def _is_private(directory: Path) -> bool:
    """Whether a directory in a shared place belongs to this user alone; cached code is executed."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and status.st_mode & 0o077 == 0


def kept_file(kind: str, key: str, most: int) -> Path | None:
    """The file for what depends on `key`, in a folder of its kind that keeps at most `most`; None without a cache.

    Whoever can write there decides what is read back, so the folder is the user's own, as for compiled code.
    """
    directory = user_directory(kind)
    if directory is None:
        return None
    _prune(directory, most)
    return directory / hashlib.sha256(key.encode()).hexdigest()


def read_back(file: Path | None) -> bytes | None:
    """The content of a file; None if there is none, or if it is damaged."""
    try:
        digest, content = (b"", b"") if file is None else _split(file.read_bytes())
    except OSError:
        return None
    return content if digest == hashlib.sha256(content).digest() else None


def _split(kept: bytes) -> tuple[bytes, bytes]:
    size = hashlib.sha256().digest_size
    return kept[:size], kept[size:]


def write_back(file: Path, content: bytes) -> None:
    """Keep `content` in a file, unless it exists; a full disk is no error."""
    if not file.exists():
        with suppress(OSError):
            write_whole(file, hashlib.sha256(content).digest() + content)


@functools.cache
def _prune(directory: Path, most: int) -> None:
    """`keep_youngest`, once in a process."""
    keep_youngest(directory, most)


def keep_youngest(directory: Path, most: int) -> None:
    """Remove all files except the youngest few."""
    with suppress(OSError):
        files = sorted(directory.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[most:]:
            file.unlink(missing_ok=True)


def write_whole(file: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it: a reader sees all of it or none. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
