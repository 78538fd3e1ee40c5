"""The requests of one run as plain arrays: what a trace becomes before it is simulated."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from framework.errors import InputError


@dataclass(frozen=True)
class Workload:
    """N requests in trace order, each array of shape (N,) unless said otherwise.

    `arrival_s` is non-decreasing and holds the recorded times; a request with `previous >= 0` (a later turn of a
    session) arrives `think_s` after request `previous` has ended instead. Prompt prefixes are shared where
    `hash_ids[hash_offsets[r] + j]` (block j of request r, `hash_block_tokens` tokens each, ids chained: the same id
    means the same prefix up to and including that block) are equal.
    """

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    name: str = "workload"
    source: str = "synthetic"  # real | twin | synthetic
    sha256: str = ""
    hash_ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # (K,)
    hash_offsets: NDArray[np.int64] | None = None  # (N + 1,), None: no prefix information
    hash_block_tokens: int = 0
    previous: NDArray[np.int64] | None = None  # index of the turn before, -1: none
    think_s: NDArray[np.float64] | None = None
    session_id: NDArray[np.int64] | None = None  # -1: none
    turn: NDArray[np.int64] | None = None
    slo_class: tuple[str, ...] | None = None
    priority: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()  # what a reader of the results should know (jitter, rescaling, a twin)

    def __post_init__(self) -> None:
        count = len(self.arrival_s)
        for name in (
            "input_tokens",
            "output_tokens",
            "previous",
            "think_s",
            "session_id",
            "turn",
            "slo_class",
            "priority",
        ):
            column = getattr(self, name)
            if column is not None and len(column) != count:
                raise InputError(f"workload: {name} has {len(column)} rows, arrival_s has {count}")
        if count == 0:
            raise InputError("workload: no requests")
        if not np.all(np.isfinite(self.arrival_s)) or np.any(np.diff(self.arrival_s) < 0) or self.arrival_s[0] < 0:
            raise InputError("workload: arrival_s must be finite, non-negative and non-decreasing")
        if self.input_tokens.min() < 1 or self.output_tokens.min() < 1:
            raise InputError("workload: input_tokens and output_tokens must be at least 1")
        if self.hash_offsets is not None and (len(self.hash_offsets) != count + 1 or self.hash_block_tokens < 1):
            raise InputError("workload: hash_offsets needs N + 1 entries and hash_block_tokens >= 1")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def has_prefixes(self) -> bool:
        return self.hash_offsets is not None and len(self.hash_ids) > 0
