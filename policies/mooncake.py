"""A scheduler around the pool of KV prefixes (Mooncake: Qin et al., FAST 2025, section 6; arXiv 2407.00079).

The Conductor sends a prompt where its TTFT is least (Algorithm 1): queue, prefill of what is not cached there, and the
copy of a prefix that another instance has much more of. Where both would be too late it rejects (arXiv, section 7).

How slow the decode pool is, and how slow it will be (Mooncake: arXiv 2407.00079, section 7).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.errors import require_choice, require_count, require_positive, require_whole
from framework.policy import Disaggregated
from framework.policy.rules import rule
from framework.policy.view import Cluster, Floats, Integers, Request
from framework.system.cluster import ClusterSpec
from framework.timing.estimate import StepTimes, estimate_s, prefill_alone_s
from framework.timing.table import StepTables


class DecodeLoad:
    """Mean time between tokens of the decode pool, at present or later, if each request decodes for `decode_s`."""

    def __init__(self, decode_s: float) -> None:
        self.decode_s = decode_s
        self.coming: dict[int, tuple[float, int]] = {}  # requests not yet prefilled: when they will be, prompt tokens
        self.since_s: NDArray[np.float64] = np.zeros(0)  # by request, from when on it decodes

    def expect(self, request: Request, ready_s: float) -> None:
        """The request has been admitted, and will be prefilled at `ready_s`."""
        self.coming[request.id] = ready_s, request.input_tokens

    def begin(self, request: Request, cluster: Cluster) -> None:
        """The request has been prefilled and decodes from now on."""
        if len(self.since_s) == 0:
            self.since_s = np.zeros(len(cluster.requests.arrival_s))
        self.coming.pop(request.id, None)
        self.since_s[request.id] = cluster.now_s

    def now_s(self, cluster: Cluster) -> float:
        """Seconds of a step of what decodes, or is on its way there, spread evenly over the pool."""
        pool = cluster.decode
        count = int(pool.running.sum() + pool.incoming.sum())
        return self._step_s(cluster, count, int(pool.kv_tokens.sum() + pool.incoming_kv_tokens.sum()))

    def then_s(self, cluster: Cluster, time_s: float) -> float:
        """The same at a later time: those older than `decode_s` have left, those prefilled by then have come."""
        pool = cluster.decode
        ids, _ = cluster.decoding_on(pool)
        if len(ids):
            ids = ids[self.since_s[ids] > time_s - self.decode_s]
        self._forget_before(cluster.now_s - self.decode_s)
        ready = [tokens for ready_s, tokens in self.coming.values() if time_s - self.decode_s < ready_s <= time_s]
        count, held = len(ids) + len(ready), int(cluster.requests.kv_tokens(ids).sum()) + sum(ready)
        if time_s < cluster.now_s + self.decode_s:
            count, held = count + int(pool.incoming.sum()), held + int(pool.incoming_kv_tokens.sum())
        return self._step_s(cluster, count, held)

    def _forget_before(self, time_s: float) -> None:
        """Requests of a single token end with their prefill, and nobody says so."""
        while self.coming:
            first = next(iter(self.coming))
            if self.coming[first][0] >= time_s:
                break
            del self.coming[first]

    def _step_s(self, cluster: Cluster, count: int, tokens: int) -> float:
        size = len(cluster.decode)
        batch = -(-count // size)
        return float(cluster.decode.estimate_s(0, batch, tokens // size).max()) if count else 0.0


def _never(load: DecodeLoad, request: Request, cluster: Cluster, ttft_s: float) -> float:
    return 0.0


def _of_least_loaded(load: DecodeLoad, request: Request, cluster: Cluster, ttft_s: float) -> float:
    """That of the decode instance that holds least, with this request."""
    pool = cluster.decode
    held = pool.kv_tokens + pool.incoming_kv_tokens
    least = int(held.argmin())
    batch = int(pool.running[least]) + int(pool.incoming[least]) + 1
    return estimate_s(pool.step_times, least, 0, batch, int(held[least]) + request.input_tokens)


def _of_pool(load: DecodeLoad, request: Request, cluster: Cluster, ttft_s: float) -> float:
    return load.now_s(cluster)


def _of_pool_then(load: DecodeLoad, request: Request, cluster: Cluster, ttft_s: float) -> float:
    return load.then_s(cluster, cluster.now_s + ttft_s)


ExpectedTbt = Callable[[DecodeLoad, Request, Cluster, float], float]
EXPECTED_TBT: dict[str, ExpectedTbt] = {
    "none": _never,
    "slo": _of_least_loaded,
    "baseline": _of_pool,
    "early": _of_pool,
    "predicted": _of_pool_then,
}


# --- the policy -------------------------------------------------------------------------------------------------------


ROUTING = ("random", "load", "local", "global")


class Placement(NamedTuple):
    """Where a request is to be prefilled, whose prefix is sent there first (-1: nobody's), and what is expected: TTFT,
    prefill alone, and when it will be in that queue.
    """

    instance: int
    source: int
    ttft_s: float
    prefill_s: float
    there_s: float


class Sent:
    """What was sent to an instance, in order: when it will be in the queue there, and seconds of its prefill; `left_s`
    is the sum of these.
    """

    def __init__(self) -> None:
        self.there_s: deque[float] = deque()
        self.prefill_s: deque[float] = deque()
        self.left_s = 0.0

    def append(self, there_s: float, prefill_s: float) -> None:
        self.there_s.append(there_s)
        self.prefill_s.append(prefill_s)
        self.left_s += prefill_s

    def keep(self, left: int, now_s: float) -> float:
        """Forget all but the last `left` of those that are there, and those still on their way; seconds of what stays.

        They are added from the first on: a running sum from which seconds are taken would drift.
        """
        if len(self.there_s) > left:
            left += sum(map(now_s.__lt__, self.there_s))
            if len(self.there_s) > left:
                while len(self.there_s) > left:
                    self.there_s.popleft()
                    self.prefill_s.popleft()
                self.left_s = reduce(add, self.prefill_s, 0.0)
        return self.left_s


class Costs(NamedTuple):
    """What a placement is chosen by, for each prefill instance: seconds of its queue, tokens of the prompt that it has,
    and the bandwidth of its link.
    """

    queue_s: Floats
    own: Integers
    bandwidth_bytes_s: Floats


@compiled
def expected(
    costs: Costs, times: StepTimes, prompt: int, chunk_tokens: int, longer: float, bytes_per_token: float
) -> tuple[Floats, Floats, Floats, int]:
    """Algorithm 1, lines 1 to 20: seconds to copy a prefix, to prefill and to the first token, of each instance, shape
    (instances,), and which has the longest prefix.

    That prefix is copied where it is more than `longer` times as long as the instance's own, inf: nowhere.
    """
    transfer_s, prefill_s, ttft_s = np.zeros(len(costs.own)), np.zeros(len(costs.own)), np.zeros(len(costs.own))
    best, tables = int(costs.own.argmax()), StepTables(times.rows, times.data)
    for k in range(len(costs.own)):
        prefix = costs.own[k]
        if costs.own[best] > longer * prefix:  # also where its own is 0
            prefix = costs.own[best]
            slower = min(costs.bandwidth_bytes_s[k], costs.bandwidth_bytes_s[best])
            transfer_s[k] = (prefix - costs.own[k]) * bytes_per_token / slower
        prefill_s[k] = prefill_alone_s(tables, times.pools[k], times.stages[k], prefix, prompt, chunk_tokens)
        ttft_s[k] = costs.queue_s[k] + transfer_s[k] + prefill_s[k]
    return transfer_s, prefill_s, ttft_s, best


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
        require_whole("policy.seed", seed)
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
        pool, now_s = cluster.prefill, cluster.now_s
        left = (pool.queued + pool.prefilling).tolist()
        queue_s = np.array([self.sent[i].keep(n, now_s) for i, n in zip(pool.ids.tolist(), left, strict=True)])
        own = pool.cached_tokens(request)
        copies = self.routing == "global"
        transfer_s, prefill_s, ttft_s, best = expected(
            Costs(queue_s, own, pool.bandwidth_bytes_s),
            pool.step_times,
            request.input_tokens,
            self.chunk_tokens,
            self.threshold if copies else np.inf,
            cluster.kv_bytes_per_token,
        )
        costs = queue_s if self.routing == "load" else ttft_s
        chosen = int((self.random.random(len(pool)) if self.routing == "random" else costs).argmin())
        source = int(pool.ids[best]) if copies and own[best] > self.threshold * own[chosen] else -1
        there_s = now_s + float(transfer_s[chosen])
        return Placement(int(pool.ids[chosen]), source, float(ttft_s[chosen]), float(prefill_s[chosen]), there_s)

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        known, self.placed = self.placed, None
        placement = known[1] if known is not None and known[0] == request.id else self._place(request, cluster)
        self.sent[placement.instance].append(placement.there_s, placement.prefill_s)
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
