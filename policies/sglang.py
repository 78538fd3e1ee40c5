"""Chunks of prompts, and admission that leaves room for outputs (SGLang: Zheng et al., NeurIPS 2024).

Admissions leave room for what running requests may still emit, times a ratio that falls with each decode step and is
measured again when memory was short. Then the requests that have emitted least are preempted, and wait behind those
that came meanwhile.

By SGLang's default (`steps=chunks_first`), steps are chunks of prompts while a prompt finds room, at most one of which
is cut; decodes wait. With its option --enable-mixed-chunk (`steps=mixed`) a step has all decodes, and chunks in the
rest of its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from framework.engine.setup.config import Batching
from framework.policy import Aggregated
from framework.policy.rules import PREFILL_RULES, rule, set_order
from framework.system.cluster import ClusterSpec

_STEPS: Mapping[str, Batching] = {"chunks_first": "chunks_first", "mixed": "decode_first"}


class SGLang(Aggregated):
    """`steps`: chunks of prompts before decodes, or with them; `routing` spreads requests, `order` reads the queues."""

    def __init__(self, steps: str = "mixed", routing: str = "least_queued", order: str = "fcfs") -> None:
        self.steps = rule("policy.steps", steps, _STEPS)
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        set_order(self, order)

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        spec = super().layout(spec)
        return replace(spec, pools=tuple(replace(pool, batching=pool.batching or self.steps) for pool in spec.pools))
