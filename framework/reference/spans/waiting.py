"""Requests that wait for a span (SEMANTICS.md: Spans)."""

from __future__ import annotations

from framework.reference.simulation import Simulation
from framework.reference.state import Request


def is_to_span(s: Simulation, r: Request) -> bool:
    """Ask whether several instances compute r, which has arrived; r then waits for them."""
    r.spanned = "span" in s.hooks.overrides and s.hooks.span(s, r) is not None
    if r.spanned:
        await_span(s, r, len(s.spans.waiting))
    return r.spanned


def await_span(s: Simulation, r: Request, place: int) -> None:
    """Let r, which is in no list and holds nothing, wait for a span at that place among the others."""
    r.instance = -1
    s.spans.waiting.insert(place, r)
    for i in s.instances:
        if not i.down:
            s.wake(i)


def fits_together(s: Simulation, r: Request) -> bool:
    """Whether all instances together could hold r at its peak KV, where the policy gives spans."""
    blocks = sum(i.largest_kv for i in s.instances)
    return "span" in s.hooks.overrides and s.blocks_for(r.input_tokens + r.output_tokens - 1) <= blocks
