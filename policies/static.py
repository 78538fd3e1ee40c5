"""Request-level batching: a batch is served until its last request has ended, then the next one is made.

Engines worked this way before iteration-level scheduling (FasterTransformer; described by Yu et al., OSDI 2022, section
2, and as the scheduler `faster_transformer` of Sarathi-Serve's code). Each request reserves KV for the longest one.

In the Triton server, FasterTransformer's front end, the requests of a model wait in one queue, from which the next free
instance takes a batch. Here a request is routed on its arrival: `routing=next_free` sends it to the instance whose
batch seems nearest to its end, by its completed steps and remaining requests, so the next batch gathers there.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, checked
from framework.engine.setup.config import Batching
from framework.policy import Aggregated
from framework.policy.rules import PREFILL_RULES, reserving, rule, set_order
from framework.policy.view import Cluster, Request
from framework.system.cluster import ClusterSpec

Integers = NDArray[np.int64]

# steps by which each remaining request of a batch is assumed to delay its end; chosen on Azure's conversations
_LEFT_STEPS = 16
_FULL = 2**40  # more than any number of steps


class Static(Aggregated):
    """Batches of up to engine.max_batch requests.

    Each reserves `reserve_tokens` of KV; None: those of the longest request that the cluster is for.
    """

    batching_mode: ClassVar[Batching | None] = "static"

    @checked("policy.")
    def __init__(self, reserve_tokens: Count | None = None, routing: str = "next_free", order: str = "fcfs") -> None:
        self.reserve_tokens = reserve_tokens
        self.route_prefill = rule("policy.routing", routing, {"next_free": self._next_free, **PREFILL_RULES})
        set_order(self, order)

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        return reserving(super().layout(spec), self.reserve_tokens)

    def _next_free(self, request: Request, cluster: Cluster) -> int:
        """An idle instance; else, among those whose next batch has room, the one whose batch seems nearest to
        its end.
        """
        able = cluster.prefill
        busy = able.running + able.prefilling + able.queued > 0
        if not busy.all():
            return able.argmin(busy)
        done = np.array([_steps(cluster, int(i)) for i in able.ids]) - _LEFT_STEPS * able.running
        return able.argmin(np.where(able.queued < self._seats(cluster), -done, _FULL + able.queued))

    def _seats(self, cluster: Cluster) -> Integers:
        """The largest batch of each instance that memory and seats allow."""
        able = cluster.prefill
        tokens = np.array([cluster.spec.pools[pool].reserve_tokens or 1 for pool in able.pool])
        return np.maximum(np.minimum(able.total_blocks * cluster.block_tokens // tokens, able.max_batch), 1)


def _steps(cluster: Cluster, instance: int) -> int:
    """Decode steps that the batch of an instance has done, by its remaining requests."""
    return int(cluster.requests.generated(cluster.decoding(instance)).max(initial=0))
