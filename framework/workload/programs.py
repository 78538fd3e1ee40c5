"""Programs: calls that wait for others, as arrays. A session of turns is a program whose calls form a chain."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError

Integers = NDArray[np.int64]

# What lies between the last call that a call waits for and the call itself; 0: not known.
TRIGGERS = ("", "user", "tool", "spawn")


def openers(previous: Integers | None, session_id: Integers | None, count: int) -> Integers:
    """The first call of each request's program, (N,): what it goes back to, and of a session that session's first."""
    rows = np.arange(count)
    if previous is None:
        return rows
    found = np.where(previous < 0, rows, previous)
    while not np.array_equal(further := found[found], found):
        found = further
    if session_id is None:
        return found
    _, first, which = np.unique(session_id, return_index=True, return_inverse=True)
    return np.where(session_id[found] >= 0, first[which.reshape(-1)[found]], found)


def check_calls(previous: Integers | None, joins: Integers, session_id: Integers | None) -> None:
    """Raise InputError unless `joins` (J, 2) are calls of sessions with further ones, before them, that they wait
    for.
    """
    if joins.ndim != 2 or joins.shape[1] != 2:
        raise InputError(f"workload: joins must be pairs of a call and one it waits for, has shape {joins.shape}")
    if previous is None or session_id is None:
        raise InputError("workload: joins need previous and session_id")
    calls, awaited = joins[:, 0], joins[:, 1]
    if np.any(awaited < 0) or np.any(awaited >= calls) or np.any(calls >= len(previous)):
        raise InputError("workload: a call can only wait for calls before it")
    if np.any(previous[calls] < 0) or np.any(previous[calls] == awaited) or len(np.unique(joins, axis=0)) < len(joins):
        raise InputError("workload: joins name what a call waits for besides `previous`, each once")
    if np.any(session_id[calls] < 0) or np.any(session_id[calls] != session_id[awaited]):
        raise InputError("workload: a call can only wait for calls of its own session")


def kept_links(previous: Integers, joins: Integers | None, kept: NDArray[np.bool_]) -> tuple[Integers, Integers | None]:
    """`previous` and `joins` among the requests that `kept` (N,) selects, by their new rows.

    A call waits for those that are left. One of which none is left waits for nothing.
    """
    number = np.cumsum(kept) - 1
    found = np.where((previous >= 0) & kept[previous], number[previous], -1)
    if joins is None:
        return found[kept], None
    left = joins[kept[joins].all(axis=1)]
    orphans = left[found[left[:, 0]] < 0][::-1]  # the first of what is left takes the place of `previous`
    found[orphans[:, 0]] = number[orphans[:, 1]]
    left = np.stack((left[:, 0], number[left[:, 1]]), axis=1)
    left = left[left[:, 1] != found[left[:, 0]]]
    return found[kept], np.stack((number[left[:, 0]], left[:, 1]), axis=1)


def followers(previous: Integers) -> tuple[Integers, Integers]:
    """The first request that follows each, and the next one that follows the same as it does; -1: none. Both (N,)."""
    first, sibling = np.full(len(previous), -1), np.full(len(previous), -1)
    later = np.flatnonzero(previous >= 0)
    order = later[np.argsort(previous[later], kind="stable")]
    same = previous[order[1:]] == previous[order[:-1]]
    sibling[order[:-1][same]] = order[1:][same]
    opening = np.concatenate(([True], ~same))[: len(order)]
    first[previous[order[opening]]] = order[opening]
    return first, sibling


def besides(previous: Integers, openers: Integers) -> Integers:
    """The next call of the same program that waits for none, of each such call, (N,); -1: there is none."""
    found = np.full(len(previous), -1)
    firsts = np.flatnonzero(previous < 0)
    firsts = firsts[np.argsort(openers[firsts], kind="stable")]
    same = openers[firsts[1:]] == openers[firsts[:-1]]
    found[firsts[:-1][same]] = firsts[1:][same]
    return found
