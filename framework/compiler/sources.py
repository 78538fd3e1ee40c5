"""Which source files a module's behaviour can depend on: itself and what it imports, as far as this project's own.

What was read of a file is kept as long as the file has the same age and size.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements have statements


class _Stamp(NamedTuple):
    """A file as it is at a time."""

    file: Path
    changed_ns: int
    size: int


def import_closure(source: Path, root: Path) -> set[Path]:
    """`source` and every file below `root`, or beside `source`, that it imports, directly or through others."""
    found: set[Path] = set()
    pending = [source]
    while pending:
        file = pending.pop()
        if file not in found:
            found.add(file)
            stamp = _stamp(file)
            pending += _imported(stamp, root) + _imported(stamp, source.parent)
    return found


def source_hash(sources: Iterable[Path], root: Path) -> str:
    """Hash of the places and contents of source files, equal in every copy of the project at `root`; 24 hex digits."""
    digest = hashlib.sha256()
    for name, content in sorted((place(source, root), _content_hash(_stamp(source))) for source in sources):
        digest.update(f"{name}\0{content}\0".encode())
    return digest.hexdigest()[:24]


def place(source: Path, root: Path) -> str:
    """Where a file is in the project at `root`; of a file elsewhere, its name."""
    return source.relative_to(root).as_posix() if source.is_relative_to(root) else source.name


def last_change_ns(sources: Iterable[Path]) -> int:
    """When the youngest of these files was written."""
    return max(_stamp(source).changed_ns for source in sources)


def _stamp(file: Path) -> _Stamp:
    status = file.stat()
    return _Stamp(file, status.st_mtime_ns, status.st_size)


@functools.cache
def _content_hash(stamp: _Stamp) -> str:
    return hashlib.sha256(stamp.file.read_bytes()).hexdigest()


@functools.cache
def _imported(stamp: _Stamp, root: Path) -> list[Path]:
    here = _listed(_stamp(root))
    bases = (os.path.join(root, *name.split(".")) for name in _names(stamp) if name.partition(".")[0] in here)
    candidates = (candidate for base in bases for candidate in (f"{base}.py", os.path.join(base, "__init__.py")))
    return [Path(candidate) for candidate in candidates if os.path.isfile(candidate)]


@functools.cache
def _listed(stamp: _Stamp) -> frozenset[str]:
    """The modules and packages of a folder, and whatever else has a name there."""
    return frozenset(name.removesuffix(".py") for name in os.listdir(stamp.file))


@functools.cache
def _names(stamp: _Stamp) -> tuple[str, ...]:
    """Dotted names that may be modules; relative imports are not used in this project."""
    names: list[str] = []
    pending: list[ast.AST] = [ast.parse(stamp.file.read_bytes())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        for block in _BLOCKS:  # an expression imports nothing, and most nodes are in expressions
            pending += getattr(node, block, ())
    return tuple(names)
