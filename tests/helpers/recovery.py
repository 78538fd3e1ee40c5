"""Every step and every token of a Result, recovered in plain Python from its leaps and memberships."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from framework.reference.options import Drafts
from framework.result import Result

Step = tuple[float, float, int, int, int]  # start, end, decodes, prefill tokens, summed context


def step_times(result: Result) -> dict[int, list[Step]]:
    """The steps of each instance in order of their ends: a prefill step may end within a leap of the decodes with."""
    steps: dict[int, list[Step]] = defaultdict(list)
    decode_steps: dict[int, int] = defaultdict(int)
    names = ("instance", "batch", "step0", "start_s", "first_s", "increment_s", "steps", "context", "prefill_tokens")
    for instance, batch, step0, start, first, increment, count, context, prefill in _rows(result.step_log, *names):
        assert step0 == decode_steps[instance] or batch == 0
        own, end = steps[instance], start
        for k in range(count):
            begin, end = end, start + (k + 1) * first + increment * (k * (k + 1) / 2)
            own.append((begin, end, batch, prefill, context + k * batch))
        decode_steps[instance] += count if batch else 0
    for own in steps.values():
        # A step of no time begins where another ends.
        own.sort(key=lambda step: (step[1], step[0] == step[1], step[2] == 0))
    return steps


def token_times(result: Result, steps: dict[int, list[Step]] | None = None) -> list[list[float]]:
    """The time of every token of every request; what a step accepted of its drafts is drawn again.

    `steps`: its `step_times`, if they are known.
    """
    speculation = result.engine.speculation
    drafts = Drafts(speculation.acceptance, speculation.most, False, 0.0, result.seed)
    ids = np.arange(len(result.requests)) if result.request_ids is None else result.request_ids
    depths: dict[int, list[int]] = defaultdict(list)
    for instance, depth, count, batch in _rows(result.step_log, "instance", "depth", "steps", "batch"):
        depths[instance] += [depth] * (count if batch else 0)
    steps = step_times(result) if steps is None else steps
    ends = {i: [end for _, end, decodes, _, _ in own if decodes] for i, own in steps.items()}
    times = [[t] if t == t else [] for t in result.requests["first_token_s"].tolist()]
    outputs = result.workload.output_tokens.tolist()
    names = ("request", "instance", "previous_token_s", "first_step", "last_step", "accepted")
    for request, instance, previous_s, first_step, last_step, accepted in _rows(result.token_log, *names):
        own = times[request]
        if instance < 0:
            own.append(own[-1] + previous_s)
            continue
        unreported = math.isnan(previous_s)  # its first step gave token 1
        first_s = own.pop() if unreported else 0.0
        assert not own if unreported else abs(previous_s - own[-1]) <= 1e-9 * (1 + previous_s)
        begun = len(own)
        for step in range(first_step, last_step):
            count = drafts.emitted(int(ids[request]), len(own), outputs[request] - len(own), depths[instance][step])
            own += [ends[instance][step]] * count
        assert len(own) - begun == last_step - first_step + accepted
        assert not unreported or abs(first_s - own[0]) <= 1e-9 * (1 + first_s)
    return times


def _rows(log: Any, *names: str) -> Iterator[tuple[Any, ...]]:
    """These fields of each entry of a log, as plain numbers."""
    return zip(*(log[name].tolist() for name in names), strict=True)
