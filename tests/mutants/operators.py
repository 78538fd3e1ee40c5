"""Bugs that are made from the syntax tree of a module: what each operator changes, and where.

- `drop`: a statement is left out.
- `flip`: a comparison says the opposite (`<` becomes `>=`).
- `edge`: a comparison treats equal values the other way (`<` becomes `<=`).
- `shift`: a whole number is one more; so is a bound of a slice or of `range`.
- `swap`: a minimum is a maximum, `any` is `all`, `floor` is `ceil`, and the reverse.
- `true`, `false`: the condition of a branch, or of a filter, always holds, or never.
- `sign`: a sum is a difference, and the reverse.

A bug has a key: the function that it is in, the operator, and its number among those of the operator there. Code that
moves within its module keeps its keys. Annotations, names of types, decorators, docstrings and conditions for type
checkers have none, nor has a function's last `return None`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPERATORS = ("drop", "flip", "edge", "shift", "swap", "true", "false", "sign")
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_EDGES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_PAIRS = (
    *(("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("nanmin", "nanmax"), ("fmin", "fmax")),
    *(("any", "all"), ("floor", "ceil"), ("min_horizontal", "max_horizontal"), ("any_horizontal", "all_horizontal")),
)
_SWAPPED = dict(_PAIRS) | {right: left for left, right in _PAIRS}
_SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_DROPPED = (
    *(ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Assert, ast.Delete),
    *(ast.For, ast.While, ast.With, ast.Try, ast.Break, ast.Continue),
)
_TYPES = ("NDArray", "Callable", "tuple")  # what names one is used by annotations alone
_NO_CODE = ("annotation", "returns", "decorator_list", "type_params", "type_comment")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Site:
    """A place where an operator can act.

    `function` is the name within the module, as "Store.remove", empty for code of the module itself; `number` counts
    the sites of the operator there; `line` is where the innermost statement of the site begins.
    """

    function: str
    operator: str
    number: int
    line: int

    @property
    def name(self) -> str:
        """The key within the module."""
        return " ".join(filter(None, (self.function, self.operator, str(self.number))))


@dataclass(frozen=True)
class Mutation:
    """The text of a module with a bug, where `after` stands in place of `before`."""

    text: str
    before: str
    after: str


@dataclass(frozen=True)
class _Change:
    """Of the field `name` of `parent`, or of its item `index`, put `new` in place of `old`."""

    function: str
    operator: str
    line: int
    parent: ast.AST
    name: str
    index: int | None
    old: ast.AST
    new: ast.AST

    def put(self, node: ast.AST) -> None:
        """Let this node stand there."""
        if self.index is None:
            setattr(self.parent, self.name, node)
        else:
            getattr(self.parent, self.name)[self.index] = node


def sites(text: str) -> list[Site]:
    """All sites of a module, in order."""
    return [site for site, _ in _numbered(ast.parse(text))]


def has_sites(text: str) -> bool:
    """Whether there is anything to change."""
    return any(True for _ in _numbered(ast.parse(text)))


def mutated(text: str, site: Site) -> Mutation:
    """The module with the bug, written from its syntax tree. Raises KeyError where there is no such site."""
    tree = ast.parse(text)
    for found, change in _numbered(tree):
        if found.name == site.name:
            before, after = _shown(change.old), _shown(change.new)
            change.put(change.new)
            return Mutation(ast.unparse(ast.fix_missing_locations(tree)) + "\n", before, after)
    raise KeyError(site.name)


def statements(text: str) -> int:
    """How many statements a module has, without docstrings and imports."""
    without = (ast.Import, ast.ImportFrom)
    return sum(isinstance(node, ast.stmt) and not isinstance(node, without) for node in ast.walk(ast.parse(text)))


def module_name(path: Path) -> str:
    """Of a file of the project, relative to its root."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _numbered(tree: ast.Module) -> Iterator[tuple[Site, _Change]]:
    counts: dict[tuple[str, str], int] = {}
    for change in _changes(tree, "", 0):
        place = (change.function, change.operator)
        counts[place] = counts.get(place, 0) + 1
        yield Site(*place, counts[place], change.line), change


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _changes(parent: ast.AST, function: str, line: int) -> Iterator[_Change]:
    """Of all that is below a node, from top to bottom."""
    if isinstance(parent, (*_FUNCTIONS, ast.ClassDef)):
        function = f"{function}.{parent.name}" if function else parent.name
    for name, value in ast.iter_fields(parent):
        if name in _NO_CODE:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(node, ast.AST) or _says_nothing(node):
                continue
            at = node.lineno if isinstance(node, ast.stmt) else line
            for operator, new in _replacements(parent, name, node):
                yield _Change(function, operator, at, parent, name, index, node, new)
            yield from _changes(node, function, at)


def _says_nothing(node: ast.AST) -> bool:
    """Whether it is a docstring, an import, or for type checkers alone."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        is_type = isinstance(node.value, ast.Subscript) and getattr(node.value.value, "id", "") in _TYPES
        return is_type or any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    return isinstance(node, ast.Import | ast.ImportFrom)


def _replacements(parent: ast.AST, name: str, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Each operator that can act on a node, and what it makes of it."""
    if isinstance(node, _DROPPED):
        if not _ends_with_none(parent, node):
            yield "drop", ast.Pass()
    elif isinstance(node, ast.Compare):
        for operator, table in (("flip", _FLIPPED), ("edge", _EDGES)):
            for number, op in enumerate(node.ops):
                if type(op) in table:
                    ops = [*node.ops[:number], table[type(op)](), *node.ops[number + 1 :]]
                    yield operator, ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield from (("swap", new) for new in _swapped(parent, name, node))
    elif isinstance(node, ast.BinOp) and type(node.op) in _SIGNS and not _joins(node):
        yield "sign", ast.BinOp(node.left, _SIGNS[type(node.op)](), node.right)
    if isinstance(node, ast.AugAssign) and type(node.op) in _SIGNS:
        yield "sign", ast.AugAssign(node.target, _SIGNS[type(node.op)](), node.value)
    if isinstance(node, ast.expr) and _is_shifted(parent, name, node):
        yield "shift", _one_more(node)
    if isinstance(node, ast.expr) and _is_condition(parent, name) and not isinstance(node, ast.Constant):
        if not isinstance(parent, ast.While):
            yield "true", ast.Constant(True)
        yield "false", ast.Constant(False)


def _ends_with_none(parent: ast.AST, node: ast.AST) -> bool:
    """Whether it is a function's last statement and returns None, as the function would without it."""
    if not isinstance(node, ast.Return) or not isinstance(parent, _FUNCTIONS) or node is not parent.body[-1]:
        return False
    return node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)


def _swapped(parent: ast.AST, name: str, node: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """The other one of a pair, where it is called or passed, and not a variable of that name."""
    if isinstance(node, ast.Attribute) and node.attr in _SWAPPED:
        yield ast.Attribute(node.value, _SWAPPED[node.attr], node.ctx)
    elif (
        isinstance(node, ast.Name) and node.id in _SWAPPED and isinstance(parent, ast.Call) and name in ("func", "args")
    ):
        yield ast.Name(_SWAPPED[node.id], node.ctx)


def _joins(node: ast.BinOp) -> bool:
    """Whether a sum puts texts or lists together."""
    text = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return any(
        isinstance(side, text) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def _is_shifted(parent: ast.AST, name: str, node: ast.expr) -> bool:
    """Whether it is a whole number, or a bound of a slice or of `range`."""
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.UnaryOp | ast.BinOp) and any(isinstance(part, ast.Constant) for part in ast.walk(node)):
        return False  # its own numbers are shifted
    is_range = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "range"
    return (is_range and name == "args") or (isinstance(parent, ast.Slice) and name in ("lower", "upper"))


def _one_more(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return ast.Constant(node.value + 1)
    return ast.BinOp(node, ast.Add(), ast.Constant(1))


def _is_condition(parent: ast.AST, name: str) -> bool:
    if isinstance(parent, ast.comprehension):
        return name == "ifs"
    return name == "test" and isinstance(parent, ast.If | ast.IfExp | ast.While)
