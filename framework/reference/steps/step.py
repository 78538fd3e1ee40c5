"""A step of an instance under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Request = Any  # `framework.reference.state.Request`, which has none of these

Chunk = tuple[Request, int, int]  # request, prefix, tokens


@dataclass
class Step:
    """A step under way."""

    start_s: float
    end_s: float
    mode: str
    decodes: list[Request]
    chunks: list[Chunk]
    context: int
    depth: int = 0
    bubble_s: float = 0.0  # seconds that pipeline stages wait, summed over stages
    beyond: float = 0.0  # how far it exceeds the measured range; at most 1: within
    micro_batches: int = 1  # micro-batches that are not empty
    is_concurrent: bool = False  # a prefill step concurrent with the decodes
    # of a span's step: tokens that this instance computes, and its part of the squares of all
    own: tuple[int, float] | None = None
    # share of attention in the time of a concurrent prefill step, if it ran alone on all SMs
    attention_share: float = 0.0
    dropped: list[Request] = field(default_factory=list)  # requests preempted while it ran

    @property
    def prefill_tokens(self) -> int:
        return sum([tokens for _, _, tokens in self.chunks]) if self.own is None else self.own[0]

    @property
    def prefill_square(self) -> float:
        """The sum over its chunks of (prefix + chunk)^2 - prefix^2."""
        squares = sum([(prefix + tokens) ** 2 - prefix**2 for _, prefix, tokens in self.chunks])
        return squares if self.own is None else self.own[1]
