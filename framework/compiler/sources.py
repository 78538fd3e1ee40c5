"""Which source files a module's behaviour can depend on: itself and what it imports, as far as this project's own."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements have statements


def import_closure(source: Path, root: Path) -> set[Path]:
    """`source` and every file below `root`, or beside `source`, that it imports, directly or through others."""
    found: set[Path] = set()
    pending = [source]
    while pending:
        file = pending.pop()
        if file not in found:
            found.add(file)
            pending += _imported(file, root) + _imported(file, source.parent)
    return found


def source_hash(sources: Iterable[Path]) -> str:
    """Hash of the paths and contents of source files; 24 hex digits."""
    digest = hashlib.sha256()
    for source in sorted(sources):
        content = source.read_bytes()
        digest.update(f"{source}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:24]


@functools.cache
def _imported(source: Path, root: Path) -> list[Path]:
    files = (root.joinpath(*name.split(".")) for name in _names(source))
    candidates = (place for file in files for place in (file.with_suffix(".py"), file / "__init__.py"))
    return [place for place in candidates if place.is_file()]


@functools.cache
def _names(source: Path) -> tuple[str, ...]:
    """Dotted names that may be modules; relative imports are not used in this project."""
    names: list[str] = []
    pending: list[ast.AST] = [ast.parse(source.read_bytes())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        for block in _BLOCKS:  # an expression imports nothing, and most nodes are in expressions
            pending += getattr(node, block, ())
    return tuple(names)
