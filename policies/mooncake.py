"""A scheduler around the pool of KV prefixes (Mooncake: Qin et al., FAST 2025, section 6; arXiv 2407.00079).

The Conductor sends a prompt where its TTFT is least (Algorithm 1): queue, prefill of what is not cached there, and the
copy of a prefix that another instance has much more of. Where both would be too late it rejects (arXiv, section 7).
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace

import numpy as np

from framework.cluster import ClusterSpec
from framework.policy import Disaggregated
from framework.validate import require_choice, require_count, require_positive
from framework.views import Cluster, Request
from policies.overload import EXPECTED_TBT, DecodeLoad
from policies.rules import rule

ROUTING = ("random", "load", "local", "global")


@dataclass(frozen=True)
class Placement:
    """Where a request is to be prefilled, whose prefix is sent there first (-1: nobody's), and what is expected: TTFT,
    prefill alone, and when it will be in that queue.
    """

    instance: int
    source: int
    ttft_s: float
    prefill_s: float
    there_s: float


@dataclass(frozen=True)
class Sent:
    """What was sent to an instance, in order: when it will be in the queue there, and seconds of its prefill."""

    there_s: deque[float] = field(default_factory=deque)
    prefill_s: deque[float] = field(default_factory=deque)


class Mooncake(Disaggregated):
    """`routing` is random, load (the shortest queue), local (least TTFT, by each instance's own cache) or global.

    global also copies: the longest prefix that an instance has goes to one whose own is shorter by a factor above
    `kvcache_balancing_threshold`. `admission` by expected TTFT and TBT against `ttft_s` and `tbt_s` (None: no limit):
    none, slo (of the instances chosen), or by the mean TBT of the decode pool: baseline (once a prompt has been
    prefilled), early (before that), predicted (before, as it will be then if each decode lasts `decode_s`).
    """

    def __init__(
        self,
        routing: str = "global",
        kvcache_balancing_threshold: float = 2.0,
        admission: str = "slo",
        ttft_s: float | None = 2.0,
        tbt_s: float | None = 0.05,
        decode_s: float = 10.0,
        chunk_tokens: int = 1000,
        seed: int = 0,
    ) -> None:
        limits = {"ttft_s": ttft_s, "tbt_s": tbt_s}
        for name, value in {"kvcache_balancing_threshold": kvcache_balancing_threshold, "decode_s": decode_s}.items():
            require_positive(f"policy.{name}", value)
        for name, limit in limits.items():
            if limit is not None:
                require_positive(f"policy.{name}", limit)
        require_count("policy.chunk_tokens", chunk_tokens)
        require_choice("policy.routing", routing, ROUTING)
        self.routing, self.admission = routing, admission
        self.expected_tbt_s = rule("policy.admission", admission, EXPECTED_TBT)
        self.threshold = kvcache_balancing_threshold
        self.ttft_s, self.tbt_s = (np.inf if limit is None else limit for limit in limits.values())
        self.chunk_tokens, self.random = chunk_tokens, np.random.default_rng(seed)
        self.decode_load = DecodeLoad(decode_s)
        if admission != "none":
            vars(self)["admit"] = self._admit
        if routing == "global":
            vars(self)["fetch_prefix"] = self._fetch_prefix
        self.sent: defaultdict[int, Sent] = defaultdict(Sent)  # by instance
        self.placed: tuple[int, Placement] | None = None  # the request looked at last

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        """Prompts are prefilled in chunks; those of several requests share one."""
        pools = [
            replace(pool, batching=pool.batching or "decode_first", token_budget=pool.token_budget or self.chunk_tokens)
            if pool.role == "prefill"
            else pool
            for pool in spec.pools
        ]
        return super().layout(replace(spec, pools=tuple(pools)))

    def _admit(self, request: Request, cluster: Cluster) -> bool | str:
        placement = self._place(request, cluster)
        if placement.ttft_s > self.ttft_s:
            return "ttft"
        if self.admission != "baseline" and self._is_late(request, cluster, placement.ttft_s):
            return "tbt"
        self.placed = request.id, placement
        return True

    def _is_late(self, request: Request, cluster: Cluster, ttft_s: float) -> bool:
        return self.expected_tbt_s(self.decode_load, request, cluster, ttft_s) > self.tbt_s

    def _place(self, request: Request, cluster: Cluster) -> Placement:
        """Algorithm 1, lines 1 to 20."""
        pool = cluster.prefill
        own = pool.cached_tokens(request)
        best = int(own.argmax())
        longer = (own[best] > self.threshold * own) & (self.routing == "global")  # also where own is 0
        prefix = np.where(longer, own[best], own)
        slower = np.minimum(pool.bandwidth_bytes_s, pool.bandwidth_bytes_s[best])
        transfer_s = (prefix - own) * cluster.kv_bytes_per_token / slower
        prefill_s = pool.prefill_s(request, prefix, self.chunk_tokens)
        queue_s = np.array([self._queue_s(cluster, int(i)) for i in pool.ids])
        ttft_s = queue_s + transfer_s + prefill_s
        costs = {"random": self.random.random(len(pool)), "load": queue_s}
        chosen = int(costs.get(self.routing, ttft_s).argmin())
        source = int(pool.ids[best]) if longer[chosen] else -1
        there_s = cluster.now_s + float(transfer_s[chosen])
        return Placement(int(pool.ids[chosen]), source, float(ttft_s[chosen]), float(prefill_s[chosen]), there_s)

    def _queue_s(self, cluster: Cluster, instance: int) -> float:
        """Seconds of prefill that an instance has before it: as many of those sent there last as wait or are on it."""
        sent, there = self.sent[instance], cluster.instances
        left = int(there.queued[instance]) + int(there.prefilling[instance])
        if len(sent.there_s) > left:
            left += sum(map(cluster.now_s.__lt__, sent.there_s))
        while len(sent.there_s) > left:
            sent.there_s.popleft()
            sent.prefill_s.popleft()
        return sum(sent.prefill_s)

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        known, self.placed = self.placed, None
        placement = known[1] if known is not None and known[0] == request.id else self._place(request, cluster)
        self.sent[placement.instance].there_s.append(placement.there_s)
        self.sent[placement.instance].prefill_s.append(placement.prefill_s)
        self.decode_load.expect(request, cluster.now_s + placement.ttft_s)
        self.placed = request.id, placement
        return placement.instance

    def _fetch_prefix(self, request: Request, cluster: Cluster) -> int:
        assert self.placed is not None
        return self.placed[1].source

    def route_decode(self, request: Request, cluster: Cluster) -> int | str:
        pool = cluster.decode
        if self.admission == "baseline" and request.generated == 1 and self._is_late(request, cluster, 0.0):
            return "tbt"
        self.decode_load.begin(request, cluster)
        return pool.argmin(pool.kv_tokens + pool.incoming_kv_tokens)
