"""The errors that end a run early, and the notes that they carry."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LONGEST = 80  # characters of a value that is shown
_MOST_STUCK = 8  # requests that are named


def shown(value: Any) -> str:
    """A value as text, shortened."""
    try:
        text = repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a number with more digits than Python writes, or a class whose own __repr__ fails
        return "a number of too many digits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class InputError(Exception):
    """A user's input cannot be used. One line: what, where, what to do. `run.py` prints it and exits with 2.

    Raises:
        InputError: This, by every function of `servelab`; a `PolicyError` is one too.

    Example:
        >>> servelab.run("chunked", "synthetic", rate=-1)
        Traceback (most recent call last):
        framework.errors.InputError: trace.rate must be a finite number above 0, got -1
    """


_RAISED_IN = "raised in "
_OWN = Path(__file__).parent
_LIBRARIES = ("site-packages", "dist-packages")


def note_hook(error: BaseException, policy: str, hook: str, about: str, now_s: float) -> None:
    """Note in `error` which hook raised it, about what, when in simulated time, and on which line of which file."""
    note_method(error, f"policy {policy}", f"{hook}{about} at {now_s:.6g} s")


def note_method(error: BaseException, whose: str, method: str) -> None:
    """Note in `error` which method of a policy or a predictor raised it, and on which line of which file: the line of
    the user's own code that led to it, if there is one.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_of_a_library(frame.filename)]
    frame = (own or frames)[-1]
    error.add_note(f"{_RAISED_IN}{whose}: {method}, {Path(frame.filename).name}:{frame.lineno}")


def is_of_a_library(file: str) -> bool:
    """Whether a file belongs to the framework or an installed package, not to the user."""
    parts = Path(file).parts
    if any(part in _LIBRARIES for part in parts) or Path(file).is_relative_to(_OWN):
        return True
    # Kept compiled code names the files of the checkout that compiled it.
    return any(part == _OWN.name and _OWN.joinpath(*parts[at + 1 :]).is_file() for at, part in enumerate(parts))


def instead_of(raised: BaseException) -> BaseException:
    """The exception of a method; if it would silently end a run or a sweep, an error that says so."""
    if isinstance(raised, Exception | KeyboardInterrupt):
        return raised
    if isinstance(raised, SystemExit):
        code = "" if raised.code is None else shown(raised.code)
        said = f"sys.exit({code}) would end the process"
    else:
        said = f"{type(raised).__name__} is no Exception: {text_of(raised)}"
    return RuntimeError(f"{said}; raise an exception to end the run").with_traceback(raised.__traceback__)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, one after the other."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def follows_interrupt(error: BaseException | None) -> bool:
    """Whether an interrupt led to this error: one that came during a callback or an import, or inside OmegaConf, whose
    clean-up fails then and whose error hides what it follows.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def text_of(error: BaseException) -> str:
    """The text of an error. A user's class may fail to give one."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as failed:
        return f"(its text fails with {type(failed).__name__})"


@contextmanager
def noting(whose: str, method: str) -> Iterator[None]:
    """A context that notes whose method raised, except for an InputError, which states itself what is wrong."""
    try:
        yield
    except InputError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as raised:
        error = instead_of(raised)
        note_method(error, whose, method)
        if error is raised:
            raise
        raise error from None


def hook_noted(error: BaseException) -> str | None:
    """The noted line if a method of a policy or a predictor raised, here or in a cause; None without one."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(_RAISED_IN)]
    if notes:
        return f"{notes[0].removeprefix(_RAISED_IN)}: {type(error).__name__}: {text_of(error)}"
    return None if error.__cause__ is None else hook_noted(error.__cause__)


class PolicyError(InputError):
    """A policy returned something that the cluster cannot do. Names the policy, the hook and the value."""


class InvariantError(Exception):
    """The engine broke one of its own invariants: a bug in the framework, never the user's fault."""


@dataclass(frozen=True)
class Stuck:
    """A request that waits for ever: its instance, and the KV that it holds on another, -1: none."""

    request: int
    place: int
    holder: int = -1
    kv_tokens: int = 0

    def __str__(self) -> str:
        holds = f"holds {self.kv_tokens:,} KV tokens on instance {self.holder} and " if self.holder >= 0 else ""
        return f"request {self.request} {holds}waits for instance {self.place}"


def stuck_error(stuck: Sequence[Stuck]) -> InvariantError:
    """The error of a run in which nothing can happen any more although no plan of a policy withholds these requests."""
    shown = "; ".join(str(one) for one in stuck[:_MOST_STUCK])
    more = f"; {len(stuck) - _MOST_STUCK} more" if len(stuck) > _MOST_STUCK else ""
    return InvariantError(f"requests wait for ever: {shown}{more}")


class JobError(Exception):
    """A bug in another process. The message is the traceback there."""
