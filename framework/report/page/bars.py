"""Horizontal bars: the goodput of runs with intervals, the best one marked, and shares that sum to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.report.numbers import number
from framework.report.page.markup import text

Floats = NDArray[np.float64]
BEST = "▸"


@dataclass(frozen=True)
class Bar:
    """The goodput of `label` in requests/s, half the width of its 95 % interval (NaN: none), and more words of it."""

    label: str
    goodput: float
    half_width: float
    words: str
    is_best: bool = False

    @property
    def high(self) -> float:
        """The end of the interval."""
        return self.goodput + (self.half_width if np.isfinite(self.half_width) else 0.0)

    @property
    def said(self) -> str:
        """`▸ chunked: 112 requests/s (± 3.1), 89.4 % kept the SLO`."""
        sign = f"{BEST} " if self.is_best else ""
        width = f" (± {number(self.half_width)})" if varies(self.half_width, self.goodput) else ""
        return f"{sign}{self.label}: {number(self.goodput)} requests/s{width}, {self.words}"


def varies(half_width: float, value: float) -> bool:
    """Whether there is an interval of more width than rounding gives it."""
    return bool(half_width > 1e-9 * abs(value))


def ranking(title: str, bars: Sequence[Bar]) -> str:
    """The bars below each other, on one scale from 0."""
    most = max((one.high for one in bars), default=0.0) or 1.0
    rows = "".join(
        f'<div class="bar ranked"><span>{text(one.said)}</span><div class="rank">'
        f'<i class="{"f0" if one.is_best else "none"}" style="width:{100 * one.goodput / most:.2f}%"></i>'
        f"{_whisker(one, most)}</div></div>"
        for one in bars
    )
    return f'<div role="img" aria-label="{text(title)}">{rows}</div>'


def _whisker(one: Bar, most: float) -> str:
    if not varies(one.half_width, one.goodput):
        return ""
    low = max(0.0, one.goodput - one.half_width)
    return f'<u style="left:{100 * low / most:.2f}%;width:{100 * (one.high - low) / most:.2f}%"></u>'


def stacked_bars(title: str, names: Sequence[str], shares: Floats, kinds: Sequence[str]) -> str:
    """Horizontal bars, one for each name, of parts that sum to 1: `shares` (names, parts)."""
    rows = []
    for name, row in zip(names, shares, strict=True):
        parts = "".join(
            f'<i class="{text(kind)}" style="width:{100 * value:.2f}%" title="{100 * value:.1f} %"></i>'
            for value, kind in zip(row, kinds, strict=True)
            if value > 0
        )
        rows.append(f'<div class="bar"><span>{text(name)}</span><div>{parts}</div></div>')
    return f'<div role="img" aria-label="{text(title)}">{"".join(rows)}</div>'
