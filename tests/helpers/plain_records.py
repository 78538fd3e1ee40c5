"""What the reference engine does in a run, recorded as it happens: ends of requests, work of steps, blocks held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from framework.reference import loop
from framework.reference.simulation import Simulation
from framework.reference.state import UNSENT, Instance, Step
from framework.reference.steps import step_end
from framework.reference.steps.totals import count_step
from tests.helpers.reported import StepNote
from tests.helpers.rulers import RuledHooks, Ruler
from tests.helpers.scenarios import Scenario


@dataclass(frozen=True)
class Records:
    """Of each request that was sent its number and end; by instance its steps, what it held from when to when, and for
    how long it was off.
    """

    simulation: Simulation
    sent: list[int]
    end_s: list[float]
    steps: list[list[StepNote]]
    held: list[list[tuple[float, float, int]]]
    off_s: list[float]


def records(scenario: Scenario) -> Records:
    """Run a scenario in the reference engine."""
    s = scenario.simulation(RuledHooks(Ruler(scenario.rules)))
    s.marks_s = ()  # what is made of the window is to be noted from the notes
    steps: list[list[StepNote]] = [[] for _ in s.instances]
    held: list[list[tuple[float, float, int]]] = [[] for _ in s.instances]
    advance = loop.advance

    def note_step(s: Simulation, i: Instance, step: Step) -> None:
        before = dict(i.totals)
        count_step(s, i, step)
        steps[i.id].append(_note(s, step, {name: i.totals[name] - before[name] for name in before}))

    def note_time(s: Simulation, time_s: float) -> None:
        for i in s.instances:
            held[i.id].append((s.now_s, time_s, i.cache.used))
        advance(s, time_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_end, "count_step", note_step)
        patch.setattr(loop, "advance", note_time)
        loop.run(s)
    rows = [r for r in s.requests if r.state != UNSENT]
    off_s = [i.off_s_at(s.now_s) for i in s.instances]
    return Records(s, [r.id for r in rows], [r.end_s for r in rows], steps, held, off_s)


def _note(s: Simulation, step: Step, added: dict[str, Any]) -> StepNote:
    square = sum((prefix + tokens) ** 2 - prefix**2 for _, prefix, tokens in step.chunks)
    names = ("weight_passes", "expert_reads", "bubble_s")
    depth, decodes = step.depth, len(step.decodes)
    tokens = decodes * (1 + depth) + step.prefill_tokens
    noted = (s.now_s - step.start_s, s.now_s, tokens, step.context, step.context * (1 + depth))
    return StepNote(*noted, square, *(added[name] for name in names))
