"""How long programs took, what caches held of their calls, and what they lost between calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.result import FINISHED, Result
from framework.workload import Workload
from framework.workload.programs import TRIGGERS

_BY = ("user", "tool")


def program_figures(result: Result, counted: NDArray[np.bool_]) -> dict[str, Any]:
    """The figures of programs, if the trace says what sets calls off, else none; `counted` (N,): requests that count.

    A program counts if its first call does. Its time lasts from the first call sent to the end of its last, with the
    times of users and tools; it is that of programs all of whose calls finished. `tool_kv_tokens`: what calls found in
    a cache behind a tool, times how long the tool ran, over the time from the first request to the last answer.
    `recomputed_tokens`: what a call's prompt shares with that of the call before, less what it found.
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
    held = admitted & (workload.trigger == TRIGGERS.index("tool"))
    idle = 0.0 if workload.think_s is None else float(rows["cached_tokens"][held] @ workload.think_s[held])
    run_s = float(np.nanmax(rows["end_s"]) - np.nanmin(rows["arrival_s"]))
    found |= {
        "tool_kv_tokens": idle / run_s if run_s > 0 else None,
        "recomputed_tokens": int(lost_tokens(result).sum()),
    }
    for name in _BY:
        own = admitted & (workload.trigger == TRIGGERS.index(name))
        asked = int(workload.input_tokens[own].sum())
        found[f"{name}_hit_rate"] = int(rows["cached_tokens"][own].sum()) / asked if asked else None
    return found


def lost_tokens(result: Result) -> NDArray[np.int64]:
    """What each call's prompt shares with that of the call before, less what it found in a cache, tokens (N,); 0 for a
    request that was never admitted.
    """
    found = np.maximum(_shared_tokens(result.workload) - result.requests["cached_tokens"], 0)
    return np.where(np.isnan(result.requests["start_s"]), 0, found)


def waits_for(workload: Workload) -> list[str]:
    """What each request waits for besides other calls, N names of `TRIGGERS`, "" if that is not known."""
    return [""] * len(workload) if workload.trigger is None else [TRIGGERS[k] for k in workload.trigger.tolist()]


def _shared_tokens(workload: Workload) -> NDArray[np.int64]:
    """The tokens in full blocks with which each prompt begins as that of the call before did, (N,)."""
    shared = np.zeros(len(workload), np.int64)
    if workload.previous is None or workload.hash_spans is None:
        return shared
    later = np.flatnonzero(workload.previous >= 0)
    own, before = workload.hash_spans[later], workload.hash_spans[workload.previous[later]]
    blocks = np.minimum(own[:, 1] - own[:, 0], before[:, 1] - before[:, 0])
    for k in np.flatnonzero(own[:, 0] != before[:, 0]):  # else one lies in the other
        ids, others = (workload.hash_ids[span[k, 0] :][: blocks[k]] for span in (own, before))
        differ = ids != others
        blocks[k] = int(differ.argmax()) if differ.any() else blocks[k]
    shared[later] = np.minimum(blocks * workload.hash_block_tokens, workload.input_tokens[later] - 1)
    return shared
