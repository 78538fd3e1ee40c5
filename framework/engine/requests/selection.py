"""Selection: decodes that the policy leaves out of steps keep their KV and seats, and pause."""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.durations.speculation import growth_of
from framework.engine.memory.state import State
from framework.engine.requests.pausing import pause_rest


@inner
def blocks_of_selected(s: State, i: int) -> int:
    """New blocks that the running requests of i which are not left out need for its next step."""
    inst = s.instances[i]
    blocks = 0
    for j in range(inst.running):
        r = s.lists[inst.running_at + j]
        if not s.requests[r].skips:
            blocks += growth_of(s, i, r)
    return blocks


@inner
def selected(s: State, i: int) -> int:
    """The number of i's running requests that are not left out."""
    inst = s.instances[i]
    decodes = 0
    for j in range(inst.running):
        decodes += not s.requests[s.lists[inst.running_at + j]].skips
    return decodes


@inner
def pause_others(s: State, i: int) -> int:
    """Pause the running requests of i that are left out; return how many others decode. If that is 0, none pauses."""
    inst, decodes = s.instances[i], selected(s, i)
    if 0 < decodes < inst.running:
        for j in range(inst.running):
            q = s.requests[s.lists[inst.running_at + j]]
            q.waits = q.skips
        pause_rest(s, i)
    return decodes
