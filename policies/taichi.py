"""Instances of two kinds that both prefill and decode (TaiChi: arXiv 2508.01989).

Prefill-heavy ones take large chunks, decode-heavy ones small ones. Requests begin to decode on decode-heavy instances.
When memory gets short, the request with the longest output moves to a prefill-heavy one, and back when its TPOT nears
the SLO. Prompts go where their TTFT can be kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, Share, Whole, checked
from framework.policy import Action, Disaggregated, Migrate
from framework.policy.view import Cluster, Request
from framework.system.cluster import ClusterSpec

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class TaiChi(Disaggregated):
    """Prefill-heavy instances are those of the prefill pools, with chunks of `prefill_chunk`, the others the rest.

    Prompts of up to `short_tokens` go to decode-heavy instances first. A request leaves one of these above `full` of
    its KV memory, and returns above `near` of `tpot_s`.
    """

    @checked("policy.")
    def __init__(
        self,
        prefill_chunk: Count = 1024,
        decode_chunk: Count = 256,
        ttft_s: Positive = 2.0,
        tpot_s: Positive = 0.05,
        short_tokens: Whole = 512,
        full: Share = 0.9,
        near: Positive = 0.9,
        period_s: Positive = 0.5,
    ) -> None:
        self.chunks = {"prefill": prefill_chunk, "decode": decode_chunk}
        self.ttft_s, self.tpot_s, self.tick_s = ttft_s, tpot_s, period_s
        self.short_tokens, self.full, self.near = short_tokens, full, near
        self.heavy: tuple[bool, ...] = ()  # whether each pool is prefill-heavy
        self.kinds: tuple[Integers, Integers] | None = None  # prefill-heavy and decode-heavy instances
        self.chunk_s: Floats = np.zeros(0)  # seconds of a whole chunk on each instance

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        spec = super().layout(spec)
        self.heavy = tuple(pool.role == "prefill" for pool in spec.pools)
        pools = [
            replace(pool, role="mixed", batching="decode_first", token_budget=self.chunks[pool.role])
            for pool in spec.pools
        ]
        return replace(spec, pools=tuple(pools))

    def _split(self, cluster: Cluster) -> tuple[Integers, Integers]:
        """Prefill-heavy and decode-heavy instances that take work. If those of one kind have all crashed, the others
        replace them.
        """
        if self.kinds is None:
            there = cluster.instances
            heavy = np.asarray(self.heavy)[there.pool]
            self.kinds = np.flatnonzero(heavy), np.flatnonzero(~heavy)
            budgets = enumerate(there.token_budget)
            self.chunk_s = np.array([there.estimate_s(int(budget), 0, 0)[i] for i, budget in budgets])
        large, small = (ids[cluster.instances.role[ids] > 0] for ids in self.kinds)
        return large if len(large) else small, small if len(small) else large

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        there, (large, small) = cluster.instances, self._split(cluster)
        ready_s = self._ready_s(request, cluster)
        ready_s[large] += request.input_tokens * cluster.kv_bytes_per_token / there.bandwidth_bytes_s[large]
        feasible = ready_s <= self.ttft_s
        able = cluster.prefill.ids
        for ids in (small, large) if request.input_tokens <= self.short_tokens else (able,):
            in_time = ids[feasible[ids]]
            if len(in_time):
                return int(in_time[there.queued_tokens[in_time].argmin()])
        return int(able[ready_s[able].argmin()])

    def _ready_s(self, request: Request, cluster: Cluster) -> Floats:
        """Seconds until each instance has prefilled its waiting prompts and the request, chunk by chunk with
        decodes.
        """
        there = cluster.instances
        tokens = there.queued_tokens + request.input_tokens - there.cached_tokens(request)
        steps = np.ceil(tokens / np.maximum(there.token_budget - there.running, 1))
        return np.asarray(steps * (self.chunk_s + there.step_s()), np.float64)

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        _, small = self._split(cluster)
        here = int(cluster.requests.instance[request.id])
        return here if here in small else self._emptiest(cluster, small)

    def _emptiest(self, cluster: Cluster, ids: Integers) -> int:
        there = cluster.instances
        return int(ids[(there.kv_tokens + there.incoming_kv_tokens)[ids].argmin()])

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        large, small = self._split(cluster)
        there, requests = cluster.instances, cluster.requests
        used = 1.0 - (there.free_blocks + there.evictable_blocks) / there.total_blocks
        moves: list[Action] = []
        for i in small[used[small] > self.full]:
            ids = self._movable(cluster, int(i))
            if len(ids):
                longest = ids[requests.generated(ids).argmax()]
                moves.append(Migrate(int(longest), self._emptiest(cluster, large)))
        for i in large:
            ids = self._movable(cluster, int(i))
            later = requests.generated(ids) - 1
            spent_s = cluster.now_s - requests.first_token_s[ids]
            slow = ids[(later > 0) & (spent_s > self.near * self.tpot_s * later)]
            moves += [Migrate(int(r), self._emptiest(cluster, small)) for r in slow]
        return moves

    def _movable(self, cluster: Cluster, instance: int) -> Integers:
        ids = cluster.decoding(instance)
        return ids[~cluster.migrating(ids)]
