"""Pausing: decodes for which a step has no tokens left keep their KV and seat, and decode in a later step.

While the step runs they stand last in the running order. They take part again at its end.
"""

from __future__ import annotations

from framework.codes import PAUSED
from framework.compiler.decorators import inner, unlikely
from framework.engine.memory.state import State
from framework.engine.requests.lifecycle import NEVER, sit_out, take_part


@inner
def pause_rest(s: State, i: int) -> None:
    """Pause the running requests of i for which the step being formed has no tokens left."""
    inst, step = s.instances[i], s.step[i]
    kept = aside = 0
    step.next_finish = NEVER
    for j in range(inst.running):
        r, finish = s.lists[inst.running_at + j], s.lists[inst.finish_at + j]
        if s.requests[r].waits:
            s.lists[s.options.aside_at + aside] = r
            aside += 1
        else:
            inst.disordered |= aside > 0
            s.lists[inst.running_at + kept] = r
            s.lists[inst.finish_at + kept] = finish
            step.next_finish = min(step.next_finish, finish)
            kept += 1
    inst.paused = aside
    for j in range(aside):
        r = s.lists[s.options.aside_at + j]
        s.lists[inst.running_at + kept + j] = r
        sit_out(s, i, r)
        s.requests[r].waits = False
        s.requests[r].state = PAUSED
        s.requests[r].join_step = inst.decode_steps


@inner
def paused_kv(s: State, i: int) -> int:
    """KV tokens of the paused decodes of i."""
    inst = s.instances[i]
    kv = 0
    if unlikely(inst.paused > 0):
        for j in range(inst.running - inst.paused, inst.running):
            kv += s.requests[s.lists[inst.running_at + j]].kv
    return kv


@inner
def resume(s: State, i: int) -> None:
    """Let paused decodes take part again, as i's step is over."""
    inst = s.instances[i]
    if unlikely(inst.paused > 0):
        for j in range(inst.running - inst.paused, inst.running):
            take_part(s, i, j, s.requests[s.lists[inst.running_at + j]].kv)
        inst.paused = 0
