"""Slow-downs: the steps of an instance take longer."""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.durations.leap import end_leap_early
from framework.engine.durations.totals import count_fixed_depth
from framework.engine.memory.state import State


@inner
def slow_down(s: State, i: int, slowness: float) -> None:
    """Let each step that i starts from now on take `slowness` times as long as usual."""
    inst, step = s.instances[i], s.step[i]
    inst.slowness = slowness
    if step.fixed_depth:
        count_fixed_depth(s, i)
    step.repeats = False
    if inst.busy:
        end_leap_early(s, i)
