"""The two streams of a run: results on stdout, a progress bar on stderr if that is a terminal."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from framework.cli.console import SafeConsole
from framework.cli.safe_text import one_line, printable

_LEAST_COLUMNS = 40  # columns below which a terminal breaks lines itself
_FILE_COLUMNS = 160  # columns of a table that goes into a file or a pipe; $COLUMNS overrides it


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


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield `report(done, total)`, which draws the bar, or None if stderr is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    counts = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *counts, console=console, transient=True) as progress:
        task = progress.add_task(label, total=None)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield report


@functools.cache
def warn_once(line: str) -> None:
    """Print a line on stderr in the colour of warnings, once in a process: the runs of a sweep repeat warnings."""
    text = one_line(line)
    Console(stderr=True).print(text, style="bold yellow", soft_wrap=True, markup=False, highlight=False)
