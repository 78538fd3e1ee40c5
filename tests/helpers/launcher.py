"""Commands as their users start them, and sweeps of theirs, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.validation.__main__ import main as validation
from framework.run.sweep import Sweep
from servelab.__main__ import main


def typed(*name: str) -> Callable[[Sequence[str]], int]:
    """A command that takes its words and gives the exit code: `servelab NAME`, or one of `experiments.validation`."""
    if name[0] == "validation":
        return lambda words: validation.finish([*name[1:], *words], "python -m experiments.validation")
    return lambda words: main([*name, *words])


def in_this_process(overrides: Sequence[str], directory: Path) -> Sweep:
    """Workers take longer to start than runs that are short."""
    return Sweep([word for word in overrides if not word.startswith("hydra/launcher")], directory)
