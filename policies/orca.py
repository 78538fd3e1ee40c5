"""Iteration-level scheduling with KV reserved from admission on (Orca: Yu et al., OSDI 2022, sections 3.1 and 4.2).

Every iteration decodes all running requests. New ones are admitted, first come first served, while a full reservation
and a seat are left, and their whole prompts run in the same iteration (selective batching). Nothing is preempted.

The paper's scheduler reserves `max_tokens` of each request: its prompt, and the longest output that its client asks
for. `reserve_tokens=declared` leaves that to `engine.output_reserve`; a number reserves it for each request, as in the
variants of vLLM's paper (Kwon et al., SOSP 2023, section 6.1).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from framework.checks import Count, checked
from framework.engine.setup.config import Batching
from framework.policy import Aggregated
from framework.system.cluster import ClusterSpec
from policies.static import Static


class Orca(Static):
    """Static reservations with mixed steps of whole prompts and decodes instead of batches."""

    batching_mode: ClassVar[Batching | None] = "mixed"

    @checked("policy.")
    def __init__(
        self,
        reserve_tokens: Count | Literal["declared"] | None = None,
        routing: str = "least_queued",
        order: str = "fcfs",
    ) -> None:
        self._pages = reserve_tokens == "declared"
        super().__init__(None if reserve_tokens == "declared" else reserve_tokens, routing, order)

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        return Aggregated.layout(self, spec) if self._pages else super().layout(spec)
