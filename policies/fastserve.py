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
from numpy.typing import NDArray

from framework.checks import Count, Positive, checked
from framework.compiler.decorators import compiled
from framework.engine.setup.config import Batching
from framework.policy import Action, Cluster, SetMaxBatch
from framework.policy.rules import PREFILL_RULES, rule
from framework.timing.estimate import estimate_s
from policies._ranked_batches import RankedBatches

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


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
        self.quanta_s = np.array([quantum_s * ratio**level for level in range(levels)])
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
        self._first = np.zeros(count, np.int64)  # the level that each joins
        self._ran = np.zeros(count, np.int64)  # number of the last look at which each ran
        self._look_of = np.full(len(cluster.instances), -1)  # number of the last look at each instance
        self._looks = self._places = 0

    def on_tick(self, cluster: Cluster) -> list[Action]:
        """Let each instance be asked about its batch when its step ends, so that no decision is postponed."""
        return [SetMaxBatch(i, int(cluster.instances.max_batch[i])) for i in cluster.prefill.ids.tolist()]

    def _look(self, instance: int, cluster: Cluster, waiting: Integers, running: Integers) -> None:
        """Add new requests, charge those that ran since the last look, and lift those that did not run for long."""
        now_s, self._looks = cluster.now_s, self._looks + 1
        for r in waiting[self._level[waiting] < 0].tolist():
            self._first[r] = self._first_level(instance, cluster, r)
        columns = self._level, self._place, self._ran
        times = self._used_s, self._seen_s, self.quanta_s
        looks = int(self._look_of[instance]), self._looks
        self._places = _wait(waiting, columns, times, self._first, (now_s, self.starvation_s), self._places)
        self._places = _charge(running, columns, times, now_s, looks, self._places)
        self._look_of[instance] = self._looks

    def _first_level(self, instance: int, cluster: Cluster, r: int) -> int:
        """The highest level whose quantum has room for the prefill of r."""
        first_s = estimate_s(cluster.instances.step_times, instance, int(cluster.requests.input_tokens[r]), 0, 0)
        fitting = np.flatnonzero(self.quanta_s >= first_s)
        return int(fitting[0]) if len(fitting) else len(self.quanta_s) - 1


@compiled
def _wait(
    waiting: Integers,
    columns: tuple[Integers, Integers, Integers],
    times: tuple[Floats, Floats, Floats],
    first: Integers,
    limits: tuple[float, float],
    places: int,
) -> int:
    """Let new requests join their first levels, and those that starve the highest one; return the last place given.

    `columns`: level, place and last look of each request. `times`: seconds used of its quantum, when it last ran, the
    quanta. `limits`: the present, and how long none waits.
    """
    (level, place, _), (used_s, seen_s, _), (now_s, starvation_s) = columns, times, limits
    for r in waiting:
        if level[r] < 0 or (level[r] > 0 and now_s - seen_s[r] >= starvation_s):
            places += 1
            level[r], place[r], used_s[r], seen_s[r] = first[r] if level[r] < 0 else 0, places, 0.0, now_s
    return places


@compiled
def _charge(
    running: Integers,
    columns: tuple[Integers, Integers, Integers],
    times: tuple[Floats, Floats, Floats],
    now_s: float,
    looks: tuple[int, int],
    places: int,
) -> int:
    """Charge those that ran at the first of the `looks`, let those fall that have used their quantum, and note at the
    second one that all of them run; return the last place given.
    """
    (level, place, ran), (used_s, seen_s, quanta_s), (before, look) = columns, times, looks
    for r in running:
        if ran[r] == before:
            used_s[r] += now_s - seen_s[r]
        seen_s[r], ran[r] = now_s, look
        if used_s[r] >= quanta_s[level[r]] and level[r] + 1 < len(quanta_s):
            places += 1
            level[r], place[r], used_s[r] = level[r] + 1, places, 0.0
    return places
