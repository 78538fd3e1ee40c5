"""Single values and requests of benchmark files, checked as they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from framework.errors import InputError, shown

_MOST, _MOST_TOKENS = 1e12, 1e9


@dataclass(frozen=True)
class ServedRequest:
    """One request as read; `gaps_s` runs from its first token to the last, and `hash_ids` name its prompt's blocks."""

    input_tokens: int
    output_tokens: int
    ttft_s: float
    gaps_s: float
    start_s: float | None
    hash_ids: tuple[int, ...] | None = None


def number(where: str, value: Any, least: float = -math.inf, most: float = _MOST) -> float:
    """A finite number, given as a number or, in a CSV, as text."""
    try:
        found = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise InputError(f"{where} must be a finite number, got {shown(value)}")
    if found < least:
        raise InputError(f"{where} must be at least {least:g}, got {shown(value)}")
    if found > most:
        raise InputError(f"{where} must be at most {most:g}, got {shown(value)}")
    return found


def positive_or_infinite(where: str, value: Any) -> float:
    """A number above 0, or infinity."""
    return math.inf if str(value) in ("inf", "Infinity") else positive(where, value)


def positive(where: str, value: Any) -> float:
    """A number above 0."""
    found = number(where, value)
    if found <= 0:
        raise InputError(f"{where} must be above 0, got {shown(value)}")
    return found


def count(where: str, value: Any) -> int:
    """A whole number of at least 1."""
    found = number(where, value, 1, _MOST_TOKENS)
    if found != int(found):
        raise InputError(f"{where} must be a whole number, got {shown(value)}")
    return int(found)
