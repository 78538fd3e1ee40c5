"""Draws for random runs: much quicker than those of Hypothesis, and the same for a seed every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

T = TypeVar("T")
_AT_ONCE = 512
_GOLDEN = (5**0.5 - 1) / 2


class Draw:
    """What is drawn from one seed, in the order of asking."""

    def __init__(self, *seed: int) -> None:
        self._seed, self._apart = seed, 0
        self._rng = np.random.default_rng(seed)
        self._shares: list[float] = []

    def apart(self) -> Draw:
        """Draws of their own, each time others, which change nothing of what is drawn here."""
        self._apart += 1
        return Draw(*self._seed, self._apart)

    def share(self) -> float:
        """A number from 0 to 1, 1 excluded."""
        if not self._shares:
            self._shares = self._rng.random(_AT_ONCE).tolist()
        return self._shares.pop()

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self.share() * (high - low + 1))

    def integers(self, low: int, high: int, count: int) -> list[int]:
        """So many of them."""
        return [self.integer(low, high) for _ in range(count)]

    def real(self, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        return low + (high - low) * self.share()

    def chance(self, share: float) -> bool:
        """True in that share of all cases."""
        return self.share() < share

    def one(self, options: Sequence[T]) -> T:
        """One of `options`, all of which are as likely."""
        return options[int(self.share() * len(options))]

    def dyadic(self, low: int, high: int, exponent: int) -> float:
        """A multiple of 2^exponent, of which sums and products with whole numbers are exact."""
        return self.integer(low, high) * 2.0**exponent

    def amount(self, exact: bool, low: int, high: int, exponent: int) -> float:
        """As `dyadic`, or a float spread over the same range so that sums of them hardly ever meet."""
        if exact:
            return self.dyadic(low, high, exponent)
        return (low + (high - low) * (self.integer(1, 10**6) * _GOLDEN % 1.0)) * 2.0**exponent

    def some(self, exact: bool, low: int, high: int, exponent: int) -> float:
        """As `amount`, and 0 in half of all cases."""
        return self.amount(exact, low, high, exponent) if self.chance(0.5) else 0.0


def each(family: Callable[..., T], **arguments: Any) -> st.SearchStrategy[T]:
    """What `family(draw, ...)` makes of seeds that Hypothesis draws."""
    return st.integers(0, 2**32 - 1).map(lambda seed: family(Draw(seed), **arguments))
