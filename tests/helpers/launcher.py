"""Commands as their users start them, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.validation.__main__ import main as validation
from servelab.__main__ import main


def typed(*name: str) -> Callable[[Sequence[str]], int]:
    """A command that takes its words and gives the exit code: `servelab NAME`, or one of `experiments.validation`."""
    if name[0] == "validation":
        return lambda words: validation.finish([*name[1:], *words], "python -m experiments.validation")
    return lambda words: main([*name, *words])
