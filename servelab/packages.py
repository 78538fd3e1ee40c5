"""Packages that some commands need."""

from __future__ import annotations

from importlib.util import find_spec


def is_installed(name: str) -> bool:
    """Whether a package can be imported."""
    try:
        return find_spec(name) is not None
    except ValueError:  # a module that something has set to None
        return False
