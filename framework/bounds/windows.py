"""How many requests can have their first token in time: prefill work in windows from arrival to deadline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.jit import compiled

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SLACK = 1e-9  # of a deadline: sums of times in another order


def most_in_time(ready_s: Floats, due_s: Floats, work_s: Floats) -> int:
    """Most jobs that one machine, which may interrupt them, can complete within [ready, due]; each array (N,).

    `ready_s` must not fall. Deadlines that do are put off until none does, which only lets more jobs pass. Then first
    come, first served is an order that keeps all deadlines if any does, and jobs can be dropped one by one: whenever a
    job would be late, the one without which the others end earliest (H. Kise, T. Ibaraki, H. Mine, "A solvable case of
    the one-machine scheduling problem with ready and due times", Operations Research 26(1), 1978).
    """
    due_s = np.maximum.accumulate(due_s)
    return int(_kept(ready_s, due_s + _SLACK * (1 + np.abs(due_s)), work_s))


@compiled
def _kept(ready_s: Floats, due_s: Floats, work_s: Floats) -> int:
    kept, start_s = np.empty(len(ready_s), np.int64), np.empty(len(ready_s))
    count, end_s = 0, -np.inf
    for job in range(len(ready_s)):
        kept[count], start_s[count] = job, max(end_s, ready_s[job])
        end_s = start_s[count] + work_s[job]
        count += 1
        if end_s <= due_s[job]:
            continue
        out, saved_s, slack_s = count - 1, work_s[job], np.inf
        for k in range(count - 1, -1, -1):  # dropping k moves those behind it by what each can move
            if k == count - 1:
                before_s = -np.inf if k == 0 else start_s[k - 1] + work_s[kept[k - 1]]
                saved_s = end_s - before_s
            elif min(work_s[kept[k]], slack_s) > saved_s:
                out, saved_s = k, min(work_s[kept[k]], slack_s)
            slack_s = min(slack_s, start_s[k] - ready_s[kept[k]])
            if slack_s <= saved_s:
                break
        count -= 1
        end_s = -np.inf if out == 0 else start_s[out - 1] + work_s[kept[out - 1]]
        for k in range(out, count):
            kept[k] = kept[k + 1]
            start_s[k] = max(end_s, ready_s[kept[k]])
            end_s = start_s[k] + work_s[kept[k]]
    return count
