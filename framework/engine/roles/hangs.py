"""Hangs: an instance makes no progress until its detection; then it counts as crashed."""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.copies.transfers import call_back
from framework.engine.durations.lockstep import group_of
from framework.engine.events.order import drop_turn
from framework.engine.memory.state import State
from framework.engine.requests.pausing import resume
from framework.engine.roles.changes import is_up
from framework.engine.roles.crashes import crash
from framework.engine.roles.lost_steps import lose_step


@inner
def hang(s: State, i: int) -> None:
    """Let i and its group make no progress from now on; nothing happens if i is off or down."""
    if not is_up(s, i):
        return
    first, count = group_of(s, i)
    for j in range(first, first + count):
        lose_step(s, j)
        resume(s, j)
        drop_turn(s, j)
        s.instances[j].between = s.instances[j].asked = False
        s.instances[j].hung = True
    s.sim.awaited += count
    for j in range(first, first + count):
        for k in range(s.instances[j].prefilling):
            r = s.lists[s.instances[j].prefilling_at + k]
            if s.requests[r].destination >= 0:  # its copy sends each layer once computed, and i computes no more
                call_back(s, r)


@inner
def notice(s: State, i: int, back_s: float) -> None:
    """Let the hang of i, if it hangs, be noticed now: i crashes. One that was off does not hang."""
    if not s.instances[i].hung:
        return
    first, count = group_of(s, i)
    for j in range(first, first + count):
        s.instances[j].hung = False
    s.sim.awaited -= count
    crash(s, i, back_s)
