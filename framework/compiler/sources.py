"""The source files on which a module's behaviour can depend: itself and its imports within this project."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from framework.compiler.source_facts import Stamp, facts, stamp_of


def import_closure(source: Path, root: Path) -> set[Path]:
    """`source` and every file below `root`, or next to `source`, that it imports, directly or not."""
    found: set[str] = set()
    pending, bases = [str(source)], {str(root), str(source.parent)}
    while pending:
        file = pending.pop()
        if file not in found:
            found.add(file)
            stamp = stamp_of(file)
            for base in bases:
                pending += _imported(stamp, base)
    return set(map(Path, found))


def source_hash(sources: Iterable[Path], root: Path) -> str:
    """Hash of the places and contents of source files, equal in every copy of the project at `root`; 24 hex digits."""
    digest = hashlib.sha256()
    for name, content in sorted((place(source, root), facts(stamp_of(source)).content) for source in sources):
        digest.update(f"{name}\0{content}\0".encode())
    return digest.hexdigest()[:24]


@functools.cache
def place(source: Path, root: Path) -> str:
    """The place of a file in the project at `root`; for a file elsewhere, its name."""
    return source.relative_to(root).as_posix() if source.is_relative_to(root) else source.name


def last_change_ns(sources: Iterable[Path]) -> int:
    """The time at which the youngest of these files was written."""
    return max(stamp_of(source).changed_ns for source in sources)


@functools.cache
def _imported(stamp: Stamp, root: str) -> list[str]:
    here = _listed(stamp_of(root))
    names = (name for name in facts(stamp).names if name.partition(".")[0] in here)
    return [file for name in names for file in _files_of(name, root)]


@functools.cache
def _files_of(name: str, root: str) -> list[str]:
    """The file of a module or package, none if it is neither; most names are imported by many files."""
    base = os.path.join(root, *name.split("."))
    return [file for file in (f"{base}.py", os.path.join(base, "__init__.py")) if os.path.isfile(file)]


@functools.cache
def _listed(stamp: Stamp) -> frozenset[str]:
    """The modules, packages and other names in a folder."""
    return frozenset(name.removesuffix(".py") for name in os.listdir(stamp.file))
