"""Lines that stay visible where they are equal: each is thinner, and its marks are smaller, than the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_THIN, _SMALL = 1.6, 3.0  # pixels, of the last line and its marks
_WIDER, _LARGER = (1.5, 4.5), (1.1, 4.0)  # pixels from a line to the one below it, and in all


@dataclass(frozen=True)
class Trend:
    """Points (N,) joined in order, from `low` to `high` over repetitions; `hollow` ones stand apart; `behind`: words
    for each.
    """

    xs: Floats
    ys: Floats
    low: Floats
    high: Floats
    hollow: NDArray[np.bool_]
    behind: Sequence[str]


def _polygon(corners: int, turned: float = 0.0) -> str:
    angles = 2 * np.pi * (np.arange(corners) / corners + turned) - np.pi / 2
    return "M" + "L".join(f"{np.cos(one):.3f} {np.sin(one):.3f}" for one in angles) + "Z"


_STAR = "M0 -1L.26 -.3L.95 -.31L.42 .12L.59 .81L0 .4L-.59 .81L-.42 .12L-.95 -.31L-.26 -.3Z"
# in the order of the legend's signs, whose style is in `style.py`
MARKS = (
    _polygon(16), _polygon(4, 0.125), _polygon(3), _polygon(4), _polygon(3, 0.5), _polygon(5), _polygon(6), _STAR,
)  # fmt: skip


def width(number: int, count: int) -> float:
    """Of the line `number` of `count`, in pixels."""
    return _THIN + (count - 1 - number) * min(_WIDER[0], _WIDER[1] / max(count - 1, 1))


def radius(number: int, count: int) -> float:
    """Of the marks of the line `number` of `count`, in pixels."""
    return _SMALL + (count - 1 - number) * min(_LARGER[0], _LARGER[1] / max(count - 1, 1))
