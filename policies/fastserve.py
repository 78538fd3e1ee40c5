"""Skip-join multi-level feedback queue (FastServe: Wu et al., "Fast Distributed Inference Serving for Large Language
Models", arXiv 2305.05920).

Each level has a quantum, `ratio` times that of the level above. A request joins the highest level whose quantum is at
least the time of its prefill, since that is its first iteration: a long prompt skips the levels in which it could not
even begin. A request that has used up its quantum falls by a level. Requests of the highest levels, in the order of
their arrival at the level, form the batch. Others are preempted at the end of the iteration and keep their KV, or move
it to host memory if the batch lacks room. A request that has not run for `starvation_s` moves to the first level.

Simplified: levels are updated whenever something changes on an instance, and once in the first quantum. KV is swapped
when room is lacking, the lowest level first, and not ahead of time. A prompt under way is not preempted. Iterations are
those of `continuous`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from framework.checks import Count, Positive, checked
from framework.engine.setup.config import Batching
from framework.policy import Action, Cluster, SetMaxBatch
from framework.policy.rules import PREFILL_RULES, rule
from policies._ranked_batches import RankedBatches


class FastServe(RankedBatches):
    """`levels` of quanta from `quantum_s` on; `routing` spreads requests over instances."""

    batching_mode: ClassVar[Batching | None] = "prefill_first"

    @checked("policy.")
    def __init__(
        self,
        levels: Count = 6,
        quantum_s: Positive = 0.125,
        ratio: Positive = 2.0,
        starvation_s: Positive = 30.0,
        routing: str = "least_queued",
    ) -> None:
        self.quanta_s = [quantum_s * ratio**level for level in range(levels)]
        self.starvation_s = starvation_s
        self.tick_s = quantum_s
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)

    def prepare(self, cluster: Cluster) -> None:
        super().prepare(cluster)
        count = len(cluster.requests.input_tokens)
        self._level = np.full(count, -1)  # -1: it has not joined
        self._place = np.zeros(count, np.int64)  # place of each request in its level
        self._used_s = np.zeros(count)  # seconds used of the quantum of its level
        self._seen_s = np.zeros(count)  # time at which it last ran, or joined
        self._ran: list[set[int]] = [set() for _ in cluster.instances.ids]  # requests that ran at the last look
        self._places = 0

    def on_tick(self, cluster: Cluster) -> list[Action]:
        """Let each instance be asked about its batch when its step ends, so that no decision is postponed."""
        return [SetMaxBatch(i, int(cluster.instances.max_batch[i])) for i in cluster.prefill.ids.tolist()]

    def _look(self, instance: int, cluster: Cluster, waiting: list[int], running: list[int]) -> None:
        """Add new requests, charge those that ran since the last look, and lift those that did not run for long."""
        now_s = cluster.now_s
        for r in waiting:
            if self._level[r] < 0:
                self._join(r, self._first_level(instance, cluster, r), now_s)
            elif now_s - self._seen_s[r] >= self.starvation_s and self._level[r] > 0:
                self._join(r, 0, now_s)
        for r in running:
            if r in self._ran[instance]:
                self._used_s[r] += now_s - self._seen_s[r]
            self._seen_s[r] = now_s
            if self._used_s[r] >= self.quanta_s[self._level[r]] and self._level[r] + 1 < len(self.quanta_s):
                self._join(r, int(self._level[r]) + 1, now_s)
        self._ran[instance] = set(running)

    def _join(self, r: int, level: int, now_s: float) -> None:
        """Put r into a level, behind all others there, with its whole quantum."""
        self._places += 1
        self._level[r], self._place[r], self._used_s[r], self._seen_s[r] = level, self._places, 0.0, now_s

    def _first_level(self, instance: int, cluster: Cluster, r: int) -> int:
        """The highest level whose quantum has room for the prefill of r."""
        one = cluster.instances
        first_s = float(one.estimate_s(int(cluster.requests.input_tokens[r]), 0, 0)[instance])
        fitting = [level for level, quantum_s in enumerate(self.quanta_s) if quantum_s >= first_s]
        return fitting[0] if fitting else len(self.quanta_s) - 1
