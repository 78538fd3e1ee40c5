"""Decisions about requests that wait for the turn of an instance to schedule, in order; one of a request at most."""

from __future__ import annotations

from framework.codes import CANCEL, RESUME
from framework.compiler.decorators import inner
from framework.engine.events.order import wake
from framework.engine.memory.state import State


@inner
def place_of(s: State, r: int) -> int:
    """The place of r among the decisions that are postponed, -1: it has none."""
    for j in range(s.sim.postponed):
        if s.postponed[j].request == r:
            return j
    return -1


@inner
def postpone(s: State, r: int, kind: int, value: int) -> None:
    """Let a decision about r wait for the turn of its instance."""
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
    """A further decision about the request of number j: the later one holds, but nothing undoes an end.

    True: the one that was postponed is withdrawn, and the later one is to be carried out.
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
    """Take number j out of the decisions that are postponed."""
    sim = s.sim
    sim.postponed -= 1
    sim.decides -= 1
    for k in range(j, sim.postponed):
        following, entry = s.postponed[k + 1], s.postponed[k]
        entry.request = following.request
        entry.kind = following.kind
        entry.value = following.value
        entry.instance = following.instance
