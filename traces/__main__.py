"""Traces from the command line.

    python -m traces fetch [NAME]           download a public trace, or list what there is
    python -m traces describe NAME|FILE     show what a trace looks like, alone or beside its twin
    python -m traces fit FILE               fit a twin to a trace

Each has a --help of its own.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from framework.cli.launch import guard
from framework.errors import InputError

COMMANDS = ("fetch", "describe", "fit")


def main(words: Sequence[str]) -> int:
    """Hand the words after the first to the command that it names; the exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    name, *arguments = words
    if name not in COMMANDS:
        raise InputError(f"python -m traces {name}: there is no such command; choose one of {', '.join(COMMANDS)}")
    code: int = importlib.import_module(f"traces.{name}").main(arguments)
    return code


if __name__ == "__main__":
    sys.exit(guard(lambda: main(sys.argv[1:])))
