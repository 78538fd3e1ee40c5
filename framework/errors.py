"""Checks of values that a user gave, each failing with one clear line."""

from __future__ import annotations

import math
from typing import Any


def require_count(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")


def require_whole(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{name} must be a whole number of at least 0, got {value!r}")


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise InputError, listing the choices, unless `value` is one of them."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def require_at_least(name: str, value: Any, minimum: float) -> None:
    """Raise InputError unless `value` is a finite number of at least `minimum`."""
    if not _is_number(value) or value < minimum:
        raise InputError(f"{name} must be a finite number of at least {minimum:g}, got {value!r}")


def require_positive(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a finite number above 0."""
    if not _is_number(value) or value <= 0:
        raise InputError(f"{name} must be a finite number above 0, got {value!r}")


def require_share(name: str, value: Any) -> None:
    """Raise InputError unless 0 < `value` <= 1."""
    if not _is_number(value) or not 0 < value <= 1:
        raise InputError(f"{name} must be above 0 and at most 1, got {value!r}")


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)


# ----------------------------------------------------------------------------------------------------
# The two ways a run can end early, told apart from bugs.


class InputError(Exception):
    """What the user gave cannot be used. One line: what, where, what to do. `run.py` prints it and exits with 2."""


class PolicyError(InputError):
    """A policy returned something the cluster cannot do. Names the policy, the hook and the value."""


class InvariantError(Exception):
    """The engine broke one of its own invariants: a bug in the framework, never the user's fault."""


class JobError(Exception):
    """A bug that showed in another process. The message is the traceback there."""
