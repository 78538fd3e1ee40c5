"""Shortest predicted remaining output first, with limited preemption (TRAIL: Shahout et al., arXiv 2410.01035).

The queue is ordered by the output that the predictor still expects of each request. If a waiting request finds no room
or seat, running ones with more left step aside for it. A request that has emitted `share` of its first predicted output
is not preempted any more: its KV has become large, and it will soon end. A share of 1 gives shortest remaining time
first, a share of 0 shortest job first, without preemption. A request that steps aside loses its KV, and is computed
again.

Simplified: predictions are those of `predictor=`; TRAIL trains a classifier on the model's own embeddings, asked at
each token. Preemptions are decided whenever something changes on an instance. A prompt under way is not preempted.
Steps are those of `chunked`. Without a predictor the queue is first come, first served.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Share, checked
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Preempt, Resume
from framework.policy.rules import PREFILL_RULES, rule
from policies._stepping_aside import stepping_aside

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Trail(Aggregated):
    """`share` of its predicted output after which a request is not preempted; `routing` spreads requests."""

    batching_mode: ClassVar[Batching | None] = "decode_first"
    dynamic_keys = True

    @checked("policy.")
    def __init__(self, share: Share = 0.8, routing: str = "least_queued") -> None:
        self.share = share
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)

    def prepare(self, cluster: Cluster) -> None:
        self._predicted = np.full(len(cluster.requests.input_tokens), np.nan)  # first predicted output of each request

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        return np.nan_to_num(self._left(queue, cluster))

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Preempt requests that may be preempted and have more left than a waiting one, which takes their place."""
        waiting, running = cluster.queued(instance), cluster.decoding(instance)
        if len(waiting) == 0 or len(running) == 0:
            return []
        queued, left = self._left(waiting, cluster), self._left(running, cluster)
        may_leave = cluster.requests.generated(running) < self.share * self._predicted[running]
        first, last = np.argsort(queued, kind="stable"), np.argsort(-left, kind="stable")
        last = last[may_leave[last]]
        costs = queued[first], left[last]
        leaving = stepping_aside(cluster, instance, waiting[first], running[last], costs)
        return [action for r in leaving for action in (Preempt(r), Resume(r))]

    def _left(self, ids: Integers, cluster: Cluster) -> Floats:
        """Output tokens still expected of each, NaN without a predictor."""
        generated = cluster.requests.generated(ids)
        left = cluster.predictions.remaining(ids, generated)
        new = np.isnan(self._predicted[ids])
        if new.any():
            self._predicted[ids[new]] = (generated + left)[new]
        return left
