"""What bounds a pool, in one word with its evidence: compute, bandwidth, capacity, queue, or none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from framework.metrics.summary import Evaluation
from framework.result import Result

_FULL = 0.8  # share of the KV memory in use
_BUSY = 0.5  # share of the time in steps: below it, instances had time for what waited


@dataclass(frozen=True)
class PoolLimit:
    """`word`: compute, bandwidth, capacity, queue or none; `evidence`: the figures that show it."""

    word: str
    evidence: str


def pool_limits(result: Result, evaluation: Evaluation) -> Iterator[PoolLimit]:
    """One of each pool, in the order of the pool table."""
    requests = evaluation.requests.drop_nulls(["prefill_s", "prefill_instance"])
    pools = result.instances["pool"][requests["prefill_instance"].to_numpy()]
    for index, pool in enumerate(evaluation.pools.iter_rows(named=True)):
        own = requests.filter(pl.Series(pools == index))
        waits = own.select(pl.col("queue_s", "prefill_s").mean()).row(0)
        yield pool_limit(pool, *(0.0 if wait_s is None else float(wait_s) for wait_s in waits))


def pool_limit(pool: Mapping[str, Any], queue_s: float, prefill_s: float) -> PoolLimit:
    """The limit of a row of the pool table whose requests wait `queue_s` for a prefill of `prefill_s`, on average.

    It is capacity if 80 % of the KV memory is in use. Else, if instances are in steps for half of the time, it is
    compute or bandwidth: the peak that these steps come nearer to. Else it is queue if requests wait longer than their
    prefills take.
    """
    if (pool["kv_utilization"] or 0.0) >= _FULL:
        return PoolLimit("capacity", f"{_percent(pool['kv_utilization'])} of the KV memory are in use on average")
    busy = pool["utilization"] or 0.0
    steps = f"instances are in steps for {_percent(busy)} of the time"
    if busy >= _BUSY:
        if pool["mfu"] is None or pool["mbu"] is None:
            return PoolLimit("none", f"{steps}; no peak is stated")
        peaks = f"{_percent(pool['mfu'] / busy)} of peak FLOP/s and {_percent(pool['mbu'] / busy)} of peak bandwidth"
        return PoolLimit("compute" if pool["mfu"] >= pool["mbu"] else "bandwidth", f"its steps reach {peaks}")
    if queue_s > prefill_s:
        waits = f"requests wait {queue_s:.3g} s for prefills of {prefill_s:.3g} s on average"
        return PoolLimit("queue", f"{waits}, and {steps}")
    return PoolLimit("none", f"{steps}, and requests hardly wait")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
