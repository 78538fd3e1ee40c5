"""Ranks that step together: instances of their own, with queue, seats, KV and budget, whose steps are of one length.

The ranks of a group follow each other. All of them form their steps at one time, one after the other, and these end
together, when the longest does. A rank that finds nothing to do waits for that end too.
"""

from __future__ import annotations

from framework.codes import STEP_END
from framework.compiler.decorators import inner
from framework.engine.leap import boundary_s
from framework.engine.queues import set_time
from framework.engine.state import State


@inner
def group_steps(s: State, i: int) -> bool:
    """Whether a rank of i's group is in a step."""
    k, end = s.instances[i].group_first, s.instances[i].group_first + s.instances[i].group
    while k < end and not s.instances[k].busy:
        k += 1
    return bool(k < end)


@inner
def end_together(s: State, first: int, count: int) -> None:
    """Let the steps that the ranks of a group have formed be as long as the longest of them."""
    longest_s = 0.0
    for k in range(first, first + count):
        if s.instances[k].busy:
            longest_s = max(longest_s, s.step[k].first_s)
    for k in range(first, first + count):
        if s.instances[k].busy:
            step = s.step[k]
            step.bubble_s = longest_s - step.first_s
            step.first_s = longest_s
            step.increment_s = 0.0
            set_time(s, STEP_END, k, boundary_s(s, k, 1))
