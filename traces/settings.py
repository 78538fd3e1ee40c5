"""Checks of values that come from a config, where anything can have any type."""

from __future__ import annotations

from numbers import Integral

from framework.checks import MOST_COUNTED, is_number
from framework.errors import InputError, shown

MOST_REQUESTS = 10**8
MAX_TOKENS = 10**9  # of a request
MOST_RPS = 1e6  # requests/s: more than a cluster of any size is sent


def check_whole(label: str, value: object, least: int = 1, most: int = MOST_COUNTED) -> None:
    """Raise InputError unless `value` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{label} is {shown(value)}, must be a whole number of at least {least}")
    if int(value) > most:
        raise InputError(f"{label} is {shown(value)}, must be at most {most:,}")


def check_positive(label: str, value: object) -> None:
    """Raise InputError unless `value` is a number above 0, and no absurd one."""
    if not is_number(value) or not value > 0:  # type: ignore[operator]
        raise InputError(f"{label} is {shown(value)}, must be a number above 0")
    _check_at_most(label, value)


def check_at_least(label: str, value: object, least: float = 0.0) -> None:
    """Raise InputError unless `value` is a finite number of at least `least`, and no absurd one."""
    if not is_number(value) or not value >= least:  # type: ignore[operator]
        raise InputError(f"{label} is {shown(value)}, must be a finite number of at least {least:g}")
    _check_at_most(label, value)


def check_rate(label: str, value: object) -> None:
    """Raise InputError unless `value` is a number of requests per second that a cluster can be sent."""
    check_positive(label, value)
    if value > MOST_RPS:  # type: ignore[operator]
        raise InputError(f"{label} is {shown(value)} requests/s, must be at most {MOST_RPS:g}")


def check_flag(label: str, value: object) -> None:
    """Raise InputError unless `value` is true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{label} is {shown(value)}, must be true or false")


def _check_at_most(label: str, value: object) -> None:
    if value > MOST_COUNTED:  # type: ignore[operator]
        raise InputError(f"{label} is {shown(value)}, must be at most {MOST_COUNTED:g}")
