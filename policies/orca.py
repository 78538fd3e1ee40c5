"""Iteration-level scheduling with KV reserved for whole contexts (Orca: Yu et al., OSDI 2022, sections 3.1 and 4.2).

Every iteration decodes all running requests. New ones are admitted, first come first served, while a full reservation
and a seat are left, and their whole prompts run in the same iteration (selective batching). Nothing is preempted.
"""

from __future__ import annotations

from typing import ClassVar

from framework.checks import Count, checked
from framework.engine.setup.config import Batching
from policies.static import Static


class Orca(Static):
    """Static reservations with mixed steps of whole prompts and decodes instead of batches."""

    batching_mode: ClassVar[Batching | None] = "mixed"

    @checked("policy.")
    def __init__(self, reserve_tokens: Count | None = None, routing: str = "least_queued", order: str = "fcfs") -> None:
        super().__init__(reserve_tokens, routing, order)
