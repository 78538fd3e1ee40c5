"""Every step and every token of a Result, recovered in plain Python from its leaps and memberships."""

from __future__ import annotations

from collections import defaultdict

from framework.engine.reference.options import Drafts
from framework.result import Result

Step = tuple[float, float, int, int, int]  # start, end, decodes, prefill tokens, summed context


def step_times(result: Result) -> dict[int, list[Step]]:
    """The steps of each instance in order of their ends: a prefill step may end within a leap of the decodes beside."""
    steps: dict[int, list[Step]] = defaultdict(list)
    decode_steps: dict[int, int] = defaultdict(int)
    for leap in result.step_log:
        instance, batch = int(leap["instance"]), int(leap["batch"])
        assert leap["step0"] == decode_steps[instance] or batch == 0
        start, first, increment = float(leap["start_s"]), float(leap["first_s"]), float(leap["increment_s"])
        end = start
        for k in range(int(leap["steps"])):
            begin, end = end, start + (k + 1) * first + increment * (k * (k + 1) / 2)
            context = int(leap["context"]) + k * batch
            steps[instance].append((begin, end, batch, int(leap["prefill_tokens"]), context))
            decode_steps[instance] += batch > 0
    for own in steps.values():
        own.sort(key=lambda step: (step[1], step[2] == 0))
    return steps


def token_times(result: Result) -> list[list[float]]:
    """The time of every token of every request; what a step accepted of its drafts is drawn again."""
    speculation = result.engine.speculation
    drafts = Drafts(speculation.acceptance, speculation.most, False, 0.0, result.seed)
    depths: dict[int, list[int]] = defaultdict(list)
    for leap in result.step_log:
        depths[int(leap["instance"])] += [int(leap["depth"])] * int(leap["steps"] if leap["batch"] else 0)
    ends = {i: [end for _, end, decodes, _, _ in steps if decodes] for i, steps in step_times(result).items()}
    times = [[float(t)] if t == t else [] for t in result.requests["first_token_s"]]
    for row in result.token_log:
        own, instance, previous_s = times[int(row["request"])], int(row["instance"]), float(row["previous_token_s"])
        if instance < 0:
            own.append(own[-1] + previous_s)
            continue
        assert abs(previous_s - own[-1]) <= 1e-9 * (1 + previous_s)
        begun = len(own)
        for step in range(int(row["first_step"]), int(row["last_step"])):
            left = int(result.workload.output_tokens[row["request"]]) - len(own)
            depth = depths[instance][step]
            count = drafts.emitted(int(row["request"]), len(own), left, depth)
            own += [ends[instance][step]] * count
        assert len(own) - begun == row["last_step"] - row["first_step"] + row["accepted"]
    return times
