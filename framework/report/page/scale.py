"""Axes: from values to positions, and the values that get a tick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_TICKS = 5
_WIDE = 30.0  # largest / smallest from which an axis is logarithmic
_FEW_DECADES, _MANY_DECADES = 2.0, 3.5  # decades from which ticks are fewer, and only at powers of ten


@dataclass(frozen=True)
class Scale:
    """A scale from `low`..`high` to 0..1; logarithmic if `log`."""

    low: float
    high: float
    log: bool = False

    def __call__(self, values: Floats | Sequence[float]) -> Floats:
        given = np.asarray(values, np.float64)
        if not self.log:
            return (given - self.low) / (self.high - self.low)
        place: Floats = np.log(np.maximum(given, self.low) / self.low) / math.log(self.high / self.low)
        return place

    @property
    def ticks(self) -> list[float]:
        return self._log_ticks() if self.log else self._even_ticks()

    def _even_ticks(self) -> list[float]:
        step = nice((self.high - self.low) / _TICKS)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        wide = math.log10(self.high / self.low)
        parts = [1.0, 2.0, 5.0] if wide < _FEW_DECADES else [1.0, 3.0] if wide < _MANY_DECADES else [1.0]
        every = [part * 10.0**decade for decade in decades for part in parts]
        return [value for value in every if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]


def nice(value: float) -> float:
    """The smallest of 1, 2, 5, 10, ... that is at least `value`."""
    base = 10.0 ** math.floor(math.log10(value))
    return next(part * base for part in (1.0, 2.0, 5.0, 10.0) if part * base >= value * (1 - 1e-9))


def from_zero(values: Floats) -> Scale:
    """A linear scale from 0 to a little beyond the largest value."""
    finite = values[np.isfinite(values)]
    highest = float(finite.max(initial=0.0))
    return Scale(0.0, 1.04 * highest if highest > 0 else 1.0)


def fitting(values: Floats) -> Scale:
    """A logarithmic scale if the range of values is wide, else a linear one from 0."""
    above = values[np.isfinite(values) & (values > 0)]
    if len(above) == 0 or above.max() < _WIDE * above.min():
        return from_zero(values)
    return Scale(float(above.min()) / 1.1, float(above.max()) * 1.1, log=True)


def tick_text(value: float, ticks: Sequence[float] = ()) -> str:
    """The value with as many decimals as distinguish ticks; thousands as k, millions as M."""
    largest = max((abs(tick) for tick in ticks), default=abs(value))
    for factor, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= factor and largest >= factor:
            return f"{value / factor:.6g}{letter}"
    return f"{value:.6g}"
