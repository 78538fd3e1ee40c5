"""Freeness by virtual usage, and live migration between instances (Llumnix: Sun et al., OSDI 2024, arXiv 2406.03243).

The virtual usage of an instance (Algorithm 1) is the KV of its running requests, the prompt of its first waiting
request, and headroom for a high-priority request if there is one. It is infinite on an instance that is to be switched
off. Freeness is memory less virtual usage, divided by the requests: decode steps until memory is full. A prompt goes to
the freest instance, where all waiting requests count, as in Llumnix's code. Every period the least free instances below
`migrate_below` are paired with the freest above `accept_above`, and one request of each moves while it decodes: of the
lowest priority the one with the least KV. So the first of a queue finds room, a high-priority request has room to
itself, and an instance that is to be switched off empties. The mean of freeness starts and stops instances, if there
are spare ones.

Simplified: a pair moves one request a period, and a moving request counts at its destination. Missing memory is not
divided by the requests, since more requests would then make an instance freer. The thresholds are chosen here. Any
priority above 0 is high. Steps are those of `continuous`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import NotNegative, Positive, Whole, checked
from framework.codes import OFF
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Migrate, Request, SetRole
from framework.system.cluster import ClusterSpec

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Numbers = Integers | Floats


class Llumnix(Aggregated):
    """Freeness is in decode steps. Every `period_s` (None: never) requests move, and instances are started below a mean
    of `start_below`, or stopped above `stop_above`; `headroom_tokens` are kept free for a request of high priority.
    """

    batching_mode: ClassVar[Batching | None] = "prefill_first"
    roles: ClassVar[tuple[str, ...]] = ("mixed", "off")

    @checked("policy.")
    def __init__(
        self,
        period_s: Positive | None = 0.5,
        migrate_below: NotNegative = 30.0,
        accept_above: NotNegative = 60.0,
        headroom_tokens: Whole = 1600,
        start_below: NotNegative = 10.0,
        stop_above: Positive = 60.0,
        scale_every_s: Positive = 10.0,
    ) -> None:
        self.tick_s = period_s
        self.migrate_below, self.accept_above = migrate_below, max(accept_above, migrate_below)
        self.headroom_tokens = headroom_tokens
        self.start_below, self.stop_above, self.scale_every_s = start_below, stop_above, scale_every_s
        self._scaled_s = 0.0

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        self.changes_roles = self.tick_s is not None and any(pool.begins_on < pool.instances for pool in spec.pools)
        return super().layout(spec)

    def prepare(self, cluster: Cluster) -> None:
        self._has_priorities = bool(cluster.requests.priority.max(initial=0) > 0)

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        return np.where(cluster.requests.priority[queue] > 0, 0.0, 1.0)

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        """The freest instance, among equals the one with the fewest requests. All waiting requests count."""
        pool, there = cluster.prefill, cluster.instances
        waiting = there.queued + there.prefilling
        freeness = self._freeness(cluster, there.queued_tokens, waiting)[pool.ids]
        count = (waiting + there.running + there.incoming)[pool.ids]
        return int(pool.ids[np.lexsort([count, -freeness])[0]])

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        """Of the waiting requests, only the first of each queue counts."""
        there, requests = cluster.instances, cluster.requests
        tokens, waiting = np.zeros(len(there)), np.zeros(len(there))
        for i in np.flatnonzero(there.queued + there.prefilling).tolist():
            first = np.concatenate([cluster.prefilling(i), cluster.queued(i)[:1]])
            tokens[i], waiting[i] = requests.input_tokens[first].sum(), len(first)
        freeness = self._freeness(cluster, tokens, waiting)
        return [*self._moves(cluster, freeness), *self._scale(cluster, freeness)]

    def _freeness(self, cluster: Cluster, tokens: Numbers, waiting: Numbers) -> Floats:
        """Decode steps until the memory of each instance is full, with `waiting` requests' prompts of `tokens` tokens.

        -inf for an instance that will be switched off, or is down."""
        there = cluster.instances
        free = there.total_blocks * cluster.block_tokens - there.kv_tokens - there.incoming_kv_tokens - tokens
        if self._has_priorities:
            free = free - self.headroom_tokens * self._has_high(cluster)
        batch = np.maximum(there.running + there.incoming + waiting, 1)
        return np.where(there.role == OFF, -np.inf, np.where(free > 0, free / batch, free))

    def _has_high(self, cluster: Cluster) -> NDArray[np.bool_]:
        """Whether a request of high priority decodes on each instance."""
        ids, owners = cluster.decoding_on(cluster.instances)
        high = owners[cluster.requests.priority[ids] > 0]
        return np.bincount(high, minlength=len(cluster.instances)) > 0

    def _moves(self, cluster: Cluster, freeness: Floats) -> list[Action]:
        """One request of each pair: the least free with the freest, the next with the next."""
        order = np.argsort(freeness, kind="stable")
        sources = [int(i) for i in order if freeness[i] < self.migrate_below and cluster.instances.running[i]]
        targets = [int(i) for i in order[::-1] if freeness[i] > self.accept_above]
        moves: list[Action] = []
        for source, target in zip(sources, targets, strict=False):
            r = self._mover(cluster, source)
            if r >= 0 and cluster.requests.kv_tokens(np.array([r]))[0] < self._room(cluster, target):
                moves.append(Migrate(r, target))
        return moves

    def _mover(self, cluster: Cluster, source: int) -> int:
        """The request that leaves: of the lowest priority, with the least KV; -1: none may."""
        ids = cluster.decoding(source)
        ids = ids[~cluster.migrating(ids)]
        if len(ids) == 0:
            return -1
        high = cluster.requests.priority[ids] > 0
        return int(ids[np.lexsort([cluster.requests.kv_tokens(ids), high])[0]])

    def _room(self, cluster: Cluster, i: int) -> int:
        there = cluster.instances
        free = int(there.free_blocks[i] + there.evictable_blocks[i]) * cluster.block_tokens
        return free - int(there.incoming_kv_tokens[i])

    def _scale(self, cluster: Cluster, freeness: Floats) -> list[Action]:
        """Start an instance if the mean is too low, or stop the one with the fewest requests if it is too high."""
        there = cluster.instances
        if not self.changes_roles or cluster.now_s < self._scaled_s + self.scale_every_s or there.changing().any():
            return []
        there_now = np.flatnonzero(there.role != OFF)
        off = np.flatnonzero(there.next_role == OFF)
        mean = float(freeness[there_now].mean()) if len(there_now) else 0.0
        self._scaled_s = cluster.now_s
        if mean < self.start_below and len(off):
            return [SetRole(int(off[0]), "mixed")]
        if mean > self.stop_above and len(there_now) > 1:
            requests = there.queued + there.prefilling + there.running + there.incoming
            return [SetRole(int(there_now[requests[there_now].argmin()]), "off")]
        return []
