"""How two streams of one instance, one that prefills and one that decodes, share its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError
from framework.validate import require_at_least, require_count

WHOLE = 100  # percent


@dataclass(frozen=True)
class Sharing:
    """Streams run on disjoint sets of streaming multiprocessors (SMs), `prefill_percent` of which are the prefills'
    until a plan says otherwise.

    `prefill_slowdown`, `decode_slowdown`: how many times as long a step takes on so many percent of the SMs as on all,
    linear between the points given, in proportion below the first. With `contention` decode attention has less than the
    whole memory bandwidth while a prefill step runs. Raises InputError for a value out of range.
    """

    prefill_percent: int = 50
    prefill_slowdown: Mapping[int, float] = field(default_factory=lambda: {WHOLE: 1.0})
    decode_slowdown: Mapping[int, float] = field(default_factory=lambda: {WHOLE: 1.0})
    contention: bool = True

    def __post_init__(self) -> None:
        require_percent("engine.sharing.prefill_percent", self.prefill_percent)
        for name in ("prefill_slowdown", "decode_slowdown"):
            _check_points(f"engine.sharing.{name}", getattr(self, name))
        if not isinstance(self.contention, bool):
            raise InputError(f"engine.sharing.contention must be true or false, got {self.contention!r}")

    def slowdowns(self) -> NDArray[np.float64]:
        """Of prefill and decode steps by the percent of the SMs that they have, shape (2, 101); inf at 0."""
        return np.stack([_by_percent(self.prefill_slowdown), _by_percent(self.decode_slowdown)])


def require_percent(name: str, value: object) -> None:
    """Raise InputError unless it leaves both streams a whole percent at least."""
    require_count(name, value)
    if value >= WHOLE:  # type: ignore[operator]
        raise InputError(f"{name} must be from 1 to {WHOLE - 1}, got {value!r}")


def _check_points(name: str, points: Mapping[int, float]) -> None:
    if not isinstance(points, Mapping) or WHOLE not in points:
        raise InputError(f"{name} must be slowdowns by percent of the SMs, as {{25: 2.0, 100: 1.0}}; got {points!r}")
    for percent, factor in points.items():
        require_count(f"{name}: a percent", percent)
        require_at_least(f"{name} at {percent} %", factor, 1)
    factors = [points[percent] for percent in sorted(points)]
    if max(points) > WHOLE or points[WHOLE] != 1 or factors != sorted(factors, reverse=True):
        raise InputError(f"{name} must not rise with the percent and end with 1 at {WHOLE}, got {dict(points)!r}")


def _by_percent(points: Mapping[int, float]) -> NDArray[np.float64]:
    knots = sorted(points)
    percents = np.arange(1.0, WHOLE + 1)
    factors = np.interp(percents, knots, [points[knot] for knot in knots])
    factors *= np.maximum(knots[0] / percents, 1.0)
    return np.insert(factors, 0, np.inf)
