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


MOST_BOOLEANS = 56  # parameters of functions that are annotated as bool; new ones take the place of old ones


def test_few_parameters_are_booleans() -> None:
    """A flag that chooses behaviour is two functions, an enum or data; what is left is a fact that is handed on."""
    found = [name for path in MODULES for name in booleans(ast.parse(path.read_bytes()))]
    assert len(found) <= MOST_BOOLEANS, found
    assert len(found) > MOST_BOOLEANS - 10  # else the number above is to be lowered


def booleans(tree: ast.Module) -> Iterator[str]:
    """`function(parameter)` of each parameter that is annotated as a boolean."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if one.annotation is not None and ast.unparse(one.annotation) in ("bool", "bool | None"):
                    yield f"{node.name}({one.arg})"


def test_booleans_are_found() -> None:
    tree = ast.parse("def f(a: bool, b: int, *, c: bool | None = None):\n    async def g(d: bool, /): ...\n")
    assert list(booleans(tree)) == ["f(a)", "f(c)", "g(d)"]
