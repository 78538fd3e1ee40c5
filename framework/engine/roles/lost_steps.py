"""Lost steps: the step under way on an instance that fails does not end."""

from __future__ import annotations

import numpy as np

from framework.codes import PREFILLING
from framework.compiler.decorators import inner
from framework.engine.durations.leap import boundary_s, catch_up_one, end_leap
from framework.engine.durations.speculation import blocks_of_next_step
from framework.engine.durations.totals import count_fixed_depth, count_steps
from framework.engine.kv.kv_cache import free
from framework.engine.kv.spans import BEGUN, COUNT, OWNER, PHASE, at_span, instance_of, is_marked
from framework.engine.memory.state import State
from framework.engine.parallel.sm_sharing import count_busy, drop_prefill_step, streaming


@inner
def lose_step(s: State, i: int) -> None:
    """Count the steps of i that have ended, and drop the step under way."""
    inst, step = s.instances[i], s.step[i]
    catch_up_one(s, i)
    if inst.busy or streaming(s, i):
        count_busy(s, i, 0.0)
    if inst.busy:
        if step.fixed_depth:
            count_fixed_depth(s, i)
        if step.decodes > 0 and step.grown > step.done:
            free(s, i, blocks_of_next_step(s, i))
        _take_back_stamps(s, i)
        if step.done > 0:
            step.steps = step.done
            count_steps(s, i, boundary_s(s, i, step.done))
        end_leap(s, i)
        inst.busy = False
    if streaming(s, i):
        drop_prefill_step(s, i)


@inner
def lose_steps_of_spans(s: State) -> None:
    """Drop the steps under way that need a marked instance: that of all of a span, or of the one that leads it."""
    for number in range(s.options.span_slots):
        row = at_span(s, number)
        if s.lists[row + PHASE] == BEGUN and is_marked(s, number):
            together = s.requests[s.lists[row + OWNER]].state == PREFILLING
            for k in range(s.lists[row + COUNT] if together else 1):
                lose_step(s, instance_of(s, number, k))


@inner
def _take_back_stamps(s: State, i: int) -> None:
    """Erase the first-token times that were stamped with the end of the step under way."""
    inst = s.instances[i]
    for j in range(inst.running - inst.paused):
        q = s.requests[s.lists[inst.running_at + j]]
        if q.first_token_s > s.sim.now_s:
            q.first_token_s = np.nan if q.emitted == 0 else q.prefill_end_s
            q.previous_token_s = q.first_token_s
