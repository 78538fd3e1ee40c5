"""Prefill and decode on separate instances (DistServe: Zhong et al., OSDI 2024, section 4).

Prompts are batched whole, first come first served, up to the token budget; a decode instance pulls KV when it has room.
"""

from __future__ import annotations

from framework.policy import Disaggregated
from framework.policy.rules import DECODE_RULES, PREFILL_RULES, rule, set_order


class DistServe(Disaggregated):
    """Static pools: `routing` chooses the prefill instance, `placement` the decode one, `order` reads the queues."""

    def __init__(self, routing: str = "least_queued", placement: str = "least_kv", order: str = "fcfs") -> None:
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        self.route_decode = rule("policy.placement", placement, DECODE_RULES)
        set_order(self, order)
