"""Continuous batching with paged KV memory, prompts first (vLLM: Kwon et al., SOSP 2023; scheduler of its version 0).

If a waiting prompt fits, an iteration prefills whole prompts and the decodes pause; otherwise all running requests
decode one token.
"""

from __future__ import annotations

from typing import ClassVar

from framework.engine.setup.config import Batching
from framework.policy import Aggregated
from framework.policy.rules import PREFILL_RULES, rule, set_order


class Continuous(Aggregated):
    """Iteration-level batching, prefill first; `routing` spreads requests, `order` reads the queues."""

    batching_mode: ClassVar[Batching | None] = "prefill_first"

    def __init__(self, routing: str = "least_queued", order: str = "fcfs") -> None:
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        set_order(self, order)
