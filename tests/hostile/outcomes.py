"""What became of one hostile case: it succeeded, it was refused in one line, or it went wrong."""

from __future__ import annotations

import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from types import FrameType

from framework.cli.explain import explain

LIMIT_S = 20.0
_LONGEST_LINE = 2_000
SUCCESS, REFUSED, TRACEBACK, HANG, SILENT = "success", "refused", "traceback", "hang", "silent"
GOOD = (SUCCESS, REFUSED)


@dataclass(frozen=True)
class Outcome:
    """One of the kinds above, and the line of a refusal or the end of a traceback."""

    kind: str
    detail: str = ""

    @property
    def is_good(self) -> bool:
        return self.kind in GOOD


class _TooLongError(BaseException):
    """Raised in a case that lasts longer than its limit; no `except Exception` of the code under test stops it."""


class NonsenseError(Exception):
    """Raised by a case whose input was accepted and must not be."""


def outcome_of(case: Callable[[], object], limit_s: float = LIMIT_S) -> Outcome:
    """What becomes of a case. A numeric overflow that only warns counts as silent, as a `NonsenseError` does."""
    try:
        with _limited(limit_s), warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)
            case()
    except _TooLongError as error:
        return Outcome(HANG, _end(error))
    except (NonsenseError, RuntimeWarning) as error:
        return Outcome(SILENT, _end(error))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return _judged(error)
    return Outcome(SUCCESS)


def _judged(error: BaseException) -> Outcome:
    line = explain(error)
    if line is None:
        return Outcome(TRACEBACK, _end(error))
    if not line.strip() or len(line.splitlines()) != 1 or len(line) > _LONGEST_LINE or not line.isprintable():
        return Outcome(TRACEBACK, f"not one clear line: {line[:200]!r}")
    return Outcome(REFUSED, line)


def _end(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else "?"
    return f"{type(error).__name__}: {str(error)[:200]} at {place}"


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer; in the main thread only, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLongError(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
