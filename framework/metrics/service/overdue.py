"""The share of clients' time that late requests block, and requests that a warm-up leaves unserved.

A client of a closed load sends nothing while its request is under way. Without this correction, a policy that never
lets some requests go would be judged by the other clients only (coordinated omission: G. Tene, How NOT to Measure
Latency, 2013). A policy that leaves the requests of a warm-up unserved would be judged on an emptier system than the
load specifies.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from framework.codes import REASON_STALLED
from framework.metrics.service.late_turns import PATIENCE
from framework.metrics.slo import Slo
from framework.result import FINISHED, Result

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
_ERRORS = 1.96  # standard errors; chance alone exceeds them in one run in forty


def overdue_share(result: Result, slo: Slo) -> float | None:
    """Share of the clients' time in the window for which their requests were overdue: under way, or refused again and
    again, for longer than twice what the SLO allows; all of it if the calls of their programs that are so at the same
    time add up to more. None without a number of clients or a window.
    """
    window = result.window
    if window is None or window.clients is None:
        return None
    return min(float(_overdue_s(result, slo).sum() / (window.clients * window.length_s)), 1.0)


def neglected(result: Result, slo: Slo, others: Flags) -> Flags:
    """The uncounted requests that count as missed, (N,): those that were not served, or were overdue in the window, if
    their share exceeds that among the counted by more than chance. `others` (N,): all that are not counted.
    """
    left = (result.requests["state"] != FINISHED) | (_overdue_s(result, slo) > 0.0)
    mine, own = left & others, left & ~others
    is_more = exceeds((int(mine.sum()), int(others.sum())), (int(own.sum()), int((~others).sum())))
    return mine if is_more else np.zeros_like(mine)


def exceeds(some: tuple[int, int], rest: tuple[int, int]) -> bool:
    """Whether the share `some` exceeds the share `rest` by more than chance: the pooled test of two shares, as if
    requests were independent.
    """
    (some_hit, some_all), (rest_hit, rest_all) = some, rest
    pooled = (some_hit + rest_hit) / (some_all + rest_all)
    error = math.sqrt(pooled * (1 - pooled) * (1 / some_all + 1 / rest_all))
    return some_hit / some_all - rest_hit / rest_all > _ERRORS * error


def _overdue_s(result: Result, slo: Slo) -> Floats:
    """Seconds for which each request was overdue within the window, (N,)."""
    requests, window = result.requests, result.window
    assert window is not None
    since_s = np.maximum(requests["arrival_s"] + PATIENCE * slo.allowed_s(result.workload), window.start_s)
    is_stalled = requests["reason"] == REASON_STALLED  # ended with the run, perhaps before the end of the window
    ended_s = np.where(is_stalled, window.end_s, np.minimum(requests["end_s"], window.end_s))
    found: Floats = np.fmax(ended_s - since_s, 0.0)  # 0 for a turn that was never sent
    return found
