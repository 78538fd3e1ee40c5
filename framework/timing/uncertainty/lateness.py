"""Requests that reach the scheduler late: a random part of what a front end and its clients do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.timing.step_row import StepRow

_STREAM = 0x1A7E  # of the run's seed: other draws of the run have others
_TICK_S = 2.0**-20  # delays are multiples of it, so sums with dyadic times are exact


def lateness_s(row: StepRow, requests: int, seed: int) -> NDArray[np.float64]:
    """By how many seconds each request is late, (N,), by its number in the trace; (0,) if none is.

    A share `late_share` of the requests is late, by exponentially distributed times of mean `late_s`.
    """
    if row.late_share * row.late_s == 0.0:
        return np.zeros(0)
    rng = np.random.default_rng([seed % 2**32, _STREAM])
    late: NDArray[Any] = rng.random(requests) < row.late_share
    return np.where(late, np.rint(rng.exponential(row.late_s, requests) / _TICK_S) * _TICK_S, 0.0)
