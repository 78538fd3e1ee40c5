"""How a bug gets into code that has been imported: in a fork of a process that has everything ready.

Functions keep their identity and get other code, so whoever has imported one has the bug. A module whose functions are
compiled with numba is run as plain Python then, for its callers in Python. What changes outside the body of a function
(a constant, a default, a class) needs a process of its own: see `tests/mutants/overlay`.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from framework.compiler.dispatchers import Function, Inner
from tests.conftest import ROOT
from tests.mutants.operators import module_name

_REACHED = "__reached__"


class OutsideFunctionsError(Exception):
    """A bug that new code of functions cannot make."""


@cache
def functions() -> dict[str, dict[str, list[FunctionType]]]:
    """All functions that have been defined, by path of their module and qualified name: once for all forks."""
    gc.unfreeze()
    found: dict[str, dict[str, list[FunctionType]]] = {}
    for one in gc.get_objects():
        if type(one) is FunctionType:
            found.setdefault(one.__code__.co_filename, {}).setdefault(one.__code__.co_qualname, []).append(one)
    return found


def is_outside_functions(before: str, after: str) -> bool:
    """Whether two texts of a module differ in more than the bodies of functions."""
    return _outline(before) != _outline(after)


def runs_on_import(file: Path, text: str) -> bool:
    """Whether a function that has another body in this text is called, maybe by others, as its module is imported."""
    tree = ast.parse((ROOT / file).read_text())
    bodies = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    found: set[str] = set()
    left = _called(_Outline().visit(ast.parse((ROOT / file).read_text()))) & bodies.keys()
    while left:
        name = left.pop()
        found.add(name)
        left |= (_called(bodies[name]) & bodies.keys()) - found
    return any(name.partition(".")[0] in found for name in _changed(file, text))


def _called(tree: ast.AST) -> set[str]:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {func.id for func in calls if isinstance(func, ast.Name)}


def seed(file: Path, text: str) -> None:
    """Give this text's code to the functions of a module. Raises OutsideFunctionsError where that is not enough."""
    run_as_python(file)
    _put(file, compile(text, str(ROOT / file), "exec"), only=_changed(file, text))


def watch(file: Path, reached: Callable[[int], object]) -> None:
    """Have the functions of a module tell of each statement that they come to: its line."""
    run_as_python(file)
    tree = _Watched().visit(ast.parse((ROOT / file).read_text()))
    vars(sys.modules[module_name(file)])[_REACHED] = reached
    _put(file, compile(ast.fix_missing_locations(tree), str(ROOT / file), "exec"), only=None)


def run_as_python(file: Path) -> None:
    """Put plain functions in place of the compiled ones of a module, wherever a module has them.

    Inner functions of other modules can be called from then on.
    """
    own = vars(sys.modules[module_name(file)])
    for inner in {value for module in list(sys.modules.values()) for value in _inner_functions(module)}:
        inner.plain = inner.plain or inner.py_func
    plain = {id(one): one.py_func for one in own.values() if isinstance(one, Function | Inner) and _is_of(one, file)}
    for module in list(sys.modules.values()) if plain else ():
        names: dict[str, Any] = vars(module) if type(module) is ModuleType else {}
        names.update({name: plain[id(value)] for name, value in list(names.items()) if id(value) in plain})


def _inner_functions(module: ModuleType) -> list[Inner]:
    names: dict[str, Any] = vars(module) if type(module) is ModuleType else {}
    return [value for value in list(names.values()) if isinstance(value, Inner)]


def _is_of(dispatcher: Any, file: Path) -> bool:
    return dispatcher.py_func.__code__.co_filename == str(ROOT / file)


def _put(file: Path, code: CodeType, only: set[str] | None) -> None:
    codes = _codes(code)
    for name, those in functions().get(str(ROOT / file), {}).items():
        if name in codes and "<lambda>" not in name and (only is None or name.split(".<locals>")[0] in only):
            for function in those:
                try:
                    function.__code__ = codes[name]
                except ValueError as error:  # it closes over other variables
                    raise OutsideFunctionsError(name) from error


def _codes(code: CodeType) -> dict[str, CodeType]:
    """The code of all functions of a module, by qualified name; of two of one name the last."""
    found: dict[str, CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= {constant.co_qualname: constant} | _codes(constant)
    return found


def _changed(file: Path, text: str) -> set[str]:
    before, after = (_dumps(ast.parse(one), "") for one in ((ROOT / file).read_text(), text))
    return {name for name, dump in after.items() if dump != before.get(name)}


def _dumps(parent: ast.AST, above: str) -> dict[str, str]:
    """The functions of a module and of its classes, not those inside others, by qualified name."""
    found: dict[str, str] = {}
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[above + node.name] = found.get(above + node.name, "") + ast.dump(node)
        elif isinstance(node, ast.ClassDef):
            found |= _dumps(node, f"{above}{node.name}.")
        else:
            found |= _dumps(node, above)
    return found


def _outline(text: str) -> str:
    return ast.dump(_Outline().visit(ast.parse(text)))


class _Outline(ast.NodeTransformer):
    """A module without what its functions do."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = [ast.Pass()]
        return node


class _Watched(ast.NodeTransformer):
    """A module whose functions tell of each statement."""

    def __init__(self) -> None:
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and self.depth and not isinstance(node, ast.ClassDef):
                setattr(node, name, [part for one in block for part in (_told(one), one)])
        return node


def _told(statement: ast.stmt) -> ast.stmt:
    return ast.parse(f"{_REACHED}({statement.lineno})").body[0]
