"""What the micro-benchmark needs of a GPU, and how it repeats a timing until that is precise."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from framework.timing.microbench.cases import Case

REASON_LETTERS = 90  # most letters of a message of a library or a process


class OutOfMemoryError(Exception):
    """The case does not fit in the GPU's memory."""


class UnsupportedError(Exception):
    """The case cannot run on this machine; the message says why in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason[:REASON_LETTERS])


@dataclass(frozen=True)
class Measured:
    """The seconds of one call, as median and interquartile range over repeats, and the kernel that ran."""

    latency_s: float
    spread_s: float
    kernel: str


class Timed(Protocol):
    """A prepared case. `kernel` names the library or kernel that runs."""

    @property
    def kernel(self) -> str: ...

    def sample(self) -> float:
        """The seconds of one call, as the mean over one replay. Raises OutOfMemoryError or UnsupportedError."""
        ...

    def release(self) -> None:
        """Free the memory of the case."""
        ...


class Device(Protocol):
    """A GPU that can time cases."""

    @property
    def origin(self) -> Mapping[str, str | int | float]:
        """The origin of a table: `device`, `memory_bytes`, `version` of the library, and more."""
        ...

    def clocks_mhz(self) -> Mapping[str, float]:
        """The present clocks in MHz, by name; empty if they cannot be read."""
        ...

    def prepare(self, case: Case) -> Timed:
        """Prepare a case. Raises OutOfMemoryError or UnsupportedError."""
        ...

    def close(self) -> None:
        """End all processes that were started."""
        ...


@dataclass(frozen=True)
class Repeats:
    """How often a case is timed: until the interquartile range is below `spread` of the median, or up to a cap.

    The first `warm_up` samples are dropped. Then at least `least` and at most `most` are taken, and once there are
    `least`, none is begun after `seconds`.
    """

    warm_up: int = 3
    least: int = 10
    most: int = 100
    spread: float = 0.02
    seconds: float = 5.0

    def time(self, timed: Timed, clock: Callable[[], float] = time.monotonic) -> Measured:
        """The median and interquartile range of samples of `timed`, in seconds; `clock()` gives the seconds."""
        for _ in range(self.warm_up):
            timed.sample()
        started = clock()
        samples: list[float] = []
        while len(samples) < self.least or not self._is_enough(samples, clock() - started):
            samples.append(timed.sample())
        return Measured(float(np.median(samples)), _range(samples), timed.kernel)

    def _is_enough(self, samples: Sequence[float], passed_s: float) -> bool:
        steady = _range(samples) < self.spread * float(np.median(samples))
        return steady or len(samples) >= self.most or passed_s >= self.seconds


def _range(samples: Sequence[float]) -> float:
    low, high = np.percentile(samples, [25, 75])
    return float(high - low)
