"""Iteration-level scheduling with KV reserved for whole contexts (Orca: Yu et al., OSDI 2022, sections 3.1 and 4.2).

Every iteration decodes all running requests; new ones are admitted, first come first served, while a full reservation
and a seat are left, and their whole prompts run in the same iteration (selective batching). Nothing is preempted.
"""

from __future__ import annotations

from typing import ClassVar

from framework.cluster import ClusterSpec
from framework.engine.config import Batching
from framework.policy import Aggregated
from framework.validate import require_count
from policies.rules import PREFILL_RULES, reserving, rule, set_order


class Orca(Aggregated):
    """Mixed steps of whole prompts and decodes; each request reserves `reserve_tokens` of KV."""

    batching_mode: ClassVar[Batching | None] = "mixed"

    def __init__(self, reserve_tokens: int, routing: str = "least_queued", order: str = "fcfs") -> None:
        require_count("policy.reserve_tokens", reserve_tokens)
        self.reserve_tokens = reserve_tokens
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        set_order(self, order)

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        return reserving(super().layout(spec), self.reserve_tokens)
