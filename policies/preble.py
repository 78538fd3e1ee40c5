"""Prompts go where their prefix is, or to the least loaded instance (Preble: Srivatsa et al., ICLR 2025,
arXiv 2407.00023).

E2 (section 3.2): a prompt of which more is cached than not is sent to an instance with its longest cached prefix
(exploit). Any other goes to the instance with the least cost (explore), which is a sum of seconds: the load of the last
`window_s`, the prefill of the prompt there, and what the KV that it would evict takes to compute again. The load is the
prefill of what caches lacked, and for each request in flight the mean decode time of the window's requests.

An instance loses the prompts that exploit it to the cheapest one while its load is more than `imbalance` times the
least, if moving the prompt makes the loads more equal; and while the mean TTFT of its last half window is `slower`
times that of the half before, so that hot prefixes get copies. On an instance prompts wait in `groups` by the share
that is cached; group k is served k times as often as the first.

Simplified: hooks see no names of prefixes, so that loads and TTFTs are those of an instance, not of a prefix. Evicted
KV costs its prefill times the cached share of the instance's prompts. Groups share by self-clocked fair queueing. The
balance of prefill against decode is left out. The paper's settings beyond the window are not published; `imbalance`
and `groups` are chosen here. Steps are those of `vllm_v1`.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, at_least, checked
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Request
from framework.policy.view import Floats, Instances

Integers = NDArray[np.int64]
Factor = Annotated[float, at_least(1.0)]


class Recent:
    """Rows of numbers of the last `window_s`, summed."""

    def __init__(self, window_s: float, columns: int) -> None:
        self.window_s = window_s
        self.sums = np.zeros(columns)
        self._rows: deque[tuple[float, Floats]] = deque()

    def add(self, now_s: float, *row: float) -> None:
        self._rows.append((now_s, np.array(row)))
        self.sums += row

    def forget(self, now_s: float) -> list[tuple[float, Floats]]:
        """Take out the rows that have become too old, and return them."""
        old = []
        while self._rows and self._rows[0][0] < now_s - self.window_s:
            old.append(self._rows.popleft())
            self.sums -= old[-1][1]
        return old


class Preble(Aggregated):
    """`imbalance` and `slower` are factors at which prompts leave the instance that has their prefix."""

    batching_mode: ClassVar[Batching | None] = "unified"

    @checked("policy.")
    def __init__(
        self, window_s: Positive = 180.0, imbalance: Factor = 1.5, slower: Factor = 2.0, groups: Count = 10
    ) -> None:
        self.window_s, self.imbalance, self.slower, self.groups = window_s, imbalance, slower, groups

    def prepare(self, cluster: Cluster) -> None:
        count, half_s = len(cluster.instances), self.window_s / 2
        self._work = [Recent(self.window_s, 3) for _ in range(count)]  # prefill seconds, cached and prompt tokens
        self._ttft_s = [(Recent(half_s, 2), Recent(half_s, 2)) for _ in range(count)]  # and 1: the last half, the other
        self._decoded = Recent(self.window_s, 2)  # seconds of decoding, and 1
        self._group = np.zeros(len(cluster.requests.input_tokens), np.int64)
        self._instance = np.zeros_like(self._group)
        self._tags = np.zeros(len(self._group))  # by which a queue is read
        self._last = np.zeros((count, self.groups))  # the last tag of each group
        self._clock = np.zeros(count)  # the last tag that left the queue
        self._waiting = [np.zeros(0, np.int64) for _ in range(count)]  # as of the last look

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        pool, now_s, prompt = cluster.prefill, cluster.now_s, request.input_tokens
        cached = pool.cached_tokens(request)
        prefill_s, load_s = pool.prefill_s(request, cached), self._loads_s(pool, now_s)
        cost_s = load_s + prefill_s + self._evicted_s(pool, prompt - cached, cluster)
        chosen, longest = int(cost_s.argmin()), int(cached.max())
        if longest > prompt - longest:
            home = int(np.where(cached == longest, cost_s, np.inf).argmin())
            least = int(load_s.argmin())
            uneven = load_s[home] > max(self.imbalance * load_s[least], load_s[least] + prefill_s[least])
            if not uneven and not self._slows(int(pool.ids[home]), now_s):
                chosen = home
        instance = int(pool.ids[chosen])
        self._work[instance].add(now_s, prefill_s[chosen], cached[chosen], prompt)
        self._instance[request.id] = instance
        self._group[request.id] = min(self.groups * int(cached[chosen]) // prompt, self.groups - 1)
        return instance

    def prioritize(self, queue: Integers, cluster: Cluster) -> float:
        """The tag of a request that comes to a queue: a step after the last of its group, or after the clock."""
        r = int(queue[0])
        i, group = int(self._instance[r]), int(self._group[r])
        waiting = cluster.queued(i)
        left = np.setdiff1d(self._waiting[i], waiting)
        self._clock[i] = self._tags[left].max(initial=self._clock[i])
        self._waiting[i] = np.append(waiting, r)
        self._tags[r] = self._last[i, group] = max(self._clock[i], self._last[i, group]) + 1.0 / (1 + group)
        return float(self._tags[r])

    def on_finish(self, request: Request, cluster: Cluster) -> list[Action]:
        first_s = float(cluster.requests.first_token_s[request.id])
        self._decoded.add(cluster.now_s, cluster.now_s - first_s, 1.0)
        self._ttft_s[request.prefill_instance][0].add(cluster.now_s, first_s - request.arrival_s, 1.0)
        return []

    def _loads_s(self, pool: Instances, now_s: float) -> Floats:
        """Seconds of work of the window at each instance; shape (instances,)."""
        self._decoded.forget(now_s)
        for i in pool.ids:
            self._work[i].forget(now_s)
        seconds, ended = self._decoded.sums
        in_flight = pool.queued + pool.prefilling + pool.running + pool.incoming
        prefills_s = np.array([self._work[i].sums[0] for i in pool.ids])
        return prefills_s + in_flight * (seconds / ended if ended else 0.0)

    def _evicted_s(self, pool: Instances, tokens: Integers, cluster: Cluster) -> Floats:
        """Seconds to compute again what `tokens` would evict at each instance, as often as it is found in the cache."""
        evicted = np.minimum(tokens // cluster.block_tokens + 1 - pool.free_blocks, pool.evictable_blocks)
        seconds = np.zeros(len(pool))
        for k in np.flatnonzero(evicted > 0):
            _, cached, prompts = self._work[pool.ids[k]].sums
            if cached > 0:
                again_s = pool.estimate_s(int(evicted[k]) * cluster.block_tokens, 0, 0)[k]
                seconds[k] = again_s * cached / prompts
        return seconds

    def _slows(self, instance: int, now_s: float) -> bool:
        """Whether TTFTs at an instance have grown by the factor from one half of the window to the next."""
        late, early = self._ttft_s[instance]
        for came_s, row in late.forget(now_s):
            early.add(came_s + self.window_s / 2, *row)
        early.forget(now_s)
        (after_s, after), (before_s, before) = late.sums, early.sums
        return bool(after and before and after_s * before >= self.slower * before_s * after)
