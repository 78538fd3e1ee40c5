"""Elastic sequence parallelism (LoongServe: Wu et al., SOSP 2024): as many instances as pay compute a long prompt.

As published:
1. Prefill: the degree of parallelism is chosen for each prompt as it begins, by an estimate of what it costs all
   requests: its own time, and that of those which stand still on its instances (sections 5.1 to 5.3).
2. Proactive scale-down: while the prompt is computed, its KV goes to the fewest instances that hold it (section 4.1).
3. Decoding: every instance is a master for its own requests, and computes attention over its part of the KV of others
   (section 4.2).

Simplified: short prompts are batched on one instance by its own scheduler, not by the paper's dynamic program. No KV is
moved away from an instance to free it for a prefill. A request's instances do not change while it decodes: where the
leading one runs out of KV memory, requests are computed again instead of going on with one instance more.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Whole, between, checked
from framework.codes import MIXED
from framework.engine.setup.config import Batching
from framework.policy import Aggregated, Cluster, Request, Span

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Loongserve(Aggregated):
    """`least_tokens`: prompts from that length on may be computed by several instances; `most`: of them, 0: all.

    `output_tokens`: KV that the leading instance leaves for the output. `spare`: share of KV memory that is left free.
    `chunk_tokens` > 0: instances are a pipeline for chunks of that size, as in Mooncake, and not a ring.
    """

    batching_mode: ClassVar[Batching | None] = "prefill_first"

    @checked("policy.")
    def __init__(
        self,
        least_tokens: Count = 16384,
        most: Whole = 0,
        output_tokens: Count = 4096,
        spare: Annotated[float, between(0, 0.5)] = 0.02,
        chunk_tokens: Whole = 0,
    ) -> None:
        self.least_tokens, self.most, self.output_tokens = least_tokens, most, output_tokens
        self.spare, self.chunk_tokens = spare, chunk_tokens

    def prepare(self, cluster: Cluster) -> None:
        self._until_s = np.zeros(len(cluster.instances))  # when each instance will have computed its long prompts
        self._given: dict[int, tuple[Integers, Floats]] = {}  # of requests: instances, and those times before

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        """Where a short prompt is done first."""
        pool = cluster.prefill
        ahead_s = np.maximum(self._until_s[pool.ids] - cluster.now_s, 0.0)
        own_s = pool.prefill_s(request)
        return pool.argmin(ahead_s + own_s * (1.0 + pool.queued_tokens / request.input_tokens))

    def span(self, request: Request, cluster: Cluster) -> Span | None:
        pool, tokens = cluster.instances, request.input_tokens + request.generated
        if request.id in self._given:  # it is asked about again, so they do not compute it
            before, until_s = self._given.pop(request.id)
            self._until_s[before] = until_s
        room = (pool.total_blocks * cluster.block_tokens * (1.0 - self.spare)).astype(np.int64)
        most = int(np.sort(room)[-(self.most or len(room)) :].sum())  # tokens that its instances could ever hold
        if (tokens < self.least_tokens and tokens <= room.max()) or tokens >= most:
            return None
        margin = min(self.output_tokens, most - tokens)
        used = (pool.total_blocks - pool.free_blocks - pool.evictable_blocks) * cluster.block_tokens
        free = np.maximum(room - used, 0)
        # The others compute another long prompt, or are down.
        able = np.flatnonzero((self._until_s <= cluster.now_s) & (pool.role == MIXED))
        load = pool.running + pool.queued
        able = able[np.lexsort((-free[able], load[able]))]
        alone_s = float(pool.prefill_s(request).min())
        count = self._degree(alone_s, load[able], free[able], tokens + margin)
        if count == 0:
            return Span()
        chosen = able[:count]
        chosen = chosen[np.argsort(-free[chosen], kind="stable")]  # the leading one has the most room
        self._given[request.id] = chosen, self._until_s[chosen]
        self._until_s[chosen] = cluster.now_s + alone_s / count
        return Span(chosen.tolist(), self._kept(free[chosen], tokens, margin), self.chunk_tokens)

    def _degree(self, alone_s: float, load: Integers, free: Integers, tokens: int) -> int:
        """How many of these instances (K,), in order, compute a prompt at the least cost in time; 0: they lack room for
        `tokens` tokens.

        All requests on them stand still as long as that takes.
        """
        counts = np.arange(1, min(len(load), self.most or len(load)) + 1)
        costs = alone_s / counts * (1.0 + np.cumsum(load)[: len(counts)])
        costs[np.cumsum(free)[: len(counts)] < tokens] = np.inf
        return int(counts[costs.argmin()]) if np.isfinite(costs).any() else 0

    def _kept(self, free: Integers, tokens: int, margin: int) -> list[int]:
        """KV tokens on each instance but the first: as few of them as possible, in order of their room (K,)."""
        left = tokens - max(int(free[0]) - margin, 1)
        kept = []
        for room in free[1:].tolist():
            kept.append(min(room, max(left, 0)))
            left -= kept[-1]
        return kept
