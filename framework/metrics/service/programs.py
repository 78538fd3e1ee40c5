"""How long programs took, and what a prefix cache held of calls that a user or a tool set off."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.result import FINISHED, Result
from framework.workload.programs import TRIGGERS

_BY = ("user", "tool")


def program_figures(result: Result, counted: NDArray[np.bool_]) -> dict[str, Any]:
    """The figures of programs, if the trace says what sets calls off, else none; `counted` (N,): requests that count.

    A program counts if its first call does. Its time lasts from the first call sent to the end of its last, with the
    times of users and tools; it is that of programs all of whose calls finished.
    """
    workload, rows = result.workload, result.requests
    if workload.trigger is None:
        return {}
    firsts, which = np.unique(workload.openers, return_inverse=True)
    which = which.reshape(-1)
    begin_s, end_s, done = rows["arrival_s"][firsts], np.full(len(firsts), -np.inf), np.ones(len(firsts), np.bool_)
    np.maximum.at(end_s, which, rows["end_s"])
    done[which[rows["state"] != FINISHED]] = False
    times_s = (end_s - begin_s)[done & counted[firsts]]
    known = len(times_s) > 0
    found: dict[str, Any] = {
        "programs": int(counted[firsts].sum()),
        "programs_completed": len(times_s),
        "mean_program_s": float(times_s.mean()) if known else None,
        "median_program_s": float(np.median(times_s)) if known else None,
        "p99_program_s": float(np.percentile(times_s, 99)) if known else None,
    }
    admitted = ~np.isnan(rows["start_s"])
    for name in _BY:
        own = admitted & (workload.trigger == TRIGGERS.index(name))
        asked = int(workload.input_tokens[own].sum())
        found[f"{name}_hit_rate"] = int(rows["cached_tokens"][own].sum()) / asked if asked else None
    return found
