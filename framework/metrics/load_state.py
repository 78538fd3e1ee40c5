"""Whether a run kept up with its load: what its latencies are worth.

Under an overload by a share x the time that requests spend in the system grows by about x seconds each second, so that
every latency is a function of the run's length. That trend is read from the means over twentieths of the window.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.metrics.clock import Clock
from framework.result import STATES, Result

Floats = NDArray[np.float64]

STABLE, BACKLOGGED, OVERLOADED = "stable", "backlogged", "overloaded"
_PARTS = 20  # of the window
_LEAST_PARTS, _LEAST_REQUESTS = 10, 100  # with arrivals, and of these; with fewer nothing is said
_STUDENT = 2.1  # 97.5 % quantile of Student's distribution with _PARTS - 2 degrees of freedom
_GROWTH = 0.01  # seconds a second, from which on time in the system grows


class LoadState(NamedTuple):
    """`name`: one of the three, None where it cannot be told. `growth`: of the time that requests spend in the system,
    seconds a second, over the window; NaN where it cannot be told.
    """

    name: str | None
    growth: float


def load_state(result: Result, clock: Clock) -> LoadState:
    """Overloaded: the time in the system grows by more than 1 % of the window, beyond noise, and has at least doubled
    by its end. Backlogged: it does not, but in one of twenty parts of the window requests waited longer for their first
    step than they were served then. Stable: neither.

    Requests that were turned away count for nothing. Nothing is told of runs whose window the end of the run decides,
    and of fewer than 100 requests.
    """
    requests, window = result.requests, result.window
    stayed = clock.counted & (requests["state"] != STATES.index("rejected")) & ~np.isnan(requests["arrival_s"])
    if window is None or not clock.is_fixed or np.count_nonzero(stayed) < _LEAST_REQUESTS:
        return LoadState(None, np.nan)
    own = requests[stayed]
    spent_s = own["end_s"] - own["arrival_s"]
    waited_s = np.where(np.isnan(own["start_s"]), spent_s, own["start_s"] - own["arrival_s"])
    width_s = window.length_s / _PARTS
    part = np.clip(((own["arrival_s"] - window.start_s) / width_s).astype(np.int64), 0, _PARTS - 1)
    counts = np.bincount(part, minlength=_PARTS)
    there = counts > 0
    if np.count_nonzero(there) < _LEAST_PARTS:
        return LoadState(None, np.nan)
    means = [np.bincount(part, of, _PARTS)[there] / counts[there] for of in (spent_s, waited_s)]
    in_system_s, queued_s = np.array(means, np.float64)
    growth, error = _slope((np.flatnonzero(there) * width_s).astype(np.float64), in_system_s)
    doubled = growth * window.length_s > in_system_s.min()
    if growth - error > _GROWTH and doubled:
        return LoadState(OVERLOADED, growth)
    return LoadState(BACKLOGGED if np.any(queued_s > in_system_s - queued_s) else STABLE, growth)


def _slope(x: Floats, y: Floats) -> tuple[float, float]:
    """Of the least-squares line, and the half width of its 95 % interval."""
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    rest = y - slope * x
    return slope, _STUDENT * float(np.sqrt(rest @ rest / (len(x) - 2) / (x @ x)))
