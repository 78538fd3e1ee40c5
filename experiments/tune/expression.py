"""Arithmetic expressions over named numbers, for spaces of settings: no eval(), nothing but arithmetic."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from framework.checks import is_numeric
from framework.errors import InputError

Number = int | float
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max}


class Expression:
    """Names (with dots, as of settings), numbers, + - * / //, parentheses, min(...) and max(...).

    `names`: the names that it needs. Raises InputError for anything else.
    """

    def __init__(self, text: Any) -> None:
        self.text = str(text).strip()
        try:
            self._tree = ast.parse(self.text, mode="eval").body
            self.names = frozenset(_names(self._tree))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(
                f"{self.text!r} is not understood: an expression has names, numbers, + - * / //, parentheses, min, max"
            ) from error

    def __call__(self, values: Mapping[str, Any]) -> Number:
        """The value of the expression. Raises InputError for a name without a number, and for a value that is not
        finite.
        """
        try:
            value = _value(self._tree, values)
        except (ZeroDivisionError, OverflowError) as error:
            raise InputError(f"{self.text!r} has no value ({error})") from error
        if not math.isfinite(value):
            raise InputError(f"{self.text!r} is not finite")
        return value


def _names(tree: ast.expr) -> Iterator[str]:
    """The names below `tree`. Raises ValueError for anything that is not arithmetic."""
    match tree:
        case ast.Constant(value=value) if is_numeric(value):
            return
        case ast.Name() | ast.Attribute():
            yield _dotted(tree)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _names(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield from _names(left)
            yield from _names(right)
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as arguments, keywords=[]) if name in _FUNCTIONS:
            for argument in arguments:
                yield from _names(argument)
        case _:
            raise ValueError(ast.dump(tree))


def _dotted(tree: ast.expr) -> str:
    if isinstance(tree, ast.Attribute):
        return f"{_dotted(tree.value)}.{tree.attr}"
    if isinstance(tree, ast.Name):
        return tree.id
    raise ValueError(ast.dump(tree))


def _value(tree: ast.expr, values: Mapping[str, Any]) -> Number:
    match tree:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(operand=operand):
            return -_value(operand, values)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_value(argument, values) for argument in arguments))
    name = _dotted(tree)
    if not is_numeric(values.get(name)):
        raise InputError(f"{name} is not a number here, but {values.get(name)!r}")
    return values[name]
