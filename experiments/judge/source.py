"""What the text of a policy may contain: a policy decides by what its hooks are given, and by nothing else.

Names and attributes are checked before the text runs. It is a rule against cheating, so that a refusal has a line that
its author can act on; what a process may do is limited by `experiments.judge.confined` besides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from framework.errors import InputError

MODULES = frozenset(
    {
        *("__future__", "abc", "bisect", "collections", "collections.abc", "dataclasses", "enum", "functools"),
        *("heapq", "itertools", "math", "numpy", "numpy.typing", "random", "statistics", "typing", "scipy.special"),
        *("servelab", "framework.policy", "framework.checks", "framework.policy.rules", "policies"),
        "framework.engine.setup.config",
    }
)
_PARENTS = ("policies.", "predictors.")  # packages of which any module may be imported
_SERVELAB = frozenset(
    {
        *("Action", "Aggregated", "Cancel", "Cluster", "Disaggregated", "Migrate", "Plan", "Policy", "Preempt"),
        *("Request", "Requeue", "Resume", "Scale", "SetMaxBatch", "SetRole", "SetTokenBudget", "Predictor"),
        *("Decision", "View", "decision", "InputError"),
    }
)
_NAMES = frozenset(
    {
        *("__import__", "breakpoint", "compile", "delattr", "dir", "eval", "exec", "exit", "getattr", "globals"),
        *("help", "input", "locals", "memoryview", "open", "quit", "setattr", "vars", "__builtins__", "__loader__"),
    }
)
_ATTRIBUTES = frozenset(
    {
        *("os", "sys", "io", "builtins", "ctypes", "ctypeslib", "subprocess", "socket", "shutil", "gc", "inspect"),
        *("format", "format_map", "tofile", "fromfile", "save", "savez", "load", "memmap", "loadtxt", "savetxt"),
        *("genfromtxt", "fromregex", "DataSource", "f2py", "testing", "lib", "dump", "dumps", "ctypes_data"),
    }
)


def checked_source(source: str, name: str = "") -> tuple[ast.Module, str]:
    """The text as a tree, and the name of its policy class: `name`, or the last class of the text.

    Raises InputError, with the line, for text that is no Python, has no class, or has what a policy may not use.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(f"{where}no Python: {getattr(error, 'msg', error)}") from None
    for line, reason in _forbidden(tree):
        raise InputError(f"line {line}: {reason}")
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    if not classes or (name and name not in classes):
        known = f"; it has {', '.join(classes)}" if classes else ""
        raise InputError(f"the text has no class {name or 'at its top level, such as a servelab.Aggregated'}{known}")
    return tree, name or classes[-1]


def _forbidden(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the reason of each thing that a policy may not use."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not _is_allowed(alias.name):
                    yield line, f"import {alias.name} is not allowed; {_ADVICE}"
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level or not _is_allowed(module):
                yield line, f"import of {'.' * node.level}{module} is not allowed; {_ADVICE}"
            for alias in node.names:
                if module == "servelab" and alias.name not in _SERVELAB:
                    yield line, f"servelab.{alias.name} is not allowed: a policy does not start runs or load traces"
                if _is_hidden(alias.name) or alias.name in _ATTRIBUTES | {"*"}:
                    yield line, f"import of {alias.name} is not allowed"
        elif isinstance(node, ast.Name) and (node.id in _NAMES or _is_dunder(node.id)):
            yield line, f"{node.id} is not allowed"
        elif isinstance(node, ast.Attribute):
            yield from _of_attribute(node)


def _of_attribute(node: ast.Attribute) -> Iterator[tuple[int, str]]:
    own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    calls_super = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
    is_super = calls_super and node.value.func.id == "super"  # type: ignore[attr-defined]
    if node.attr.startswith("_") and not (own and not _is_dunder(node.attr)) and not is_super:
        yield node.lineno, f".{node.attr} is not allowed: what begins with _ is not for policies"
    elif node.attr in _ATTRIBUTES:
        yield node.lineno, f".{node.attr} is not allowed"
    elif isinstance(node.value, ast.Name) and node.value.id == "servelab" and node.attr not in _SERVELAB:
        yield node.lineno, f"servelab.{node.attr} is not allowed: a policy does not start runs or load traces"


def _is_allowed(module: str) -> bool:
    return module in MODULES or (module.startswith(_PARENTS) and "._" not in module)


def _is_hidden(name: str) -> bool:
    return name.startswith("_")


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in ("__init__", "__name__")


_ADVICE = "numpy, math, collections, heapq and the like, servelab and policies are"
