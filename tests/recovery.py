"""Every step and every token of a Result, recovered in plain Python from its leaps and memberships."""

from __future__ import annotations

from collections import defaultdict

from framework.simulate import Result

Step = tuple[float, float, int, int, int]  # start, end, decodes, prefill tokens, summed context


def step_times(result: Result) -> dict[int, list[Step]]:
    """The steps of each instance in order."""
    steps: dict[int, list[Step]] = defaultdict(list)
    decode_steps: dict[int, int] = defaultdict(int)
    for leap in result.leaps:
        instance, batch = int(leap["instance"]), int(leap["batch"])
        assert leap["step0"] == decode_steps[instance] or batch == 0
        start, first, increment = float(leap["start_s"]), float(leap["first_s"]), float(leap["increment_s"])
        end = start
        for k in range(int(leap["steps"])):
            begin, end = end, start + (k + 1) * first + increment * (k * (k + 1) / 2)
            context = int(leap["context"]) + k * batch
            steps[instance].append((begin, end, batch, int(leap["prefill_tokens"]), context))
            decode_steps[instance] += batch > 0
    return steps


def token_times(result: Result) -> list[list[float]]:
    """The time of every token of every request."""
    ends = {i: [end for _, end, decodes, _, _ in steps if decodes] for i, steps in step_times(result).items()}
    times = [[float(t)] if t == t else [] for t in result.requests["first_token_s"]]
    for row in result.memberships:
        own, instance, previous_s = times[int(row["request"])], int(row["instance"]), float(row["previous_token_s"])
        if instance < 0:
            own.append(own[-1] + previous_s)
            continue
        assert abs(previous_s - own[-1]) <= 1e-9 * (1 + previous_s)
        own += ends[instance][int(row["first_step"]) : int(row["last_step"])]
    return times
