"""No predictor: what a policy asks for is NaN."""

from __future__ import annotations


def none() -> None:
    """The target of `predictor=none`."""
    return
