"""Ranks in lockstep: instances with their own queues, seats, KV and budgets whose steps take equally long.

The ranks of a group have consecutive numbers. They form their steps at one time, one after the other, and all of these
steps end when the longest does. A rank without work waits for that end too.
"""

from __future__ import annotations

import numpy as np

from framework.codes import STEP_END
from framework.compiler.decorators import inner
from framework.engine.durations.leap import boundary_s, steps_to_mark
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import set_time

_NEVER = np.iinfo(np.int64).max


@inner
def group_of(s: State, i: int) -> tuple[int, int]:
    """The first instance of i's group, and the number of its instances: i alone if it steps alone."""
    inst = s.instances[i]
    return (inst.group_first, inst.group) if inst.group > 0 else (i, 1)


@inner
def rank_in_step(s: State, i: int) -> int:
    """The first rank of i's group that is in a step; -1 if none is."""
    inst = s.instances[i]
    for k in range(inst.group_first, inst.group_first + inst.group):
        if s.instances[k].busy:
            return int(k)
    return -1


@inner
def end_together(s: State, first: int, count: int) -> None:
    """Extend the steps of a group's ranks to the longest of them, and leap as far as all ranks can."""
    first_s, increment_s = -1.0, 0.0
    for k in range(first, first + count):
        step = s.step[k]
        if s.instances[k].busy and (
            step.first_s > first_s or (step.first_s == first_s and step.increment_s > increment_s)
        ):
            first_s, increment_s = step.first_s, step.increment_s
    steps = _steps_together(s, first, count, first_s, increment_s)
    for k in range(first, first + count):
        if s.instances[k].busy:
            step = s.step[k]
            step.bubble_s = first_s - step.first_s
            step.bubble_increment_s = increment_s - step.increment_s
            step.first_s = first_s
            step.increment_s = increment_s
            steps = steps_to_mark(s, k, steps)
            step.steps = steps
            set_time(s, STEP_END, k, boundary_s(s, k, steps))


@inner
def _steps_together(s: State, first: int, count: int, first_s: float, increment_s: float) -> int:
    """Steps until a rank has a decision to take, or until a rank other than the slowest of now becomes the slowest."""
    steps = _NEVER
    for k in range(first, first + count):
        if s.instances[k].changed:  # it schedules again at the next boundary, whether it is in a step or not
            return 1
        if s.instances[k].busy:
            step = s.step[k]
            steps = min(steps, step.steps)
            if step.increment_s > increment_s:
                crossing = (first_s - step.first_s) / (step.increment_s - increment_s)
                if crossing < steps:
                    steps = int(crossing) + 1
    return int(steps)
