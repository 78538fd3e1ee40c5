"""Idle seats of static batching: those of ended requests, until the last request of their batch has ended."""

from __future__ import annotations

import numpy as np

from framework.result import Result


def idle_seats(result: Result) -> dict[str, float | None]:
    """`idle_seat_share`: the idle share of the time of all seats in decode steps of static batches; no key without any.

    A batch has as many seats as the most requests that decode in one of its steps, and keeps them in all of them; its
    steps are those between two steps that prefill. None if the step log was reduced, or if no static batch decodes.
    """
    static = [result.engine.batching_of(pool) == "static" for pool in result.cluster.pools]
    if not any(static):
        return {}
    log = result.step_log
    leaps = log[np.array(static)[result.instances["pool"][log["instance"]]]]
    leaps = leaps[np.argsort(leaps["instance"], kind="stable")]
    steps = leaps["steps"].astype(np.float64)
    lasting_s = steps * leaps["first_s"] + steps * (steps - 1) / 2 * leaps["increment_s"]
    decodes = leaps["batch"] > 0
    begins = (leaps["prefill_tokens"] > 0) | (np.diff(leaps["instance"], prepend=-1) != 0)
    batch = np.cumsum(begins)[decodes]
    taken = leaps["batch"][decodes].astype(np.float64)
    seats = np.zeros(int(batch.max(initial=0)) + 1)
    np.maximum.at(seats, batch, taken)
    whole_s = float(seats[batch] @ lasting_s[decodes])
    return {"idle_seat_share": 1 - float(taken @ lasting_s[decodes]) / whole_s if whole_s > 0 else None}
