"""How results call the parts of a run."""

from __future__ import annotations

_ONE_FILE_EACH = ("policies", "predictors")


def given_name(kind: type) -> str:
    """The module's name for a class that lives in a file of its own in policies/ or predictors/, else the class's."""
    package, _, module = kind.__module__.rpartition(".")
    return module if package in _ONE_FILE_EACH else kind.__name__
