"""Commands as their users start them: `servelab NAME ...`, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from servelab.__main__ import main


def typed(*name: str) -> Callable[[Sequence[str]], int]:
    """A command that takes its words and gives the exit code."""
    return lambda words: main([*name, *words])
