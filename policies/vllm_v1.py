"""One token budget for both phases, KV blocks allocated chunk by chunk (vLLM, scheduler of its version 1).

Running requests come first: each decodes, or prefills up to the rest of the budget; then waiting ones are admitted
whose whole prompts have room. If a chunk finds no block, the last admitted request is preempted and recomputed. Cached
prefixes are skipped. On prefill and decode instances (its KV connectors), all schedule this way, and KV goes to the
instance that holds the least.
"""

from __future__ import annotations

from typing import ClassVar

from framework.engine.setup.config import Batching
from framework.policy import Policy
from framework.policy.rules import PREFILL_RULES, rule, set_order


class VllmV1(Policy):
    """Unified steps; `routing` spreads requests, `order` reads the queues."""

    batching_mode: ClassVar[Batching | None] = "unified"

    def __init__(self, routing: str = "least_queued", order: str = "fcfs") -> None:
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        set_order(self, order)
