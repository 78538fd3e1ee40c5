"""Bugs of numbers that somebody thought of, by name: each must die in the quick tests of its room.

Each is a change to the syntax tree of one function, so that it outlives what is moved or laid out anew.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT


@dataclass(frozen=True)
class Named:
    """A bug: in `function` of `module`, `after` stands in place of the statement or expression `before`.

    `before` occurs there once; an empty `after` leaves a statement out. An empty `function` is the module itself.
    """

    name: str
    module: str
    function: str
    before: str
    after: str

    @property
    def file(self) -> Path:
        """Relative to the root."""
        return Path(*self.module.split(".")).with_suffix(".py")

    def line(self) -> int:
        """Where the statement begins that it changes."""
        return self._place(ast.parse((ROOT / self.file).read_text()))[3]

    def text(self) -> str:
        """The module with the bug. Raises ValueError where `before` does not occur once."""
        tree = ast.parse((ROOT / self.file).read_text())
        parent, name, index, _ = self._place(tree)
        new = _parsed(self.after) if self.after else ast.Pass()
        if index is None:
            setattr(parent, name, new)
        else:
            getattr(parent, name)[index] = new
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n"

    def _place(self, tree: ast.Module) -> tuple[ast.AST, str, int | None, int]:
        wanted = ast.dump(_parsed(self.before))
        found = [place for place, node in _nodes(_function(tree, self.function), 0) if ast.dump(node) == wanted]
        if len(found) != 1:
            raise ValueError(f"{self.name}: {self.module} {self.function} has {len(found)} times {self.before!r}")
        return found[0]


def _parsed(text: str) -> ast.AST:
    """A statement, or the expression that it consists of, as it is read and not assigned to."""
    try:
        (statement,) = ast.parse(text).body
    except SyntaxError:  # `return x` alone is one to the parser too
        raise ValueError(f"neither a statement nor an expression: {text}") from None
    return statement.value if isinstance(statement, ast.Expr) else statement


def _function(tree: ast.Module, name: str) -> ast.AST:
    node: ast.AST = tree
    for part in filter(None, name.split(".")):
        inside = [one for one in ast.walk(node) if one is not node and getattr(one, "name", None) == part]
        if len(inside) != 1:
            raise ValueError(f"{len(inside)} functions are named {name}")
        node = inside[0]
    return node


def _nodes(parent: ast.AST, line: int) -> Iterator[tuple[tuple[ast.AST, str, int | None, int], ast.AST]]:
    """All that is below a node, with its place and the line where its statement begins."""
    for name, value in ast.iter_fields(parent):
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(node, ast.AST):
                at = node.lineno if isinstance(node, ast.stmt) else line
                yield (parent, name, index, at), node
                yield from _nodes(node, at)


NAMED: tuple[Named, ...] = ()
