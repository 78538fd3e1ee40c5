"""Chunked prefill with stall-free batching (Sarathi-Serve: Agrawal et al., OSDI 2024, Algorithm 3).

Every iteration decodes all running requests and fills the rest of the token budget with chunks of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from framework.checks import Count, check_fields
from framework.engine.setup.config import Batching
from framework.errors import InputError, shown
from framework.policy import Aggregated
from framework.policy.rules import PREFILL_RULES, rule, set_order
from framework.system.cluster import ChunkSchedule, ClusterSpec

_ALIGNED_TOKENS = 32


@dataclass(frozen=True)
class Stages:
    """The dynamic schedule of Sarathi-Serve's code: budgets from `high` down to `low` tokens, multiples of 32, evenly
    spaced over `stages` equal parts of the first `prompt_tokens` tokens of a prompt. Raises InputError for other
    values.
    """

    high: Count
    low: Count
    stages: Count
    prompt_tokens: Count

    def __post_init__(self) -> None:
        check_fields(self, "policy.chunks.")
        for name in ("high", "low"):
            if getattr(self, name) % _ALIGNED_TOKENS:
                raise InputError(f"policy.chunks.{name} must be a multiple of {_ALIGNED_TOKENS}")
        if self.low > self.high:
            raise InputError(f"policy.chunks.low={self.low} must not be above policy.chunks.high={self.high}")

    @property
    def schedule(self) -> ChunkSchedule:
        evenly = np.linspace(self.high, self.low, self.stages)
        sizes = _ALIGNED_TOKENS * np.round(evenly / _ALIGNED_TOKENS).astype(int)
        return ChunkSchedule(tuple(sizes.tolist()), math.ceil(self.prompt_tokens / self.stages))


class Chunked(Aggregated):
    """Decodes first, chunks fill the budget; `routing` spreads requests, `order` reads the queues.

    `chunks`: the fields of `Stages`, whose budgets then replace engine.token_budget.
    """

    batching_mode: ClassVar[Batching | None] = "decode_first"

    def __init__(
        self, routing: str = "least_queued", order: str = "fcfs", chunks: Mapping[str, int] | None = None
    ) -> None:
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        self.stages = None if chunks is None else _stages(chunks)
        set_order(self, order)

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        spec = super().layout(spec)
        if self.stages is None:
            return spec
        high, schedule = self.stages.high, self.stages.schedule
        pools = (replace(pool, token_budget=high, chunk_schedule=schedule) for pool in spec.pools)
        return replace(spec, pools=tuple(pools))


def _stages(chunks: Mapping[str, int]) -> Stages:
    names = set(Stages.__dataclass_fields__)
    if not isinstance(chunks, Mapping) or set(chunks) != names:
        raise InputError(f"policy.chunks must have high, low, stages and prompt_tokens, got {shown(chunks)}")
    return Stages(**chunks)
