"""Messages on stderr during compilation: one line at once, and on a terminal the progress."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core import event

_LINE = "compiling, once for this code: about half a minute for the engine, a second for the rules of a policy"
_INNER = re.compile(r"^@(inner|either)\b", re.MULTILINE)
_MANY = 100  # inner functions: fewer are compiled before anybody could read the progress
_START_OF_LINE, _REST_ERASED = "\r", "\x1b[K"


@functools.cache
def tell_of_compiling() -> None:
    """Say once why nothing else happens for a while."""
    print(_LINE, file=sys.stderr, flush=True)


def tell_of_waiting() -> None:
    """Say that another process compiles the same code."""
    print("waiting for another process, which compiles the same code", file=sys.stderr, flush=True)


@contextmanager
def progress(sources: Iterable[Path]) -> Iterator[None]:
    """Show on a terminal how many of the inner functions in these files are compiled, if there are many."""
    if not sys.stderr.isatty():
        yield
        return
    functions = sum(len(_INNER.findall(source.read_text())) for source in sources)
    if functions < _MANY:
        yield
        return
    with event.install_listener("numba:compile", _Counter(functions)):
        try:
            yield
        finally:
            _rewrite("")


class _Counter(event.Listener):
    """Rewrites one line after each compiled function."""

    def __init__(self, functions: int) -> None:
        self._functions, self._done = functions, 0

    def on_start(self, event: Any) -> None:
        """Nothing is done yet."""

    def on_end(self, event: Any) -> None:
        """Count one more. After the last one their code is optimised together."""
        self._done += 1
        if self._done < self._functions:
            _rewrite(f"compiling: {self._done} of about {self._functions} functions")
        else:
            _rewrite("compiling: all functions are read, their machine code is made")


def _rewrite(line: str) -> None:
    print(f"{_START_OF_LINE}{line}{_REST_ERASED}", end="", file=sys.stderr, flush=True)
