"""Checks settings against the types that their class declares, for the project's parts and for a user's.

A class checks ranges when an object is made. Its annotations state whether a value is a number, a truth value or a
name, so no class has to check that.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from framework.checks import is_number
from framework.errors import InputError, shown

_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a name",
    Path: "a path",
    type(None): "null",
}
_MANY: tuple[Any, ...] = (list, tuple, Sequence)


def require_types(where: str, make: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise InputError for the first of `settings`, arguments of `make`, that its annotation rules out."""
    hints = _hints(make)
    for name, value in settings.items():
        if name in hints and not _fits(value, hints[name]):
            raise InputError(f"{where}.{name} must be {_words(hints[name])}, got {shown(value)}")


@functools.cache
def _hints(make: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations of the arguments; none if they cannot be determined."""
    try:
        return typing.get_type_hints(make.__init__ if inspect.isclass(make) else make)
    except (NameError, TypeError, AttributeError):
        return {}


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if hint in (Any, inspect.Parameter.empty) or isinstance(hint, typing.TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(hint))
    if hint is bool or hint is type(None):
        return isinstance(value, hint)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return is_number(value)
    if hint is str:
        return isinstance(value, str) and value.isprintable() and value.strip() != ""
    if hint is Path:  # The name of a file may hold anything.
        return isinstance(value, str | Path)
    return _fits_container(value, hint if origin is None else origin, get_args(hint))


def _fits_container(value: Any, kind: Any, inner: tuple[Any, ...]) -> bool:
    if kind in (dict, Mapping):
        return isinstance(value, Mapping) and all(_fits(one, inner[1]) for one in value.values() if inner)
    if kind in _MANY:
        is_many = isinstance(value, Sequence) and not isinstance(value, str)
        return is_many and (not inner or all(_fits(one, inner[0]) for one in value))
    if not inspect.isclass(kind) or getattr(kind, "_is_protocol", False):
        return not isinstance(value, bool | int | float | str | list | Mapping | None)
    return isinstance(value, kind)


def _words(hint: Any) -> str:
    if get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_words, get_args(hint))))
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    kind = get_origin(hint) or hint
    if kind in _WORDS:
        return _WORDS[kind]
    if kind in (dict, Mapping):
        inner = get_args(hint)
        return f"a mapping to {_words(inner[1])}" if inner and inner[1] in _WORDS else "a mapping"
    if kind in _MANY:
        return "a list"
    return f"made by a _target_, as a {getattr(kind, '__name__', kind)} is"
