"""The seconds that the figures of a run are counted over.

The headline counts good requests a second of a window that trace and load fix, so that no policy can shorten it. Where
they fix none (a closed load that sends the whole trace, requests that all arrive at once, a window shorter than what
the SLO allows one request), the time of the run takes its place: to the last answer, and never less than the shortest
time in which any schedule could serve all that was offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.load import Window
from framework.metrics.slo import Slo
from framework.result import MARK, TOTALS, Result, mark_of
from framework.workload import Workload

Floats = NDArray[np.float64]
_SHORTEST = "shortest time for all that was offered"
_SHORT = 5.0  # windows of fewer of the SLO's own latencies are mostly a system that fills up


@dataclass(frozen=True)
class Clock:
    """`window_s` is what rates of the headline are over; `run_s` lasts from the first request to the last answer, or to
    the end of a fixed window where that comes later.

    `counted` (N,): which requests the headline counts. `is_fixed`: the window is one that trace and load fix.
    `is_short`: it is, and the system spends much of it filling up. `name`: what `window_s` is. `totals` (M,) MARK: what
    instances did in the window, or else in the run, and `lengths_s` (M,) how long that is for each.
    """

    window_s: float
    run_s: float
    counted: NDArray[np.bool_]
    is_fixed: bool
    is_short: bool
    name: str
    totals: NDArray[Any]
    lengths_s: Floats


def clock_of(result: Result, slo: Slo, shortest_s: float = 0.0) -> Clock:
    """The clock of a run.

    `shortest_s`: the least time in which any schedule could serve all that was offered; it matters where the end of the
    run decides.
    """
    first_s = float(np.nanmin(result.requests["arrival_s"]))
    run_s = result.end_s - first_s
    window = fixed_window(result.window, result.workload, slo)
    counted = np.ones(len(result.requests), np.bool_) if result.counted is None else result.counted
    if window is None or not counted.any():
        everything = np.ones(len(result.requests), np.bool_)
        whole = mark_of(result.instances, np.zeros(len(result.instances)))
        longest = _SHORTEST if shortest_s > run_s else "first request to last answer"
        lengths_s = np.full(len(whole), run_s)
        return Clock(max(run_s, shortest_s), run_s, everything, False, False, longest, whole, lengths_s)
    window_s, name = window.length_s, window.name
    if not window.offer_is_fixed and shortest_s > window_s:
        window_s, name = shortest_s, _SHORTEST
    run_s = max(result.end_s, window.end_s) - first_s  # GPUs stay on for the load, whether or not it is answered
    totals, lengths_s = _within(result, window.start_s, window.end_s)
    is_short = window_s < _SHORT * allowed_latency_s(result.workload, slo)
    return Clock(window_s, run_s, counted, True, is_short, name, totals, lengths_s)


def fixed_window(window: Window | None, workload: Workload, slo: Slo) -> Window | None:
    """The window that trace and load fix, if it is longer than what the SLO allows one request; else None."""
    return window if window is not None and window.length_s > allowed_latency_s(workload, slo) else None


def allowed_latency_s(workload: Workload, slo: Slo) -> float:
    """What the SLO allows a request from sending to last token, on average: TTFT + (tokens - 1) x TPOT, in which a
    limit that is not in force counts as 0 s; infinite without any limit.
    """
    if slo.is_empty:
        return np.inf
    limits_s = [slo.limits_s(name, workload.slo_class, len(workload)) for name in ("ttft_s", "tpot_s")]
    ttft_s, tpot_s = (np.where(np.isfinite(limit_s), limit_s, 0.0) for limit_s in limits_s)
    return float((ttft_s + tpot_s * (workload.output_tokens - 1)).mean())


def _within(result: Result, start_s: float, end_s: float) -> tuple[NDArray[Any], Floats]:
    """What instances did between these times, and how long that is: where a step that ended there began before, from
    that step's start on.
    """
    last = mark_of(result.instances, np.full(len(result.instances), end_s))
    begin, end = (result.marks[k] if k < len(result.marks) else last for k in (0, 1))
    totals = np.empty(len(end), MARK)
    totals["since_s"] = begin["since_s"]
    for name in TOTALS:
        totals[name] = end[name] - begin[name]
    return totals, end_s - np.minimum(begin["since_s"], start_s)
