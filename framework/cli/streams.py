"""Standard output and standard error as a command finds them: closed, full, or without a reader."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

from framework.cli.safe_text import one_line
from framework.errors import InputError, chain

CLOSED = "stdout is closed; send it to a file, or to /dev/null"


def has_streams() -> bool:
    """Whether there is an output for results. A closed one would become the next file that is opened."""
    closed = [number for number, stream in enumerate((sys.stdout, sys.stderr), 1) if stream is None]
    for number in closed:
        empty = os.open(os.devnull, os.O_WRONLY)
        if empty != number:
            os.dup2(empty, number)
            os.close(empty)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        report_error(CLOSED)
    return 1 not in closed


def reader_has_gone(error: Exception) -> bool:
    """Whether an error comes from an output without a reader, as in `run.py | head`, even in a hook that printed."""
    if not any(isinstance(link, BrokenPipeError) for link in chain(error)):
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # POLLERR, which says that a pipe has no reader, is always reported
    return bool(poll.poll(0))


def drop_output() -> None:
    """Discard all further output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush_output() -> None:
    """Write out what was printed. Raises InputError if a policy has replaced the output, ValueError if it is closed."""
    if sys.stdout is None:
        raise InputError(CLOSED)
    sys.stdout.flush()


def drop_unwritable_output() -> None:
    """Discard all output to a stream that takes nothing: Python would try again at its end."""
    try:
        flush_output()
    except (InputError, ValueError):  # a policy has closed it, or set it to None
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    except OSError:
        drop_output()


def report_error(line: str) -> None:
    """Print `line` to stderr as the one line about a mistake."""
    with suppress(InputError, OSError, ValueError):
        flush_output()
    with suppress(OSError, ValueError):  # There is nowhere left to report it.
        print(f"error: {one_line(line)}", file=sys.stderr, flush=True)
