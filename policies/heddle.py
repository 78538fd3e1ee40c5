"""Trajectories as wholes: the longest first, where few others are, on wider instances (Heddle: arXiv 2603.28101).

A trajectory is the calls of a session in a roll-out of agents. Its predicted length sets three things.

Order: a call waits by the length of its trajectory, the longest first. The prediction is made anew after each call, so
priority grows with progress, and what waits in many queues waits briefly in each.

Placement: every `period_s` the trajectories are sorted by length and cut into one range for each instance, so that the
largest product of the longest length of a range and the step time of so many requests is least. Long trajectories thus
have few neighbours. A call whose range has moved goes to the other instance, which fetches its context from the old
one.

Parallelism: `wide` instances of `width` times the tensor parallelism, made of the narrow ones, take the longest.

Reconstructed from the abstract. The predicted length is what the trajectory has generated so far, and `first_tokens`:
where lengths have long tails, what is longest so far has the most to come. Ranges are cut by bisection of the product,
which is optimal for sorted lengths; a step time is a line in the batch. A context is copied when its call comes, not
while the tool runs, and only with prefix stores. Widths do not change during a run. A trajectory that has been idle
for `idle_s` counts as ended. Steps are those of `vllm_v1`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, Whole, checked
from framework.engine.setup.config import Batching
from framework.policy import Aggregated, Cluster, Request
from framework.system.cluster import ClusterSpec, PoolSpec

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Heddle(Aggregated):
    """`wide` instances have `width` times the GPUs of others; a pool of fewer than `width` instances stays as it is."""

    batching_mode: ClassVar[Batching | None] = "unified"
    dynamic_keys = True

    @checked("policy.")
    def __init__(
        self,
        wide: Whole = 1,
        width: Count = 2,
        first_tokens: Positive = 500.0,
        period_s: Positive = 5.0,
        idle_s: Positive = 300.0,
    ) -> None:
        self.wide, self.width = wide, width
        self.first_tokens, self.period_s, self.idle_s = first_tokens, period_s, idle_s

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        return replace(spec := super().layout(spec), pools=tuple(p for pool in spec.pools for p in self._widened(pool)))

    def _widened(self, pool: PoolSpec) -> list[PoolSpec]:
        """The pool, of whose GPUs some are in `wide` wider instances, as far as one narrow instance is left."""
        wide = min(self.wide, (pool.instances - 1) // self.width)
        if wide == 0 or self.width == 1:
            return [pool]
        split = replace(pool.parallelism, tp=pool.parallelism.tp * self.width)
        narrow = replace(pool, instances=pool.instances - wide * self.width)
        return [narrow, replace(pool, name=f"{pool.name}_wide", instances=wide, parallelism=split)]

    def prepare(self, cluster: Cluster) -> None:
        sessions = cluster.requests.session
        names = np.where(sessions < 0, -1 - np.arange(len(sessions)), sessions)
        self._trajectory = np.unique(names, return_inverse=True)[1].reshape(-1)
        self._generated = np.zeros(int(self._trajectory.max(initial=0)) + 1)  # of each, by calls that have ended
        self._idle_since_s: dict[int, float] = {}  # of those that go on; inf: a call is under way
        self._home: dict[int, int] = {}  # the instance of each one's last call
        self._source: dict[int, int] = {}  # of calls that have been sent elsewhere: where the context is
        self._place: dict[int, int] = {}  # the instance of each one's range
        self._next_s = 0.0

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        one, pool = int(self._trajectory[request.id]), cluster.prefill
        self._idle_since_s[one] = np.inf
        if cluster.now_s >= self._next_s:
            self._place, self._next_s = self._ranges(cluster), cluster.now_s + self.period_s
        home = self._home.get(one, -1)
        chosen = self._place.get(one, home)
        if chosen not in pool.ids:
            chosen = pool.argmin(pool.queued + pool.prefilling + pool.running + pool.incoming)
        if home not in (-1, chosen):
            self._source[request.id] = home
        self._home[one] = chosen
        return chosen

    def fetch_prefix(self, request: Request, cluster: Cluster) -> int:
        return self._source.pop(request.id, -1)

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        keys: Floats = -self._generated[self._trajectory[queue]]
        return keys

    def on_finish(self, request: Request, cluster: Cluster) -> tuple[()]:
        one = self._trajectory[request.id]
        self._generated[one] += request.generated
        self._idle_since_s[int(one)] = cluster.now_s
        return ()

    def _ranges(self, cluster: Cluster) -> dict[int, int]:
        """The instance of each trajectory that goes on: ranges of the sorted lengths, the longest on the fastest."""
        lapsed = [one for one, since_s in self._idle_since_s.items() if since_s < cluster.now_s - self.idle_s]
        for one in lapsed:
            del self._idle_since_s[one]
        ones = np.array(list(self._idle_since_s), np.int64)
        ones = ones[np.lexsort([ones, -self._generated[ones]])]
        lengths = self.first_tokens + self._generated[ones]
        pool = cluster.prefill
        context = int(pool.kv_tokens.sum()) // max(1, int(pool.running.sum()))
        alone_s, most = pool.estimate_s(0, 1, context), max(2, len(ones))
        slope_s = np.maximum((pool.estimate_s(0, most, most * context) - alone_s) / (most - 1), 1e-3 * alone_s)
        fastest = np.argsort(alone_s, kind="stable")
        counts = _cut(lengths, alone_s[fastest], slope_s[fastest])
        places = np.repeat(pool.ids[fastest], counts)
        return dict(zip(ones.tolist(), places.tolist(), strict=True))


def _cut(lengths: Floats, alone_s: Floats, slope_s: Floats) -> Integers:
    """How many of the falling `lengths` each instance takes, in order, so that the largest length of a range times the
    step time `alone_s + slope_s * (count - 1)` is least; shape of `alone_s`.
    """

    def taken(limit_s: float) -> Integers:
        counts, begin = np.zeros(len(alone_s), np.int64), 0
        for i in range(len(alone_s)):
            if begin < len(lengths):
                room = 1.0 + (limit_s / lengths[begin] - alone_s[i]) / slope_s[i]
                counts[i] = min(max(0, int(room)), len(lengths) - begin)
                begin += counts[i]
        return counts

    if len(lengths) == 0:
        return np.zeros(len(alone_s), np.int64)
    low, high = 0.0, float(lengths[0] * (alone_s[0] + slope_s[0] * len(lengths)))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if taken(middle).sum() == len(lengths) else (middle, high)
    return taken(high)
