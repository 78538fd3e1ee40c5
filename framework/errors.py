"""Checks of values that a user gave, each failing with one clear line."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST = 1e24  # of any quantity: more than the bytes, FLOP/s and tokens that a simulation can be about
MOST_COUNTED = 10**15  # of what is counted
MOST_S = 1e9  # seconds, thirty years
_LONGEST = 80  # characters of a value that is shown
_MOST_STUCK = 8  # requests that are named


def require_count(name: str, value: Any, most: int = MOST_COUNTED) -> None:
    """Raise InputError unless `value` is a whole number from 1 to `most`."""
    _require_whole(name, value, 1, most)


def require_whole(name: str, value: Any, most: int = MOST_COUNTED) -> None:
    """Raise InputError unless `value` is a whole number from 0 to `most`."""
    _require_whole(name, value, 0, most)


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise InputError, listing the choices, unless `value` is one of them."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}; got {shown(value)}")


def require_flag(name: str, value: Any) -> None:
    """Raise InputError unless `value` is true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false, got {shown(value)}")


def require_name(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a text that can name something: not empty, and every character to be seen."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(f"{name} must be a name, got {shown(value)}")


def require_at_least(name: str, value: Any, minimum: float) -> None:
    """Raise InputError unless `value` is a finite number of at least `minimum`, and no absurd one."""
    if not is_number(value) or value < minimum:
        raise InputError(f"{name} must be a finite number of at least {minimum:g}, got {shown(value)}")
    _require_at_most(name, value, _most(name))


def require_positive(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a finite number above 0, and no absurd one."""
    if not is_number(value) or value <= 0:
        raise InputError(f"{name} must be a finite number above 0, got {shown(value)}")
    _require_at_most(name, value, _most(name))


def require_share(name: str, value: Any) -> None:
    """Raise InputError unless 0 < `value` <= 1."""
    if not is_number(value) or not 0 < value <= 1:
        raise InputError(f"{name} must be above 0 and at most 1, got {shown(value)}")


def require_number(name: str, value: Any, least: float, most: float) -> None:
    """Raise InputError unless `value` is a finite number from `least` to `most`."""
    if not is_number(value):
        raise InputError(f"{name} must be a finite number, got {shown(value)}")
    if not least <= value <= most:
        raise InputError(f"{name} must lie between {least:g} and {most:g}, got {shown(value)}")


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number that a float64 can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def shown(value: Any) -> str:
    """A value as it is written, shortened."""
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        return "a number of too many digits"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _require_whole(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    _require_at_most(name, value, most)


def _require_at_most(name: str, value: float, most: float) -> None:
    if value > most:
        raise InputError(f"{name} must be at most {most:g}, got {shown(value)}")


def _most(name: str) -> float:
    """Names of seconds end in _s, as do those of rates: bytes_s."""
    return MOST_S if name.endswith("_s") and not name.endswith("bytes_s") else MOST


# ----------------------------------------------------------------------------------------------------
# The two ways a run can end early, told apart from bugs.


class InputError(Exception):
    """What the user gave cannot be used. One line: what, where, what to do. `run.py` prints it and exits with 2."""


_RAISED_IN = "raised in "


def note_hook(error: Exception, policy: str, hook: str, about: str, now_s: float) -> None:
    """Note in `error` which hook raised it, about what, when in simulated time, and on which line of which file."""
    note_method(error, f"policy {policy}", f"{hook}{about} at {now_s:.6g} s")


def note_method(error: BaseException, whose: str, method: str) -> None:
    """Note in `error` which method of a policy or a predictor raised it, and on which line of which file."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    error.add_note(f"{_RAISED_IN}{whose}: {method}, {Path(frame.filename).name}:{frame.lineno}")


def instead_of(end: SystemExit) -> RuntimeError:
    """What says that a method called sys.exit, which would end a run, or a whole sweep, without a word."""
    code = "" if end.code is None else repr(end.code)
    said = RuntimeError(f"sys.exit({code}) would end the process; raise an exception to end the run")
    return said.with_traceback(end.__traceback__)


@contextmanager
def noting(whose: str, method: str) -> Iterator[None]:
    """Note so what is raised within, unless it is an InputError, which says itself what is wrong."""
    try:
        yield
    except InputError:
        raise
    except SystemExit as end:
        error = instead_of(end)
        note_method(error, whose, method)
        raise error from None
    except Exception as error:
        note_method(error, whose, method)
        raise


def hook_noted(error: BaseException) -> str | None:
    """One line on what a method of a policy or a predictor raised, where that was noted, there or in what caused this;
    else None.
    """
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(_RAISED_IN)]
    if notes:
        return f"{notes[0].removeprefix(_RAISED_IN)}: {type(error).__name__}: {error}"
    return None if error.__cause__ is None else hook_noted(error.__cause__)


class PolicyError(InputError):
    """A policy returned something the cluster cannot do. Names the policy, the hook and the value."""


class InvariantError(Exception):
    """The engine broke one of its own invariants: a bug in the framework, never the user's fault."""


@dataclass(frozen=True)
class Stuck:
    """A request that waits for ever: for which instance, and the KV that it holds on another, -1: none."""

    request: int
    place: int
    holder: int = -1
    kv_tokens: int = 0

    def __str__(self) -> str:
        holds = f"holds {self.kv_tokens:,} KV tokens on instance {self.holder} and " if self.holder >= 0 else ""
        return f"request {self.request} {holds}waits for instance {self.place}"


def stuck_error(stuck: Sequence[Stuck]) -> InvariantError:
    """What to raise where nothing can happen any more, and no plan of a policy holds these requests back."""
    shown = "; ".join(str(one) for one in stuck[:_MOST_STUCK])
    more = f"; {len(stuck) - _MOST_STUCK} more" if len(stuck) > _MOST_STUCK else ""
    return InvariantError(f"requests wait for ever: {shown}{more}")


class JobError(Exception):
    """A bug that showed in another process. The message is the traceback there."""
