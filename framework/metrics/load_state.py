"""Whether a run kept up with its load, and so what its latencies are worth.

Under an overload by a share x the time in the system grows by about x seconds each second, so every latency depends on
the length of the run. The means over twentieths of the window show that trend. The wait for the first step is tested as
well: once requests no longer arrive, the last ones are served faster. That hides a part of the growth of their whole
time, but not of their wait.

A system may also keep up for most of the window and then fall behind, for example when KV memory fills. No line fits
that, so the end of the window has its own test: there the wait is longer than ever before and rises from part to part,
as one series in 6,840 of random order does. A burst of arrivals has the same effect. If the wait grows by g seconds a
second, the system serves the rate of these arrivals / (1 + g); the burst is worked off if that exceeds the rate over
all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.metrics.clock import Clock
from framework.result import STATES, Result

Floats = NDArray[np.float64]

STABLE, BACKLOGGED, OVERLOADED = "stable", "backlogged", "overloaded"
_PARTS = 20  # parts of the window
_LEAST_PARTS, _LEAST_REQUESTS = 10, 100  # least parts with arrivals, least requests in a part
_STUDENT = 2.1  # 97.5 % quantile of Student's distribution with _PARTS - 2 degrees of freedom
_GROWTH = 0.01  # seconds a second, from which on time in the system counts as growing
_LAST = 3  # parts at the end of the window


class LoadState(NamedTuple):
    """`name`: one of the three states, None if it cannot be determined.

    `growth`: growth, in seconds a second, of the time that requests spend in the system, or of their wait for the first
    step if an overload shows only there. It is over the window, or over the end if an overload shows only there. NaN if
    it cannot be determined.
    """

    name: str | None
    growth: float


def load_state(result: Result, clock: Clock) -> LoadState:
    """Whether a run is overloaded, backlogged or stable.

    1. Overloaded, by trend (`_keeps_growing`): the time that requests spend in the system, or wait for their first
       step, grows by more than 1 % of the window, beyond noise. It has at least doubled by the end of the window, and
       grows by as much in its later half: a system that only fills up comes to rest, and a burst is worked off.
    2. Overloaded, at the end (`_grows_at_last`): the wait has grown by as much in the last parts alone, by more than a
       burst of arrivals explains.
    3. Backlogged: neither, but in one of twenty parts of the window requests waited longer for their first step than
       they were served then.
    4. Stable: none of these.

    In a short window (`Clock.is_short`) only growth of the wait for the first step counts. Rejected requests do not
    count, nor do turns of sessions sent after the window. The state is None for a run whose window the end of the run
    decides, and for fewer than 100 requests.
    """
    requests, window = result.requests, result.window
    if window is None or not clock.is_fixed:
        return LoadState(None, np.nan)
    sent = (window.start_s <= requests["arrival_s"]) & (requests["arrival_s"] <= window.end_s)  # false if never sent
    own = clock.counted & sent & (requests["state"] != STATES.index("rejected"))
    arrival_s, start_s, end_s = (requests[name][own] for name in ("arrival_s", "start_s", "end_s"))
    if len(arrival_s) < _LEAST_REQUESTS:
        return LoadState(None, np.nan)
    spent_s = end_s - arrival_s
    waited_s = np.where(np.isnan(start_s), spent_s, start_s - arrival_s)
    width_s = window.length_s / _PARTS
    part = np.clip(((arrival_s - window.start_s) / width_s).astype(np.int64), 0, _PARTS - 1)
    counts = np.bincount(part, minlength=_PARTS)
    there = counts > 0
    if np.count_nonzero(there) < _LEAST_PARTS:
        return LoadState(None, np.nan)
    means = [np.bincount(part, of, _PARTS)[there] / counts[there] for of in (spent_s, waited_s)]
    in_system_s, queued_s = np.array(means, np.float64)
    at_s = (np.flatnonzero(there) * width_s).astype(np.float64)
    for times_s in (queued_s,) if clock.is_short else (in_system_s, queued_s):  # in a short window the system fills up
        if _keeps_growing(at_s, times_s, window.length_s):
            return LoadState(OVERLOADED, _slope(at_s, times_s)[0])
    if _grows_at_last(at_s, queued_s, counts[there], window.length_s):
        return LoadState(OVERLOADED, _rise(at_s, queued_s))
    growth, _ = _slope(at_s, in_system_s)
    return LoadState(BACKLOGGED if np.any(queued_s > in_system_s - queued_s) else STABLE, growth)


def _keeps_growing(at_s: Floats, times_s: Floats, length_s: float) -> bool:
    """Whether times grow over the window, and still in the later half of its parts."""
    growth, error = _slope(at_s, times_s)
    has_grown = growth - error > _GROWTH and growth * length_s > times_s.min()
    half = len(at_s) // 2
    return has_grown and _slope(at_s[half:], times_s[half:])[0] > _GROWTH


def _grows_at_last(at_s: Floats, waited_s: Floats, arrivals: NDArray[np.int64], length_s: float) -> bool:
    """Whether waits grow in each of the last parts, from above all earlier ones, by more than their arrivals
    explain.
    """
    earlier_s, last_s = waited_s[:-_LAST], waited_s[-_LAST:]
    if last_s[0] <= earlier_s.max() or np.any(np.diff(last_s) <= 0):
        return False
    usual_s = float(np.average(earlier_s, weights=arrivals[:-_LAST]))
    has_grown = last_s[-1] - usual_s > max(_GROWTH * length_s, usual_s)
    return bool(has_grown and arrivals[-_LAST:].mean() < (1 + _rise(at_s, waited_s)) * arrivals.mean())


def _rise(at_s: Floats, waited_s: Floats) -> float:
    """The growth of the wait over the last parts, seconds a second."""
    return float((waited_s[-1] - waited_s[-_LAST]) / (at_s[-1] - at_s[-_LAST]))


def _slope(x: Floats, y: Floats) -> tuple[float, float]:
    """The slope of the least-squares line, and the half width of its 95 % interval."""
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    rest = y - slope * x
    return slope, _STUDENT * float(np.sqrt(rest @ rest / (len(x) - 2) / (x @ x)))
