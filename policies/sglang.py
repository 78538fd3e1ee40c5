"""Prompts first, in chunks, and admission that leaves room for outputs (SGLang: Zheng et al., NeurIPS 2024).

While a prompt finds room, steps are chunks of prompts, one of which is cut at most; decodes wait. Room is what running
requests may still emit, times a ratio that falls with each decode step and is measured anew when memory was short. Then
the requests that have emitted least give way, and wait behind those that came meanwhile.
"""

from __future__ import annotations

from typing import ClassVar

from framework.engine.setup.config import Batching
from framework.policy import Aggregated
from framework.policy.rules import PREFILL_RULES, rule, set_order


class SGLang(Aggregated):
    """Chunks of prompts before decodes; `routing` spreads requests, `order` reads the queues."""

    batching_mode: ClassVar[Batching | None] = "chunks_first"

    def __init__(self, routing: str = "least_queued", order: str = "fcfs") -> None:
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        set_order(self, order)
