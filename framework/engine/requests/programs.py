"""Programs whose calls wait for several others, or overlap: sessions of turns need none of this."""

from __future__ import annotations

from framework.codes import FINISHED
from framework.compiler.decorators import inner
from framework.engine.memory.queues import turn_push
from framework.engine.memory.state import State


@inner
def waits_for_another(s: State, r: int) -> bool:
    """Whether r, which one that it waits for has let go, waits for another; it then follows the first that is found."""
    at = s.options.joins_at + r
    for k in range(s.lists[at], s.lists[at + 1]):
        other = s.lists[k]
        if s.requests[other].state < FINISHED:
            s.requests[r].next = s.requests[other].followed_by
            s.requests[other].followed_by = r
            return True
    return False


@inner
def ends_its_program(s: State, r: int) -> bool:
    """Count the end of r; whether all calls of its program have ended."""
    unended_at = s.options.unended_at + s.lists[s.options.opener_at + r]
    s.lists[unended_at] -= 1
    return s.lists[unended_at] == 0


@inner
def announce_next_beside(s: State, r: int) -> None:
    """r has come to a closed load: the next call of its program that waits for none comes as long after as recorded."""
    beside = s.lists[s.options.beside_at + r]
    if beside >= 0:
        turn_push(s, beside, s.sim.now_s + s.requests[beside].think_s)
