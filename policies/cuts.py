"""Work before and after a cut of a request: compiled parts of policies that cut requests in two."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.jit import compiled
from framework.timing.estimate import StepTimes, estimate_s

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
def outputs_ahead(parts: Integers, ids: Integers, at: Integers, end: Floats, instances: int) -> Floats:
    """Tokens that requests which have come to `at` will generate on each instance until `end`."""
    here, later = np.zeros(instances), np.zeros(instances)
    for k in range(len(ids)):
        cut = parts[2, ids[k]]
        here[parts[0, ids[k]]] += max(min(cut, end[k]) - at[k], 0)
        later[parts[1, ids[k]]] += max(end[k] - max(at[k], cut), 0)
    return here + later


@compiled
def work_s(tokens: int, times: StepTimes, i: int, each_s: float, prompt: int) -> float:
    """Seconds of the first `tokens` of a request on i: its prompt in one step, its output at `each_s` a token."""
    return estimate_s(times, i, min(tokens, prompt), 0, 0) + max(tokens - prompt, 0) * each_s


@compiled
def balanced_cut(
    before_s: Floats, total: int, times: StepTimes, pair: Integers, each_s: Floats, prompt: int
) -> tuple[int, float]:
    """The cut of a request between two instances with that much work before it at which the first has no less than the
    second, found by bisection; and the work of the busier.
    """
    whole_s = work_s(total, times, pair[1], each_s[1], prompt)
    low, high = 1, total
    while low < high:
        cut = (low + high) // 2
        first_s = before_s[0] + work_s(cut, times, pair[0], each_s[0], prompt)
        if first_s >= before_s[1] + (whole_s - work_s(cut, times, pair[1], each_s[1], prompt)):
            high = cut
        else:
            low = cut + 1
    first_s = before_s[0] + work_s(low, times, pair[0], each_s[0], prompt)
    return low, max(first_s, before_s[1] + (whole_s - work_s(low, times, pair[1], each_s[1], prompt)))
