"""Commands as their users start them, `servelab NAME ...`, and sweeps of theirs, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from framework.run.sweep import Sweep
from servelab.__main__ import main


def typed(*name: str) -> Callable[[Sequence[str]], int]:
    """A command that takes its words and gives the exit code."""
    return lambda words: main([*name, *words])


def in_this_process(overrides: Sequence[str], directory: Path) -> Sweep:
    """Workers take longer to start than runs that are short."""
    return Sweep([word for word in overrides if not word.startswith("hydra/launcher")], directory)
