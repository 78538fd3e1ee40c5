"""Checks of values that come from a config, where anything can have any type."""

from __future__ import annotations

import math
from numbers import Integral, Real

from framework.errors import InputError


def check_whole(label: str, value: object, least: int = 1) -> None:
    """Raise InputError unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{label} is {value!r}, must be a whole number of at least {least}")


def check_positive(label: str, value: object) -> None:
    """Raise InputError unless `value` is a finite number above 0."""
    if not _is_finite(value) or not value > 0:  # type: ignore[operator]
        raise InputError(f"{label} is {value!r}, must be a number above 0")


def check_at_least(label: str, value: object, least: float = 0.0) -> None:
    """Raise InputError unless `value` is a finite number of at least `least`."""
    if not _is_finite(value) or not value >= least:  # type: ignore[operator]
        raise InputError(f"{label} is {value!r}, must be a finite number of at least {least:g}")


def _is_finite(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
