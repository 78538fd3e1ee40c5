"""What a run is given and the limits that it should keep, in the form that a bound needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from framework.engine.setup import config
from framework.metrics.slo import Slo

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Setting(config.Setting):
    """What a run is given, and its SLO. The properties hold for a cluster that is laid out."""

    slo: Slo

    @property
    def caches(self) -> bool:
        return self.engine.shares_blocks or (self.engine.prefix_cache and self.workload.has_prefixes)

    @cached_property
    def recomputes(self) -> bool:
        """Whether a request may be preempted and get its next token from another prefill."""
        if self.engine.preemption != "recompute":
            return False
        pools = [pool for pool in self.cluster.pools if pool.role != "prefill"]
        seats = sum(pool.instances * self.engine.seats_of(pool) for pool in pools)
        # A request with memory on a decode instance has a seat in its pool or, while it leaves, at its destination. On
        # a mixed instance a request may also wait for another instance to have room. Pulled KV comes before there is a
        # seat.
        peaks = self.peak_blocks
        holders = [len(peaks) if pool.role == "mixed" or self.engine.pulls else seats for pool in pools]
        if any(count < len(peaks) for count in holders):
            peaks = -np.sort(-peaks)
        most = [int(peaks[:count].sum()) for count in holders]
        return any(blocks > self.kv_blocks(pool) for blocks, pool in zip(most, pools, strict=True))

    @property
    def recomputes_there(self) -> bool:
        """Whether instances that only decode may compute a prompt and its emitted tokens again."""
        return self.recomputes and self.engine.recompute == "there"

    @cached_property
    def decode_steps(self) -> Integers:
        """The least decode steps after token 1 of each request, (N,), if each step emits a token and all drafts.

        A step that drafts takes at least as long as one that does not, so the bound uses the latter.
        """
        most, elsewhere = 1 + self.engine.speculation.most, sum(pool.instances for pool in self.cluster.pools) > 1
        if self.engine.first_token == "recomputed" and elsewhere:  # the step that emits token 1 may emit drafts, too
            return -(-self.workload.output_tokens // most) - 1
        return -(-(self.workload.output_tokens - 1) // most)

    @property
    def first_token_recomputed(self) -> bool:
        """Whether token 1 of every request comes from a decode step at the destination of its KV."""
        return self.transfers and self.engine.first_token == "recomputed"

    @cached_property
    def peak_blocks(self) -> Integers:
        """KV blocks that each request holds at its end, (N,)."""
        tokens = self.workload.input_tokens + self.workload.output_tokens - 1
        return -(-tokens // self.engine.block_tokens)

    @property
    def transfers(self) -> bool:
        """Whether every request of more than one token moves away from where it was prefilled."""
        return all(pool.role != "mixed" for pool in self.cluster.pools)

    @property
    def arrival_s(self) -> Floats | None:
        """When clients send, (N,); None if that depends on the run."""
        previous = self.workload.previous
        if self.load.clients is not None or (previous is not None and np.any(previous >= 0)):
            return None
        return self.workload.arrival_s

    def limits_s(self, name: str) -> Floats:
        """The SLO's limit of each request, (N,), inf: none."""
        return self.slo.limits_s(name, self.workload.slo_class, len(self.workload))
