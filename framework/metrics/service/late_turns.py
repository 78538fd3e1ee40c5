"""Turns of sessions that clients sent late because the turns before them were served late.

In an open load a client sends its next turn once the turn before has ended. A policy could hold sessions back until the
window is over, and serve their later turns on an idle system.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.result import Result

PATIENCE = 2.0  # times what the SLO allows; a request that is merely late costs only itself


def sent_in_time(result: Result, allowed_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a turn of an open load was sent no later than if each turn before it had taken twice what the SLO allows,
    (N,); true for all other requests. So for each call that waits for others.

    `allowed_s` (N,): `framework.metrics.slo.Slo.allowed_s`.
    """
    workload, window = result.workload, result.window
    late_s = [0.0] * len(result.requests)
    if workload.previous is None or window is None or not window.offer_is_fixed:
        return np.ones(len(late_s), np.bool_)
    end_s: list[float] = result.requests["end_s"].tolist()
    beyond_s = (result.requests["end_s"] - result.requests["arrival_s"] - PATIENCE * allowed_s).tolist()
    further: dict[int, list[int]] = {}
    for call, other in [] if workload.joins is None else workload.joins.tolist():
        further.setdefault(call, []).append(other)
    turns = np.flatnonzero(workload.previous >= 0)
    for r, before in zip(
        turns.tolist(), workload.previous[turns].tolist(), strict=True
    ):  # what r waits for comes first
        late_s[r] = late_s[before] + beyond_s[before]
        if r in further:
            awaited = (before, *further[r])
            last_due_s = max(end_s[other] - late_s[other] - beyond_s[other] for other in awaited)
            late_s[r] = max(end_s[other] for other in awaited) - last_due_s
    return np.array(late_s) <= 0.0
