"""Which prompts of a queue are in time, with as few late ones as possible (Moore and Hodgson)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.policy.view import Floats, Integers

SOON_S = 1e-3  # the shortest time left by which a rate is computed


@compiled
def on_time_first(
    due_s: Floats, own_s: Floats, now_s: float, ahead_s: float, late: NDArray[np.bool_], heap: Integers
) -> float:
    """Mark in `late` the fewest prompts without which the others, computed in this order, are in time.

    `due_s` ascends; `own_s` are the seconds of each prefill, behind `ahead_s` of others; shapes (n,), as that of
    `heap`, which holds the prompts that are not late, the longest first. Returns the share of a prefill's speed that
    the prompts in time need.
    """
    done_s, size = now_s + ahead_s, 0
    for k in range(len(due_s)):
        done_s += own_s[k]
        _push(heap, size, own_s, k)
        size += 1
        while size > 0 and done_s > due_s[k]:
            late[heap[0]] = True
            done_s -= own_s[heap[0]]
            size -= 1
            _pop(heap, size, own_s)
    need, work_s = 0.0, ahead_s
    for k in range(len(due_s)):
        if not late[k]:
            work_s += own_s[k]
            need = max(need, work_s / max(due_s[k] - now_s, SOON_S))
    return need


@compiled
def _is_longer(own_s: Floats, one: int, other: int) -> bool:
    return own_s[one] > own_s[other] or (own_s[one] == own_s[other] and one > other)


@compiled
def _push(heap: Integers, size: int, own_s: Floats, k: int) -> None:
    """Add prompt k to a heap of `size` prompts."""
    at = size
    while at > 0 and _is_longer(own_s, k, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = k


@compiled
def _pop(heap: Integers, size: int, own_s: Floats) -> None:
    """Take the first prompt out of a heap, which then has `size` prompts."""
    last, at = heap[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _is_longer(own_s, heap[child + 1], heap[child]):
            child += 1
        if not _is_longer(own_s, heap[child], last):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last
