"""Modules and functions stay small enough to be read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from tests.conftest import ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef
TOPS = ("framework", "policies", "predictors", "traces", "experiments", "servelab")
MODULES = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]
MOST_OF_A_FUNCTION, MOST_OF_NINE_IN_TEN, MOST_OF_A_MODULE = 60, 250, 340  # lines


MOST_BOOLEANS = 56  # parameters of functions that are annotated as bool; new ones take the place of old ones


def test_functions_are_short_and_few_parameters_are_booleans() -> None:
    """A flag that chooses behaviour is two functions, an enum or data; what is left is a fact that is handed on."""
    long: list[str] = []
    found: list[str] = []
    for path in MODULES:
        for one in functions(ast.parse(path.read_bytes())):
            if lines_of(one) > MOST_OF_A_FUNCTION:
                long.append(f"{path.relative_to(ROOT)}: {one.name} has {lines_of(one)} lines")
            found += booleans(one)
    assert not long
    assert len(found) <= MOST_BOOLEANS, found
    assert len(found) > MOST_BOOLEANS - 10  # else the number above is to be lowered


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions of a module, those within others too."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def lines_of(function: Function) -> int:
    """From `def` to the last line."""
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def booleans(function: Function) -> Iterator[str]:
    """`function(parameter)` of each parameter that is annotated as a boolean."""
    for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        if one.annotation is not None and ast.unparse(one.annotation) in ("bool", "bool | None"):
            yield f"{function.name}({one.arg})"


def test_modules_are_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert max(lines.values()) <= MOST_OF_A_MODULE, max(lines, key=lambda path: lines[path])
    own = [count for count in lines.values() if count > 1]  # without packages' one line
    assert np.quantile(own, 0.9) <= MOST_OF_NINE_IN_TEN


def test_lines_and_booleans_of_functions_are_counted() -> None:
    text = "@cache\ndef f(a: bool, b: int):\n    pass\n\n\nclass A:\n    async def g(self, *, c: bool | None = None):\n"
    inner = "        def h(d: bool, /): ...\n"
    found = list(functions(ast.parse(text + inner)))
    assert [(one.name, lines_of(one)) for one in found] == [("f", 2), ("g", 2), ("h", 1)]
    assert [name for one in found for name in booleans(one)] == ["f(a)", "g(c)", "h(d)"]
