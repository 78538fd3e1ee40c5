"""Changing arrival rates: a ramp from one rate to another, and a swing with the time of day."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.checks import NotNegative, Positive, check_fields, require_positive
from framework.errors import InputError
from traces.settings import Rate

Floats = NDArray[np.float64]

_HALVINGS = 60  # halvings of an arrival's interval: down to the last bits of a float


@dataclass(frozen=True)
class ChangingRate:
    """A rate of `rate` arrivals per second at first and `end_rate` after `ramp_s` seconds, linear between.

    A swing multiplies it by 1 + `swing` * cos(2 pi (t - `peak_s`) / `period_s`): 0.5 means half as many more at the
    peak, and half as many fewer in the valley, as on average.
    """

    rate: Rate
    end_rate: Rate | None = None
    ramp_s: NotNegative = 0.0
    swing: NotNegative = 0.0
    period_s: Positive = 86400.0
    peak_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "arrivals: ")
        if self.swing >= 1:
            raise InputError(f"arrivals: swing is {self.swing:g}, must be below 1")
        if self.end_rate is not None:
            require_positive("arrivals: ramp_s, with an end_rate,", self.ramp_s)

    @property
    def is_constant(self) -> bool:
        """Whether the rate is constant."""
        return self.swing == 0.0 and self.end_rate in (None, self.rate)

    def times_s(self, expected: Floats) -> Floats:
        """The times by which these numbers of arrivals are expected, from 0 and rising; shape (n,)."""
        low = np.zeros(len(expected))
        slowest = min(self.rate, self.rate if self.end_rate is None else self.end_rate)
        high = np.full(len(expected), expected[-1] / (slowest * (1.0 - self.swing)) if len(expected) else 0.0)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            is_late = self.expected(middle) >= expected
            high = np.where(is_late, middle, high)
            low = np.where(is_late, low, middle)
        return np.where(expected > 0.0, high, 0.0)

    def expected(self, time_s: Floats) -> Floats:
        """Arrivals expected by a time: the integral of the rate; shape (n,)."""
        if self.end_rate is None:
            return self.rate * (time_s + self.swing * self._waves(time_s))
        steepness = (self.end_rate - self.rate) / self.ramp_s
        ramp_s = np.minimum(time_s, self.ramp_s)
        after_s = time_s - ramp_s
        straight = self.rate * ramp_s + 0.5 * steepness * ramp_s**2 + self.end_rate * after_s
        # by parts: the integral of (rate + steepness t) cos(...) over the ramp
        waves = (self.rate + steepness * ramp_s) * self._waves(ramp_s) - steepness * self._waves_of_waves(ramp_s)
        waves += self.end_rate * (self._waves(time_s) - self._waves(ramp_s))
        return straight + self.swing * waves

    def _waves(self, time_s: Floats) -> Floats:
        """The integral of cos(2 pi (t - peak_s) / period_s) from 0 on."""
        turn = 2.0 * np.pi / self.period_s
        return (np.sin(turn * (time_s - self.peak_s)) + np.sin(turn * self.peak_s)) / turn

    def _waves_of_waves(self, time_s: Floats) -> Floats:
        """The integral of that from 0 on."""
        turn = 2.0 * np.pi / self.period_s
        whole = np.cos(turn * self.peak_s) - np.cos(turn * (time_s - self.peak_s))
        return (whole / turn + np.sin(turn * self.peak_s) * time_s) / turn
