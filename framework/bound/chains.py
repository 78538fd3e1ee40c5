"""Least times of requests that wait for others: turns of sessions, and calls of programs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.bound.requests import Needs
from framework.bound.setting import Setting
from framework.compiler.decorators import compiled
from framework.workload import Workload

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def least_chain_s(setting: Setting, needs: Needs) -> float:
    """Least time from the first arrival to the last completion when requests wait for others to end."""
    workload, clients = setting.workload, setting.load.clients
    first_s = workload.arrival_s if clients is None else np.zeros(len(workload))
    lasts_s, ends_s = np.where(needs.served, needs.total_s, 0.0), _ends_s(workload, needs, first_s)
    firsts = np.full(len(workload), True) if workload.previous is None else workload.previous < 0
    least_s = float(ends_s[needs.served].max(initial=0.0) - first_s[firsts].min())
    if clients is not None:
        least_s = max(least_s, float((lasts_s + _think_s(workload))[needs.served].sum()) / clients)
    return max(least_s, 0.0)


def least_program_s(setting: Setting, needs: Needs) -> Floats:
    """Least time from the first call of each program to the end of its last, in the order of `Workload.openers`.

    It has the times of users and tools. A further first call comes as long after the first one as in the trace.
    """
    workload = setting.workload
    firsts, which = np.unique(workload.openers, return_inverse=True)
    ends_s, last_s = _ends_s(workload, needs, workload.arrival_s), np.full(len(firsts), -np.inf)
    np.maximum.at(last_s, which.reshape(-1), ends_s)
    return np.maximum(last_s - workload.arrival_s[firsts], 0.0)


def _ends_s(workload: Workload, needs: Needs, first_s: Floats) -> Floats:
    """When each request ends at the earliest, (N,), if those that wait for none come at `first_s` (N,)."""
    lasts_s = np.where(needs.served, needs.total_s, 0.0)
    if workload.previous is None:
        return first_s + lasts_s
    joins = np.zeros((0, 2), np.int64) if workload.joins is None else workload.joins
    joins = joins[np.argsort(joins[:, 0], kind="stable")]
    return np.asarray(_followed(workload.previous, joins, first_s, _think_s(workload), lasts_s))


@compiled
def _followed(previous: Integers, joins: Integers, first_s: Floats, think_s: Floats, lasts_s: Floats) -> Floats:
    """The ends of calls; each waits for calls before it, `joins` are sorted by the call that waits."""
    ends_s, j = first_s + lasts_s, 0
    for k in range(len(previous)):
        if previous[k] < 0:
            continue
        awaited_s = ends_s[previous[k]]
        while j < len(joins) and joins[j, 0] == k:
            awaited_s, j = max(awaited_s, ends_s[joins[j, 1]]), j + 1
        ends_s[k] = awaited_s + think_s[k] + lasts_s[k]
    return ends_s


def _think_s(workload: Workload) -> Floats:
    """Seconds between the last end that each request waits for and its own sending, (N,); 0 if it waits for none."""
    if workload.previous is None or workload.think_s is None:
        return np.zeros(len(workload))
    return np.where(workload.previous >= 0, workload.think_s, 0.0)
