"""Ranks in lockstep (SEMANTICS.md: Ranks that are instances)."""

from __future__ import annotations

from framework.codes import STEP_END
from framework.reference.copies.transfers import send_ahead
from framework.reference.simulation import Simulation
from framework.reference.state import Instance


def begin_together(s: Simulation, ranks: list[Instance]) -> None:
    """Start the steps that the ranks of a group have formed, each as long as the longest of them."""
    formed = [i for i in ranks if i.step is not None]
    end_s = max((i.step.end_s for i in formed if i.step), default=0.0)
    for i in formed:
        assert i.step is not None
        i.step.bubble_s, i.step.end_s = end_s - i.step.end_s, end_s
        s.push(end_s, STEP_END, i.id)
    for i in formed:
        assert i.step is not None
        send_ahead(s, i, i.step.chunks)
