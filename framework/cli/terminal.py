"""The two streams of a command: results on stdout, and on stderr lines about them and how far a long command is.

That is one line, which a terminal rewrites and a file gets seldom. All commands that take long report here. Others can
listen too: sweeps and studies tell a store what runs (`framework.run.live`).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from rich.console import Console
from rich.live import Live
from rich.text import Text

from framework.cli.console import SafeConsole
from framework.cli.safe_text import one_line, printable

_LEAST_COLUMNS = 40  # columns below which a terminal breaks lines itself
_FILE_COLUMNS = 160  # columns of a table that goes into a file or a pipe; $COLUMNS overrides it
_BEAT_S = 1.0
_REPORTS, _APART_S = 32, 0.5  # reports that a rate is taken from, and the least time between two of them
_FIRST_LINE_S, _MOST_PAUSE_S = 30.0, 600.0  # outside a terminal: the pause before the first line, and the longest one
_BAR = 12


def results_console() -> Console:
    """The console for results, on stdout: as wide as the terminal."""
    console = SafeConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_COLUMNS
    console.width = max(console.width, _LEAST_COLUMNS)
    return console


def tell(line: str) -> None:
    """Print a line on stderr: where results are, and anything else that is no result."""
    print(printable(line), file=sys.stderr)


@functools.cache
def warn_once(line: str) -> None:
    """Print a line on stderr in the colour of warnings, once in a process: the runs of a sweep repeat warnings."""
    text = one_line(line)
    Console(stderr=True).print(text, style="bold yellow", soft_wrap=True, markup=False, highlight=False)


# --- how far a command is --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """`done` of `total` (0: unknown), of which `failed`; the `best` result so far, in words.

    `gone_s`: seconds since the beginning; `left_s`: those that are left, -1 while unknown.
    """

    done: int = 0
    total: int = 0
    failed: int = 0
    best: str = ""
    gone_s: float = 0.0
    left_s: float = -1.0


Listener = Callable[[Standing], None]
Report = Callable[[int, int, int, str], None]  # what is done, of how much, what of it failed, the best so far


class Progress:
    """Takes reports, and passes the last one on with each, and every second in between."""

    def __init__(self, listeners: tuple[Listener, ...]) -> None:
        self._listeners = listeners
        self._began_s = time.monotonic()
        self._standing = Standing()
        self._reports: deque[tuple[float, int]] = deque(maxlen=_REPORTS)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def __call__(self, done: int, total: int, failed: int = 0, best: str = "") -> None:
        """Report `done` of `total`, of which `failed`, and the best result so far in words."""
        now_s = time.monotonic()
        if not self._reports or now_s - self._reports[-1][0] >= _APART_S:
            self._reports.append((now_s, done))
        (first_s, before), rest = self._reports[0], total - done
        left_s = (now_s - first_s) * rest / (done - before) if done > before and total else -1.0
        self._pass_on(replace(self._standing, done=done, total=total, failed=failed, best=best, left_s=left_s))

    def end(self) -> None:
        """Pass nothing on any more."""
        self._ended.set()
        self._thread.join()

    def _pass_on(self, standing: Standing) -> None:
        with self._lock:
            self._standing = replace(standing, gone_s=time.monotonic() - self._began_s)
            for listener in self._listeners:
                listener(self._standing)

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            if self._reports:
                left_s = self._standing.left_s
                self._pass_on(replace(self._standing, left_s=max(0.0, left_s - _BEAT_S) if left_s >= 0 else left_s))


@contextmanager
def progress_line(label: str, unit: str = "", *listeners: Listener) -> Iterator[Progress]:
    """Show the reports of a command, which counts `unit` (runs), and pass them to `listeners` too."""
    console = Console(stderr=True)
    with ExitStack() as shown:
        line: Listener
        if console.is_terminal:
            live = Live(console=console, transient=True, redirect_stdout=sys.stdout.isatty(), refresh_per_second=4)
            shown.enter_context(live)
            line = _Rewritten(live, label, unit)
        else:
            line = _Seldom(label, unit)
        progress = Progress((line, *listeners))
        shown.callback(progress.end)
        yield progress


class _Rewritten:
    """The line of a terminal."""

    def __init__(self, live: Live, label: str, unit: str) -> None:
        self._live, self._label, self._unit = live, label, unit

    def __call__(self, standing: Standing) -> None:
        line = fitted(self._label, self._unit, standing, self._live.console.width - 1)
        self._live.update(Text(line, no_wrap=True, overflow="crop"))


class _Seldom:
    """Lines of a file: the first after half a minute, the others after pauses of twice the length."""

    def __init__(self, label: str, unit: str) -> None:
        self._label, self._unit = label, unit
        self._pause_s = self._next_s = _FIRST_LINE_S

    def __call__(self, standing: Standing) -> None:
        if standing.gone_s >= self._next_s:
            self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
            self._next_s = standing.gone_s + self._pause_s
            print(one_line(f"{self._label}: {words(self._unit, standing)}"), file=sys.stderr, flush=True)


def fitted(label: str, unit: str, standing: Standing, columns: int) -> str:
    """The line with what finds room: what is done and how long it takes, the best result, the label, a bar."""
    short = words(unit, replace(standing, best=""))
    full = words(unit, standing)
    filled = round(_BAR * standing.done / standing.total) if standing.total else 0
    bar = "━" * filled + "─" * (_BAR - filled)
    lines = (f"{label} {bar} {full}", f"{label}: {full}", f"{bar} {full}", full, f"{bar} {short}", short)
    return next((line for line in lines if len(line) <= columns), short[:columns])


def words(unit: str, standing: Standing) -> str:
    """`12 of 40 runs, 1 failed, best so far goodput 4.50 req/s, 2 min left`."""
    counted = f"{standing.done:,} of {standing.total:,}" if standing.total else f"{standing.done:,}"
    left = f"{duration(standing.left_s)} left" if standing.left_s >= 0 else f"for {duration(standing.gone_s)}"
    failed = f"{standing.failed:,} failed" if standing.failed else ""
    best = f"best so far {standing.best}" if standing.best else ""
    return ", ".join(part for part in (f"{counted} {unit}".rstrip(), failed, best, left) if part)


def duration(seconds: float) -> str:
    """`2 h 5 min`, `3 min`, `40 s`."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if seconds >= 99.5 else f"{seconds:.0f} s"
