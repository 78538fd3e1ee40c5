"""Request-level batching: a batch is served until its last request has ended, then the next one is made.

As engines did it before iteration-level scheduling (FasterTransformer; described by Yu et al., OSDI 2022, section 2,
and as the scheduler `faster_transformer` of Sarathi-Serve's code). Each request reserves KV for a whole context.
"""

from __future__ import annotations

from typing import ClassVar

from framework.checks import Count, checked
from framework.engine.setup.config import Batching
from framework.policy import Aggregated
from framework.policy.rules import PREFILL_RULES, reserving, rule, set_order
from framework.system.cluster import ClusterSpec


class Static(Aggregated):
    """Batches of up to engine.max_batch requests, each of which reserves `reserve_tokens` of KV."""

    batching_mode: ClassVar[Batching | None] = "static"

    @checked("policy.")
    def __init__(self, reserve_tokens: Count, routing: str = "least_queued", order: str = "fcfs") -> None:
        self.reserve_tokens = reserve_tokens
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        set_order(self, order)

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        return reserving(super().layout(spec), self.reserve_tokens)
