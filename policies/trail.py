"""Shortest predicted remaining output first, with limited preemption (TRAIL: Shahout et al., arXiv 2410.01035).

The queue is read by the output that the predictor still expects of each request. Where one that waits finds no room or
seat, those that run with more left to come step aside for it. One that has emitted `share` of the output that was
predicted for it first is not preempted any more: its KV has become large, and it will soon end. With a share of 1 this
is shortest remaining time first, with a share of 0 shortest job first, without preemption. A request that steps aside
loses its KV, and is computed again.

Simplified: predictions are those of `predictor=`, where TRAIL trains a classifier on the model's own embeddings, asked
at each token. Who steps aside is decided whenever something changes on an instance. A prompt under way is not
preempted. Steps are those of `chunked`. Without a predictor the queue is first come, first served.
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
        self._predicted = np.full(len(cluster.requests.input_tokens), np.nan)  # output expected first of each request

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        return np.nan_to_num(self._left(queue, cluster))

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Who has more left than one that waits, and may be preempted, waits in its place."""
        waiting, running = cluster.queued(instance), cluster.decoding(instance)
        if len(waiting) == 0 or len(running) == 0:
            return []
        queued, left = self._left(waiting, cluster), self._left(running, cluster)
        may_leave = cluster.requests.generated(running) < self.share * self._predicted[running]
        longest = [k for k in np.argsort(-left, kind="stable") if may_leave[k]]
        keys = dict(zip(waiting.tolist(), queued, strict=True)) | dict(zip(running.tolist(), left, strict=True))
        leaving = stepping_aside(
            cluster,
            instance,
            waiting[np.argsort(queued, kind="stable")].tolist(),
            running[longest].tolist(),
            lambda one, other: bool(keys[one] < keys[other]),
        )
        return [action for r in leaving for action in (Preempt(r), Resume(r))]

    def _left(self, ids: Integers, cluster: Cluster) -> Floats:
        """Output tokens still expected of each, NaN without a predictor."""
        left = cluster.remaining_tokens(ids)
        new = np.isnan(self._predicted[ids])
        self._predicted[ids[new]] = (cluster.requests.generated(ids) + left)[new]
        return left
