"""Batches by rank: requests of the highest ranks run, others leave the batch with their KV. For policies that rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.policy import Action, Aggregated, Cluster, Preempt, Resume

Integers = NDArray[np.int64]


class RankedBatches(Aggregated):
    """Ranks are (level, place), the lowest first, which `_look` keeps up to date.

    KV of requests that leave stays on the instance or, if the batch lacks room, moves to host memory, the lowest rank
    first. A request back from host memory waits for those that came before it.
    """

    dynamic_keys = True
    _level: NDArray[Any]  # of each request
    _place: NDArray[Any]

    def prepare(self, cluster: Cluster) -> None:
        count = len(cluster.requests.input_tokens)
        self._kept, self._out = np.zeros((2, count), np.bool_)  # suspended, with KV there, and with it in host memory
        self._chosen = np.zeros(count, np.bool_)  # none, but while a batch is formed
        self._back: list[set[int]] = [set() for _ in cluster.instances.ids]  # resumed requests that wait for room
        self._ended = 0

    def _look(self, instance: int, cluster: Cluster, waiting: Integers, running: Integers) -> None:
        """Set the levels and places of these requests of an instance."""
        raise NotImplementedError

    def prioritize(self, queue: Integers, cluster: Cluster) -> NDArray[np.float64]:
        keys = np.empty(len(queue))
        keys[np.lexsort([self._place[queue], self._level[queue]])] = np.arange(len(queue))
        return keys

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Form the batch of an instance: which requests leave it, and which return."""
        queued, running, aside = cluster.queued(instance), cluster.decoding(instance), cluster.suspended_on(instance)
        prefilling = cluster.prefilling(instance)
        for present in (queued, running, prefilling):
            self._kept[present] = self._out[present] = False
        back = self._coming_back(instance, cluster, (queued, aside, running, prefilling))
        self._look(instance, cluster, np.concatenate([queued, aside, back]), np.concatenate([running, prefilling]))
        seats = max(0, int(cluster.instances.max_batch[instance]) - len(prefilling))
        rows = np.concatenate([queued, aside, running, back])
        if len(aside) + len(back) == 0 and len(rows) <= seats:
            return []
        ranked = rows[np.lexsort([self._place[rows], self._level[rows]])]
        return self._changes(instance, cluster, (queued, aside, running, back), ranked, seats)

    def _changes(
        self, instance: int, cluster: Cluster, parts: tuple[Integers, ...], ranked: Integers, seats: int
    ) -> list[Action]:
        """What makes the first `seats` of `ranked` the batch; `parts`: queued, set aside, running, coming back."""
        queued, aside, running, back = parts
        chosen, kept, out = self._chosen, self._kept, self._out
        chosen[ranked[:seats]] = True
        leaving, coming, out_back = running[~chosen[running]], aside[chosen[aside]], back[~chosen[back]]
        joining = np.concatenate([queued, back, coming])
        joining = joining[chosen[joining]]
        chosen[ranked[:seats]] = False
        needed = self._lacking(instance, cluster, joining)
        self._back[instance].update(coming[out[coming]].tolist())
        kept[leaving] = True
        kept[coming] = False
        swapped = np.zeros(0, np.int64)
        if needed > 0:
            rest = ranked[seats:][::-1]
            swapped = self._swapped(cluster, rest[kept[rest]], needed)
        swapped = np.concatenate([swapped, out_back])
        kept[swapped] = False
        out[coming] = False
        out[swapped] = True
        stay: list[Action] = [Preempt(r, "kv") for r in leaving[kept[leaving]].tolist()]
        moved: list[Action] = [Preempt(r, "swap") for r in swapped.tolist()]
        return [*moved, *stay, *(Resume(r) for r in coming.tolist())]

    def _coming_back(self, instance: int, cluster: Cluster, others: tuple[Integers, ...]) -> Integers:
        """The requests that wait for room for their KV, which is in host memory."""
        ended = cluster.finished(self._ended).ids
        self._ended += len(ended)
        for waiting in self._back:
            if waiting:
                waiting.difference_update(ended.tolist())
        here = self._back[instance]
        if here:
            here.difference_update(np.concatenate(others).tolist())
        return np.array(sorted(here) if cluster.instances.swapped[instance] else [], np.int64)

    def _blocks(self, cluster: Cluster, requests: Integers) -> Integers:
        tokens = cluster.requests.input_tokens[requests] + cluster.requests.generated(requests)
        return np.asarray(-(-tokens // cluster.block_tokens))

    def _lacking(self, instance: int, cluster: Cluster, coming: Integers) -> int:
        """Blocks that requests which join the batch without KV need beyond the available ones."""
        there = cluster.instances
        without = coming[~self._kept[coming]]
        blocks = int(self._blocks(cluster, without).sum()) if len(without) else 0
        spare = int(there.total_blocks[instance]) // 4 if blocks else 0  # blocks that admissions may leave
        return blocks + spare - int(there.free_blocks[instance]) - int(there.evictable_blocks[instance])

    def _swapped(self, cluster: Cluster, kept: Integers, needed: int) -> Integers:
        """The kept requests, the lowest first, whose KV gives the needed blocks."""
        given = np.cumsum(self._blocks(cluster, kept))
        return kept[: int(np.searchsorted(given, needed)) + 1]
