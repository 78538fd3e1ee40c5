"""The two streams of a command: results on stdout, lines about them on stderr."""

from __future__ import annotations

import functools
import os
import sys

from rich.console import Console

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


@functools.cache
def warn_once(line: str) -> None:
    """Print a line on stderr in the colour of warnings, once in a process: the runs of a sweep repeat warnings."""
    text = one_line(line)
    Console(stderr=True).print(text, style="bold yellow", soft_wrap=True, markup=False, highlight=False)
