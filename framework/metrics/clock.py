"""The time over which the figures of a run are counted.

The headline counts good requests a second of a window that trace, load and SLO fix, so no policy can shorten it:
arrivals, or the duration of a closed load. If these fix none, rejected requests add time, as if they had been served
after the rest; so do clients whose requests are overdue, and requests that a warm-up left unserved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.metrics.service.overdue import neglected, overdue_share
from framework.metrics.slo import Slo
from framework.result import FINISHED, MARK, TOTALS, Result, mark_of
from framework.workload import Workload

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Shortest = Callable[[Flags], float]  # requests of a run (N,) -> the least time in which any schedule serves them
ALLOWED, SHORTEST = "what the SLO allows one request", "shortest time for all that was offered"
_LEAST_LIVE = 1e-6  # share of the clients' time, if all of it is overdue
SHORT = 5.0  # a window of fewer of the SLO's own latencies mostly shows a system that fills up


@dataclass(frozen=True)
class Clock:
    """Rates of the headline are over `window_s`; `run_s` lasts from the first request to the last answer.

    `counted` (N,): which requests the headline counts. `is_fixed`: these are the requests of a window of the run, and
    shares are of that window; otherwise all requests count, and shares are of the run. `is_short`: the system spends
    much of the window filling up. `name`: what `window_s` is. `totals` (M,) MARK: what instances did in the window or
    the run, and `lengths_s` (M,) how long that is for each. `overdue`: the share of the clients' time in which their
    requests were overdue (`framework.metrics.service.overdue`), None without a number of clients or a window.
    """

    window_s: float
    run_s: float
    counted: Flags
    is_fixed: bool
    is_short: bool
    name: str
    totals: NDArray[Any]
    lengths_s: Floats
    overdue: float | None = None

    def attainment(self, good: int, offered: int) -> float:
        """The share of the offered requests that are good; of clients that were kept waiting none are."""
        return good / offered * (1 - (self.overdue or 0.0))


def clock_of(result: Result, slo: Slo, shortest_s: Shortest = lambda chosen: 0.0) -> Clock:
    """The clock of a run. It calls `shortest_s` only if the result depends on it."""
    run_s = result.end_s - float(np.nanmin(result.requests["arrival_s"]))
    everything, sent = _counted(result, slo)
    window_s, name = _window(result, slo, run_s, sent, shortest_s)
    is_short = not slo.is_empty and bool(window_s < SHORT * allowed_latency_s(result.workload, slo))
    overdue, counted = overdue_share(result, slo), sent
    if overdue:
        window_s, name = window_s / max(1 - overdue, _LEAST_LIVE), f"{name}, longer for clients that were kept waiting"
    if not sent.all():
        counted = sent | neglected(result, slo, ~sent)
        if counted.sum() > sent.sum():
            window_s *= float(counted.sum() / sent.sum())
            name += ", longer for what was not served outside it"
    if everything:
        totals = mark_of(result.instances, np.zeros(len(result.instances)))
        lengths_s = np.full(len(totals), run_s)
    else:
        assert result.window is not None
        totals, lengths_s = _within(result, result.window.start_s, result.window.end_s)
    return Clock(window_s, run_s, counted, not everything, is_short, name, totals, lengths_s, overdue)


def _counted(result: Result, slo: Slo) -> tuple[bool, Flags]:
    """Whether all requests count and shares are of the run, and which requests count, (N,)."""
    every = np.ones(len(result.requests), np.bool_)
    counted = every if result.counted is None else result.counted
    window = result.window
    if window is None or not counted.any():
        return True, every
    is_short = window.offer_is_fixed and window.length_s <= allowed_latency_s(result.workload, slo)
    return (True, every) if is_short else (False, counted)


def _window(result: Result, slo: Slo, run_s: float, counted: Flags, shortest_s: Shortest) -> tuple[float, str]:
    """The time over which the headline is counted, and its name."""
    window, allowed_s = result.window, allowed_latency_s(result.workload, slo)
    if window is not None and window.offer_is_fixed and np.isfinite(allowed_s):
        if window.length_s > allowed_s:
            return window.length_s, window.name
        return _longer(allowed_s, ALLOWED, shortest_s(counted))
    if window is not None and window.offer_is_fixed:
        window_s, name = _longer(run_s, "first request to last answer", shortest_s(counted))
    elif window is not None:
        window_s, name = _longer(window.length_s, window.name, shortest_s(counted))
    else:
        sent_s = result.requests["arrival_s"]
        sending_s = float(np.nanmax(sent_s) - np.nanmin(sent_s))
        window_s, name = _longer(sending_s, "first to last request sent", shortest_s(counted))
    served = counted & (result.requests["state"] == FINISHED)
    unserved = counted & ~served
    if served.any() and unserved.any():
        name += ", longer for what was not served"
        window_s *= 1 + shortest_s(unserved) / max(shortest_s(served), np.finfo(float).tiny)
    return float(window_s), name


def _longer(window_s: float, name: str, shortest_s: float) -> tuple[float, str]:
    return (shortest_s, SHORTEST) if shortest_s > window_s else (window_s, name)


def allowed_latency_s(workload: Workload, slo: Slo) -> float:
    """The mean latency, from sending to last token, that the SLO allows: TTFT + (tokens - 1) x TPOT. A limit that is
    not in force counts as 0 s; without any limit the result is infinite.
    """
    if slo.is_empty:
        return np.inf
    limits_s = [slo.limits_s(name, workload.slo_class, len(workload)) for name in ("ttft_s", "tpot_s")]
    ttft_s, tpot_s = (np.where(np.isfinite(limit_s), limit_s, 0.0) for limit_s in limits_s)
    return float((ttft_s + tpot_s * (workload.output_tokens - 1)).mean())


def _within(result: Result, start_s: float, end_s: float) -> tuple[NDArray[Any], Floats]:
    """What instances did between these times, and how long that is; a step that ended there counts from its
    start on.
    """
    last = mark_of(result.instances, np.full(len(result.instances), end_s))
    begin, end = (result.marks[k] if k < len(result.marks) else last for k in (0, 1))
    totals = np.empty(len(end), MARK)
    totals["since_s"] = begin["since_s"]
    for name in TOTALS:
        totals[name] = end[name] - begin[name]
    return totals, end_s - np.minimum(begin["since_s"], start_s)
