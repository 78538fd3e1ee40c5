"""What instances were doing while requests waited for their first admission: why there was a queue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.metrics.series import Windows, integral, span_s, time_series, windows_of
from framework.result import Result

Floats = NDArray[np.float64]
_WINDOWS = 400
_FULL = 0.8  # share of the KV memory that decodes read, from which admissions wait for it
_SEATS = 0.9  # share of the seats of a batch
_BUSY = 0.8  # share of the time in steps
_IDLE = 0.6  # share of the time in steps of an instance beside which others have queues


@dataclass(frozen=True)
class Waiting:
    """Means over the time that requests wait, each moment weighted by how many do.

    `busy`: share of the time in steps of the pools that prefill; `least_busy`: of the least busy instance of these;
    `kv`: share of the KV memory that decodes read, in the pool where it is fullest, `kv_pool`; `seats`: decoding
    requests, of those that an instance may hold at once, likewise. NaN where nothing waits.
    """

    busy: float
    least_busy: float
    kv: float
    kv_pool: str
    seats: float
    instances: int

    @property
    def reason(self) -> str:
        """memory, seats, routing, prefill (the instances are busy), or held: nothing of these."""
        if self.kv >= _FULL:
            return "memory"
        if self.seats >= _SEATS:
            return "seats"
        if self.instances > 1 and self.least_busy < _IDLE and self.busy - self.least_busy > 1 - _BUSY:
            return "routing"
        return "prefill" if self.busy >= _BUSY else "held"


def waiting_of(result: Result) -> Waiting | None:
    """None where the step log was reduced, or nothing waited."""
    start_s, end_s = span_s(result)
    if result.engine.log != "full" or end_s <= start_s:
        return None
    good = np.zeros(len(result.requests), np.bool_)
    windows = windows_of(result, (end_s - start_s) / _WINDOWS)
    table = time_series(result, good, windows.window_s)
    pools = result.cluster.pools
    columns = {
        name: table[name].to_numpy().astype(np.float64).reshape(-1, len(pools) + 1).T
        for name in ("queue", "utilization", "decode_kv_share", "decoding", "window_s")
    }
    weight = columns["queue"] * columns["window_s"]
    if weight[0].sum() <= 0:
        return None

    def mean(values: Floats, weights: Floats) -> float:
        return float(np.nansum(np.nan_to_num(values) * weights) / weights.sum()) if weights.sum() > 0 else float("nan")

    own = [index for index in range(len(pools)) if weight[index + 1].sum() > 0]
    busy = float(sum(mean(columns["utilization"][i + 1], weight[i + 1]) * weight[i + 1].sum() for i in own))
    kv = [mean(columns["decode_kv_share"][i + 1], weight[0]) for i in range(len(pools))]
    seats = [
        mean(columns["decoding"][i + 1] / (pool.instances * (pool.max_batch or result.engine.max_batch)), weight[0])
        for i, pool in enumerate(pools)
    ]
    fullest = int(np.argmax(kv))
    return Waiting(
        busy=busy / float(sum(weight[i + 1].sum() for i in own)) if own else float("nan"),
        least_busy=_least_busy(result, own, weight, windows),
        kv=kv[fullest],
        kv_pool=pools[fullest].name,
        seats=max(seats),
        instances=sum(pools[i].instances for i in own),
    )


def _least_busy(result: Result, pools: list[int], weight: Floats, windows: Windows) -> float:
    """The share of the time that the least busy instance of these pools spends in steps while requests wait there."""
    leaps, count = result.step_log, len(result.instances)
    steps = leaps["steps"].astype(np.float64)
    end_s = leaps["start_s"] + steps * leaps["first_s"] + steps * (steps - 1) / 2 * leaps["increment_s"]
    ones = np.ones(len(leaps))
    busy_s = integral(windows, leaps["start_s"], end_s, ones, leaps["instance"].astype(np.int64), count)
    share = np.minimum(busy_s / np.diff(windows.edges_s), 1.0)
    least = [share[result.instances["pool"] == pool].min(axis=0) for pool in pools]
    total = sum(float(weight[pool + 1].sum()) for pool in pools)
    return sum(float(row @ weight[pool + 1]) for row, pool in zip(least, pools, strict=True)) / total if total else 1.0
