"""Chunked prefill with stall-free batching (Sarathi-Serve: Agrawal et al., OSDI 2024, Algorithm 3).

Every iteration decodes all running requests and fills the rest of the token budget with chunks of prompts.
"""

from __future__ import annotations

from typing import ClassVar

from framework.engine.config import Batching
from framework.policy import Aggregated
from policies.rules import PREFILL_RULES, rule, set_order


class Chunked(Aggregated):
    """Decodes first, chunks fill the budget; `routing` spreads requests, `order` reads the queues."""

    batching_mode: ClassVar[Batching | None] = "decode_first"

    def __init__(self, routing: str = "least_queued", order: str = "fcfs") -> None:
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        set_order(self, order)
