"""What a user should know of a trace, said once in a process: the runs of a sweep read one trace many times."""

from __future__ import annotations

import functools

from rich.console import Console

from framework.cli.safe_text import one_line


@functools.cache
def warn_once(line: str) -> None:
    """Print a line on stderr, in the colour of warnings."""
    text = one_line(line)
    Console(stderr=True).print(text, style="bold yellow", soft_wrap=True, markup=False, highlight=False)
