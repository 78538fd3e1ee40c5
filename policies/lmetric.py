"""Routing by the product of new prefill tokens and batch size (LMetric: Zhang et al., arXiv 2603.15202).

The score of an instance is a product. One factor is the tokens that it would have to prefill: those that wait there and
those of the request that its cache lacks. The other is the number of requests that it would then serve. The least score
wins. A weight of either factor would not change the order, so there is nothing to tune.

Simplified: the request counts in both factors, so neither is zero and an idle instance is not chosen whatever its cache
lacks. Among equal scores the first instance wins. The check for the rare cases in which the product fails is left out.
Steps are unified, as in `vllm_v1`.
"""

from __future__ import annotations

from typing import ClassVar

from framework.engine.setup.config import Batching
from framework.policy import Aggregated, Cluster, Request


class LMetric(Aggregated):
    """There are no settings."""

    batching_mode: ClassVar[Batching | None] = "unified"

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        pool = cluster.prefill
        new_tokens = pool.queued_tokens + request.input_tokens - pool.cached_tokens(request)
        requests = pool.queued + pool.prefilling + pool.running + pool.incoming + 1
        return pool.argmin(new_tokens * requests)
