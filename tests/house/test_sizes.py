"""Modules and functions stay small enough to be read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.conftest import ROOT

TOPS = ("framework", "policies", "predictors", "traces", "experiments", "servelab")
MODULES = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]
MOST_OF_A_FUNCTION, MOST_OF_NINE_IN_TEN, MOST_OF_A_MODULE = 60, 250, 340  # lines


def test_functions_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {name} has {lines} lines"
        for path in MODULES
        for name, lines in functions(path)
        if lines > MOST_OF_A_FUNCTION
    ]
    assert not long


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines, from `def` to the last one, of each function."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_modules_are_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert max(lines.values()) <= MOST_OF_A_MODULE, max(lines, key=lambda path: lines[path])
    own = [count for count in lines.values() if count > 1]  # without packages' one line
    assert np.quantile(own, 0.9) <= MOST_OF_NINE_IN_TEN


def test_lines_of_functions_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("@cache\ndef f():\n    return 1\n\n\nclass A:\n    async def g(self):\n        pass\n")
    assert list(functions(path)) == [("f", 2), ("g", 2)]
