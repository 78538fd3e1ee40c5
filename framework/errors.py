"""Checks of values that a user gave, each failing with one clear line."""

from __future__ import annotations

import math
import traceback
from pathlib import Path
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


_IN_A_HOOK = "raised in policy "


def note_hook(error: Exception, policy: str, hook: str, about: str, now_s: float) -> None:
    """Note in `error` which hook raised it, about what, when in simulated time, and on which line of which file."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    error.add_note(f"{_IN_A_HOOK}{policy}: {hook}{about} at {now_s:.6g} s, {Path(frame.filename).name}:{frame.lineno}")


def hook_noted(error: BaseException) -> str | None:
    """One line on what a hook of a policy raised, where `note_hook` noted it; else None."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(_IN_A_HOOK)]
    return f"{notes[0].removeprefix('raised in ')}: {type(error).__name__}: {error}" if notes else None


class PolicyError(InputError):
    """A policy returned something the cluster cannot do. Names the policy, the hook and the value."""


class InvariantError(Exception):
    """The engine broke one of its own invariants: a bug in the framework, never the user's fault."""


class JobError(Exception):
    """A bug that showed in another process. The message is the traceback there."""
