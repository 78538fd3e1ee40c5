"""Decisions that await their instance's turn to schedule, in order; at most one for each request."""

from __future__ import annotations

from framework.codes import CANCEL, RESUME
from framework.compiler.decorators import inner
from framework.engine.events.order import wake
from framework.engine.memory.state import State


@inner
def place_of(s: State, r: int) -> int:
    """The index of r among the postponed decisions, -1: it has none."""
    for j in range(s.sim.postponed):
        if s.postponed[j].request == r:
            return j
    return -1


@inner
def postpone(s: State, r: int, kind: int, value: int) -> None:
    """Let a decision about r wait for its instance's turn."""
    sim, entry = s.sim, s.postponed[s.sim.postponed]
    entry.request = r
    entry.kind = kind
    entry.value = value
    entry.instance = s.requests[r].instance
    sim.postponed += 1
    sim.decides += 1
    s.instances[entry.instance].asked = False
    wake(s, s.requests[r].instance)


@inner
def revise(s: State, j: int, kind: int, value: int) -> bool:
    """Replace postponed decision j by a later one about the same request; but nothing undoes an end.

    Returns True if the postponed decision is withdrawn and the caller is to carry out the later one.
    """
    entry = s.postponed[j]
    if entry.kind == CANCEL or entry.kind == RESUME == kind:
        return False
    if entry.kind == RESUME or kind == RESUME:
        withdrawn = entry.kind == RESUME
        forget(s, j)
        return withdrawn
    entry.kind = kind
    entry.value = value
    return False


@inner
def forget(s: State, j: int) -> None:
    """Remove number j from the postponed decisions."""
    sim = s.sim
    sim.postponed -= 1
    sim.decides -= 1
    for k in range(j, sim.postponed):
        following, entry = s.postponed[k + 1], s.postponed[k]
        entry.request = following.request
        entry.kind = following.kind
        entry.value = following.value
        entry.instance = following.instance
