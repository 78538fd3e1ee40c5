"""What the reference engine does in a run, recorded as it happens: ends of requests, work of steps, blocks held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from framework.reference import loop
from framework.reference.faults import crashes
from framework.reference.simulation import Simulation
from framework.reference.state import UNSENT, Instance, Request
from framework.reference.steps import step_end
from framework.reference.steps.step import Step
from framework.reference.steps.totals import count_step
from framework.system.faults import FaultEvent
from tests.helpers.reported import CrashNote, StepNote
from tests.helpers.rulers import RuledHooks, Ruler
from tests.helpers.scenarios import Scenario


@dataclass(frozen=True)
class Records:
    """Of each request that was sent its number and end; by instance its steps, what it held from when to when, for how
    long it was off, when it was down, when it was in steps that a crash cut, since when it was in steps that had not
    ended with the run, and how often it was switched on and went off; and the crashes.
    """

    simulation: Simulation
    sent: list[int]
    end_s: list[float]
    steps: list[list[StepNote]]
    held: list[list[tuple[float, float, int]]]
    off_s: list[float]
    down: list[list[tuple[float, float]]]
    cut: list[list[tuple[float, float]]]
    left_s: list[list[float]]
    crashes: list[CrashNote]
    switched: list[tuple[int, int, int]]


def records(scenario: Scenario) -> Records:
    """Run a scenario in the reference engine."""
    s = scenario.simulation(RuledHooks(Ruler(scenario.rules)))
    s.marks_s = ()  # what is made of the window is to be noted from the notes
    steps: list[list[StepNote]] = [[] for _ in s.instances]
    held: list[list[tuple[float, float, int]]] = [[] for _ in s.instances]
    down: list[list[tuple[float, float]]] = [[] for _ in s.instances]
    cut: list[list[tuple[float, float]]] = [[] for _ in s.instances]
    had: dict[int, int | None] = {}
    taken: list[tuple[float, float, float, Instance, dict[int, int | None]]] = []
    advance, crash, settle, lose_steps = loop.advance, crashes.crash, crashes.settle, crashes.lose_steps
    come_back_at = crashes.come_back_at

    def note_step(s: Simulation, i: Instance, step: Step) -> None:
        before = dict(i.totals)
        count_step(s, i, step)
        steps[i.id].append(_note(s, step, {name: i.totals[name] - before[name] for name in before}))

    def note_time(s: Simulation, time_s: float) -> None:
        for i in s.instances:
            held[i.id].append((s.now_s, time_s, i.cache.used))
            down[i.id] += [(s.now_s, time_s)] * (i.down or i.hung)
        advance(s, time_s)

    def note_crash(s: Simulation, i: Instance, this: FaultEvent) -> bool:
        had.update({r.id: _prefilled(s, r) for r in s.present.values()})
        was_up = not i.down
        taken.append((this.since_s, s.now_s, this.value, i, {}))
        falls = crash(s, i, this)
        if not (was_up and i.down):
            taken.pop()
        return falls

    def note_return(s: Simulation, i: Instance, time_s: float) -> None:
        come_back_at(s, i, time_s)
        at_s, noticed_s, _, instance, lost = taken[-1]
        taken[-1] = at_s, noticed_s, time_s, instance, lost

    def note_cut(s: Simulation, i: Instance) -> None:
        cut[i.id] += [(step.start_s, s.now_s) for step in (i.step, i.prefill_step) if step is not None]
        lose_steps(s, i)

    def note_drop(s: Simulation, r: Request, lost_tokens: int) -> int:
        taken[-1][4][r.id] = had[r.id]
        return settle(s, r, lost_tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_end, "count_step", note_step)
        patch.setattr(loop, "advance", note_time)
        patch.setattr(crashes, "crash", note_crash)
        patch.setattr(crashes, "lose_steps", note_cut)
        patch.setattr(crashes, "come_back_at", note_return)
        patch.setattr(crashes, "settle", note_drop)
        loop.run(s)
    rows = [r for r in s.requests if r.state != UNSENT]
    off_s = [i.off_s_at(s.now_s) for i in s.instances]
    switched = [(i.starts, i.stops, i.reversals) for i in s.instances]
    sent = [r.id for r in rows]
    noted = [
        CrashNote(at_s, noticed_s, back_s, i.id, len(i.group), {sent.index(r): tokens for r, tokens in lost.items()})
        for at_s, noticed_s, back_s, i, lost in taken
    ]
    left_s = [[step.start_s for step in (i.step, i.prefill_step) if step is not None] for i in s.instances]
    return Records(s, sent, [r.end_s for r in rows], steps, held, off_s, down, cut, left_s, noted, switched)


def _prefilled(s: Simulation, r: Request) -> int | None:
    """What is computed or cached of a prompt that waits or is under way; None where it is all computed."""
    waits = any(r is other for i in s.instances for _, _, other in i.waiting + i.inbox)
    if waits or r.fetch is not None:
        return 0
    prefills = any(r in i.prefilling for i in s.instances)
    decodes = any(r in i.running for i in s.instances)
    return r.prefilled if prefills or (r.emitted == 0 and not decodes) else None


def _note(s: Simulation, step: Step, added: dict[str, Any]) -> StepNote:
    square = sum((prefix + tokens) ** 2 - prefix**2 for _, prefix, tokens in step.chunks)
    names = ("weight_passes", "expert_reads", "bubble_s")
    depth, decodes = step.depth, len(step.decodes)
    tokens = decodes * (1 + depth) + step.prefill_tokens
    noted = (s.now_s - step.start_s, s.now_s, tokens, step.context, step.context * (1 + depth))
    return StepNote(*noted, square, *(added[name] for name in names))
