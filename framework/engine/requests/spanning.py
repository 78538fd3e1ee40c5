"""Requests that wait for a span: at the front end, on no instance. What gives them one: roles/spans.py."""

from __future__ import annotations

from framework.codes import SPANLESS
from framework.compiler.decorators import inner
from framework.engine.events.ask import ask
from framework.engine.events.order import wake
from framework.engine.kv.spans import HAS_NO_SPAN, NEVER_SPANNED
from framework.engine.memory.kv_blocks import blocks_for, largest_request
from framework.engine.memory.queues import append, take_out
from framework.engine.memory.state import State
from framework.policy.hooks import NO_SPAN, RAISED, SPAN


@inner
def fits_together(s: State, r: int) -> bool:
    """Whether all instances together could hold r at its peak KV."""
    blocks = 0
    for i in range(s.options.instances):
        blocks += largest_request(s, i)
    return blocks_for(s, s.requests[r].input_tokens + s.lists[s.options.output_at + r] - 1) <= blocks


@inner
def is_to_span(s: State, r: int) -> bool:
    """Ask whether several instances compute r, which has arrived; r then waits for them. True: so it does, or the run
    stops.
    """
    answer = ask(s, SPAN, r)
    if answer == NO_SPAN:
        s.lists[s.options.span_of_at + r] = NEVER_SPANNED
        return False
    if answer != RAISED:
        await_span(s, r)
    return True


@inner
def await_span(s: State, r: int) -> None:
    """Let r, which is in no list and holds nothing, wait for a span, behind the others."""
    sim = s.sim
    sim.spanless_head = append(s, sim.spanless_head, sim.spanless_tail, r)
    sim.spanless_tail = r
    _begin_to_wait(s, r)


@inner
def await_span_first(s: State, r: int) -> None:
    """Let r, which was preempted, wait for a span, before the others."""
    sim = s.sim
    s.requests[r].next = sim.spanless_head
    sim.spanless_head = r
    if sim.spanless_tail < 0:
        sim.spanless_tail = r
    _begin_to_wait(s, r)


@inner
def _begin_to_wait(s: State, r: int) -> None:
    s.requests[r].state = SPANLESS
    s.requests[r].instance = -1
    s.lists[s.options.span_of_at + r] = HAS_NO_SPAN
    s.sim.spanning += 1
    for i in range(s.options.instances):
        if not s.instances[i].down:
            wake(s, i)


@inner
def leave_spanless(s: State, r: int) -> None:
    """Take r out of those that wait for a span."""
    sim = s.sim
    sim.spanless_head, sim.spanless_tail = take_out(s, sim.spanless_head, sim.spanless_tail, r)
    sim.spanning -= 1
