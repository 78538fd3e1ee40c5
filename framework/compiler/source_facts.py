"""Facts about a source file: the hash of its contents, and the names that it imports.

They hold as long as the file has the same age and size, and are kept from one process to the next.
"""

from __future__ import annotations

import ast
import atexit
import functools
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from framework.compiler.user_cache import user_directory, write_whole

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # fields of a statement that hold statements
_SETTLED_NS = 2_000_000_000  # a file that was just written may change again at the same time


class Stamp(NamedTuple):
    """The identity of a file at one time."""

    file: str
    changed_ns: int
    size: int


class Facts(NamedTuple):
    """`content` is a SHA-256 in hex digits; `names` are dotted, and may be modules."""

    content: str
    names: tuple[str, ...]


def stamp_of(file: str | Path) -> Stamp:
    """The stamp of a file. Raises OSError if there is no such file."""
    file = os.fspath(file)
    status = os.stat(file)
    return Stamp(file, status.st_mtime_ns, status.st_size)


@functools.cache
def facts(stamp: Stamp) -> Facts:
    """The facts about a file. Raises SyntaxError if it is not Python."""
    kept = _kept()
    return kept.of(stamp) or kept.add(stamp, _read(Path(stamp.file)))


def _read(file: Path) -> Facts:
    content = file.read_bytes()
    return Facts(hashlib.sha256(content).hexdigest(), _imported_names(ast.parse(content)))


def _imported_names(tree: ast.Module) -> tuple[str, ...]:
    """The names that a file imports; this project uses no relative imports."""
    names: list[str] = []
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        for block in _BLOCKS:  # an expression imports nothing, and most nodes are in expressions
            pending += getattr(node, block, ())
    return tuple(names)


class _Kept:
    """Facts by the stamps of their files, in one JSON file of the user's cache."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries = _entries_in(file)
        self._new: dict[str, Any] = {}

    def of(self, stamp: Stamp) -> Facts | None:
        try:
            changed_ns, size, content, names = self._entries[stamp.file]
            found = Facts(str(content), tuple(names))
        except (KeyError, TypeError, ValueError):
            return None
        return found if (changed_ns, size) == stamp[1:] else None

    def add(self, stamp: Stamp, found: Facts) -> Facts:
        if stamp.changed_ns < time.time_ns() - _SETTLED_NS:
            self._new[stamp.file] = [stamp.changed_ns, stamp.size, *found]
        return found

    def save(self) -> None:
        """Add new facts to those that other processes have just written; deleted files are dropped."""
        if not self._new:
            return
        merged = {**_entries_in(self._file), **self._new}
        try:
            write_whole(self._file, json.dumps({name: merged[name] for name in merged if Path(name).exists()}).encode())
        except OSError:
            return


def _entries_in(file: Path) -> dict[str, Any]:
    try:
        entries = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


@functools.cache
def _kept() -> _Kept:
    directory = user_directory("sources")
    kept = _Kept(Path("/dev/null") if directory is None else directory / "facts.json")
    if directory is not None:
        atexit.register(kept.save)
    return kept
