"""Types of operators on plain numbers, determined once.

numba asks every rule that it knows of an operator, numpy's first, each time that the operator occurs in a function.
That is a tenth of the engine's compile time. The result for two kinds of numbers never changes.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from numba import types

Function: Any = types.Function
_OPERATORS = frozenset(value for value in vars(operator).values() if callable(value))
_NUMBERS = (types.Number, types.Boolean)


def keep_types_of_operators() -> None:
    """Let numba keep the signature of an operator for kinds of numbers from now on, in this process."""
    find = Function.get_call_type
    if hasattr(find, "__wrapped__"):
        return
    kept: dict[tuple[Any, ...], Any] = {}

    @functools.wraps(find)
    def find_once(function: Any, context: Any, args: tuple[Any, ...], kws: Any) -> Any:
        if kws or not _is_of_numbers(function, args):
            return find(function, context, args, kws)
        key = (function, context, args)
        if key not in kept:
            kept[key] = find(function, context, args, kws)
        return kept[key]

    Function.get_call_type = find_once


def _is_of_numbers(function: Any, args: tuple[Any, ...]) -> bool:
    if function.typing_key not in _OPERATORS:
        return False
    return all(isinstance(types.unliteral(each), _NUMBERS) for each in args)
