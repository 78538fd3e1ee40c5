"""Contexts in which the suite plays a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def titled(scenario: str, cluster: str) -> Iterator[None]:
    """Add to an error in a run which run it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"scenario {scenario!r} on cluster {cluster!r} (servelab.testing.worlds)")
        raise


@contextmanager
def eager_thread_switches() -> Iterator[None]:
    """Let threads of Python take turns a hundred times as often as usual."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)
