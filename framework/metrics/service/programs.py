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
    all_s, counts = _times_s(result), counted[np.unique(workload.openers)]
    times_s = all_s[counts & ~np.isnan(all_s)]
    known = len(times_s) > 0
    found: dict[str, Any] = {
        "programs": int(counts.sum()),
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


def program_slowdowns(result: Result, counted: NDArray[np.bool_], least_s: NDArray[np.float64]) -> dict[str, Any]:
    """The times of completed programs relative to `least_s`, those that no schedule passes, in the order of openers;
    none if the trace does not say what sets calls off.
    """
    if result.workload.trigger is None:
        return {}
    times_s = _times_s(result)
    some = counted[np.unique(result.workload.openers)] & ~np.isnan(times_s) & (least_s > 0)
    slowdowns = times_s[some] / least_s[some]
    return {
        "mean_program_slowdown": float(slowdowns.mean()) if len(slowdowns) else None,
        "p99_program_slowdown": float(np.percentile(slowdowns, 99)) if len(slowdowns) else None,
    }


def _times_s(result: Result) -> NDArray[np.float64]:
    """From the first call of each program to the end of its last, in the order of openers; NaN if a call did not
    finish.
    """
    rows = result.requests
    firsts, which = np.unique(result.workload.openers, return_inverse=True)
    which, end_s = which.reshape(-1), np.full(len(firsts), -np.inf)
    np.maximum.at(end_s, which, rows["end_s"])
    end_s[which[rows["state"] != FINISHED]] = np.nan
    return np.asarray(end_s - rows["arrival_s"][firsts])


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
