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
    (N,); true for all other requests.

    `allowed_s` (N,): `framework.metrics.slo.Slo.allowed_s`.
    """
    previous, window = result.workload.previous, result.window
    late_s = np.zeros(len(result.requests))
    if previous is None or window is None or not window.offer_is_fixed:
        return late_s <= 0.0
    beyond_s = result.requests["end_s"] - result.requests["arrival_s"] - PATIENCE * allowed_s
    turns = np.flatnonzero(previous >= 0)
    while len(turns):  # the second turns of all sessions, then the third ones
        waits = np.isin(previous[turns], turns)
        ready = turns[~waits]
        late_s[ready] = late_s[previous[ready]] + beyond_s[previous[ready]]
        turns = turns[waits]
    return late_s <= 0.0
