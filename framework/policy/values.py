"""Numbers of any type, as policies return them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from framework.policy.view import Floats


def is_whole(value: Any, below: int) -> bool:
    """Whether it is a number of any type that is whole and from 1 to `below` - 1."""
    try:
        return bool(1 <= value < below and value == int(value))
    except (TypeError, ValueError):
        return False


def index(value: Any) -> int | None:
    """A whole number of any type as an int; None for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_floats(keys: Any) -> Floats | None:
    """The keys as float64, from numbers of any type; None if any of them is something else, such as a text."""
    try:
        numbers = np.asarray(keys)
        return numbers.astype(np.float64, order="C") if numbers.dtype.kind in "biufO" else None
    except (TypeError, ValueError, OverflowError):
        return None
