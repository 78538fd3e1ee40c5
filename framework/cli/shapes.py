"""Checks of a file's content: a record of these names, a text, numbers of this shape and range.

Each takes the place of the value, for the one line of the InputError that it raises, and returns the value.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.checks import require_number
from framework.errors import InputError


def record_of(where: str, value: Any, names: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """A mapping with all of `names`, any of `optional`, and no others."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be an object, got {value!r}")
    if missing := [name for name in names if name not in value]:
        raise InputError(f"{where} has no {', '.join(missing)}")
    if further := [str(name) for name in value if name not in names and name not in optional]:
        raise InputError(f"{where} has {', '.join(further)}, which nothing reads")
    return dict(value)


def text_of(where: str, value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise InputError(f"{where} must be a text, got {value!r}")
    return value


def texts_of(where: str, value: Any) -> dict[str, str]:
    """A mapping of texts to texts."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be an object, got {value!r}")
    return {text_of(f"a name in {where}", name): text_of(f"{where}.{name}", one) for name, one in value.items()}


def numbers_of(
    where: str, value: Any, shape: tuple[int | None, ...], least: float = -math.inf, most: float = math.inf
) -> NDArray[Any]:
    """Nested lists of numbers from `least` to `most` as an array; None in `shape`: any length except 0."""
    found = _lists(where, value, shape, least, most)
    if shape and len({_lengths(one) for one in found}) > 1:
        raise InputError(f"{where}: its rows are not equally long")
    return np.array(value)


def whole_numbers_of(
    where: str, value: Any, shape: tuple[int | None, ...], least: float, most: float
) -> NDArray[np.int64]:
    """The whole numbers, read as `numbers_of` reads numbers."""
    found = numbers_of(where, value, shape, least, most)
    if (found != np.floor(found)).any():
        raise InputError(f"{where} must hold whole numbers")
    return found.astype(np.int64)


def _lists(where: str, value: Any, shape: tuple[int | None, ...], least: float, most: float) -> list[Any]:
    if not shape:
        require_number(where, value, least, most)
        return []
    length, *inner = shape
    if not isinstance(value, list) or not value or (length is not None and len(value) != length):
        wanted = "at least 1 entry" if length is None else f"{length} entries"
        raise InputError(f"{where} must be a list with {wanted}")
    for index, one in enumerate(value):
        _lists(f"{where}[{index}]", one, tuple(inner), least, most)
    return value


def _lengths(value: Any) -> Any:
    return (len(value), *{_lengths(one) for one in value}) if isinstance(value, list) else ()
