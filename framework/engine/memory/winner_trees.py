"""Winner trees over the instances, by the times of their events and by their loads; ties go to the lower number."""

from __future__ import annotations

import numpy as np

from framework.codes import PREFILL
from framework.compiler.decorators import inner, unlikely
from framework.engine.memory.state import State


@inner
def set_time(s: State, kind: int, i: int, time_s: float) -> None:
    """Set the time of instance i's event of that kind; inf: never."""
    leaves = s.options.tree_leaves
    times_at, at = kind * leaves, s.options.tree_at + 2 * kind * leaves
    s.times[times_at + i] = time_s
    node, first, first_s = leaves + i, i, time_s
    while node > 1:
        other = s.lists[at + (node ^ 1)]
        other_s = s.times[times_at + other]
        # `|` and `&` avoid branches, which would be mispredicted.
        is_earlier = (other_s < first_s) | ((other_s <= first_s) & (other < first))
        first = other if is_earlier else first
        first_s = other_s if is_earlier else first_s
        node >>= 1
        s.lists[at + node] = first


@inner
def move_time(s: State, kind: int, i: int, time_s: float) -> tuple[int, float]:
    """Set the time of an i that was first and mostly falls behind others; return the new first and its time.

    This one branches. Instances that take turns make branches predictable, so the next event need not wait for
    `time_s`.
    """
    leaves = s.options.tree_leaves
    times_at, at = kind * leaves, s.options.tree_at + 2 * kind * leaves
    s.times[times_at + i] = time_s
    node, first, first_s = leaves + i, i, time_s
    while node > 1:
        other = s.lists[at + (node ^ 1)]
        other_s = s.times[times_at + other]
        if not unlikely(other_s > first_s or (other_s == first_s and other > first)):
            first, first_s = other, other_s
        node >>= 1
        s.lists[at + node] = first
    return first, first_s


@inner
def time_of(s: State, kind: int, i: int) -> float:
    """The time of instance i's event of that kind, inf: never."""
    return s.times[kind * s.options.tree_leaves + i]


@inner
def first_due(s: State, kind: int) -> int:
    """The instance whose event of that kind comes first."""
    return s.lists[s.options.tree_at + 2 * kind * s.options.tree_leaves + 1]


@inner
def first_time_of_others(s: State, kind: int, i: int) -> float:
    """Time of the first event of that kind on instances other than i."""
    leaves = s.options.tree_leaves
    times_at, at = kind * leaves, s.options.tree_at + 2 * kind * leaves
    node, first_s = leaves + i, np.inf
    while node > 1:
        first_s = min(first_s, s.times[times_at + s.lists[at + (node ^ 1)]])
        node >>= 1
    return first_s


@inner
def load_changed(s: State, i: int) -> None:
    """Note a change in what i has queued or runs, or in whether it prefills."""
    if unlikely(s.options.keeps_loads) and not s.instances[i].touched:
        s.instances[i].touched = True
        s.lists[s.options.touched_at + s.sim.touched] = i
        s.sim.touched += 1


@inner
def least_queued(s: State) -> int:
    """The prefill instance with the fewest tokens to prefill; ties go to the fewest decoding requests."""
    while s.sim.touched > 0:
        s.sim.touched -= 1
        i = s.lists[s.options.touched_at + s.sim.touched]
        s.instances[i].touched = False
        _update_load(s, i)
    return s.lists[s.options.load_tree_at + 1]


@inner
def _update_load(s: State, i: int) -> None:
    at = s.options.load_tree_at
    node = (s.options.tree_leaves + i) >> 1
    while node >= 1:
        left, right = s.lists[at + 2 * node], s.lists[at + 2 * node + 1]
        s.lists[at + node] = right if right < s.options.instances and _less_loaded(s, right, left) else left
        node >>= 1


@inner
def _less_loaded(s: State, a: int, b: int) -> bool:
    x, y = s.instances[a], s.instances[b]
    if x.role & PREFILL == 0:
        return False
    if y.role & PREFILL == 0 or x.queued_tokens < y.queued_tokens:
        return True
    return x.queued_tokens == y.queued_tokens and x.running < y.running
