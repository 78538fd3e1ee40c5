"""No predictor: a policy's questions get NaN."""

from __future__ import annotations


def none() -> None:
    """The target of `predictor=none`."""
    return
