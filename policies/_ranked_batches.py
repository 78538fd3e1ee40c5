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
        # For each instance, the suspended requests with their KV there, and with it in host memory.
        self._kept: list[set[int]] = [set() for _ in cluster.instances.ids]
        self._out: list[set[int]] = [set() for _ in cluster.instances.ids]
        self._back: list[set[int]] = [set() for _ in cluster.instances.ids]  # resumed requests that wait for room
        self._ended = 0

    def _look(self, instance: int, cluster: Cluster, waiting: list[int], running: list[int]) -> None:
        """Set the levels and places of these requests of an instance."""
        raise NotImplementedError

    def prioritize(self, queue: Integers, cluster: Cluster) -> NDArray[np.float64]:
        keys = np.empty(len(queue))
        keys[np.lexsort([self._place[queue], self._level[queue]])] = np.arange(len(queue))
        return keys

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Form the batch of an instance: which requests leave it, and which return."""
        queued, running = cluster.queued(instance).tolist(), cluster.decoding(instance).tolist()
        prefilling = cluster.prefilling(instance).tolist()
        there = cluster.suspended
        aside = there[cluster.requests.instance[there] == instance].tolist()
        kept, out = self._kept[instance], self._out[instance]
        kept.intersection_update(aside)
        out.intersection_update(aside)
        back = self._coming_back(instance, cluster, queued + aside + running + prefilling)
        self._look(instance, cluster, queued + aside + back, running + prefilling)
        seats = max(0, int(cluster.instances.max_batch[instance]) - len(prefilling))
        rows = np.array(queued + aside + running + back, np.int64)
        ranked = rows[np.lexsort([self._place[rows], self._level[rows]])].tolist()
        batch, rest = set(ranked[:seats]), ranked[seats:]
        leaving, coming = [r for r in running if r not in batch], [r for r in aside if r in batch]
        needed = self._lacking(instance, cluster, [r for r in queued + back + coming if r in batch])
        self._back[instance].update(r for r in coming if r in out)
        kept.update(leaving)
        kept.difference_update(coming)
        swapped = self._swapped(cluster, [r for r in reversed(rest) if r in kept], needed)
        swapped += [r for r in back if r not in batch]
        kept.difference_update(swapped)
        out.difference_update(coming)
        out.update(swapped)
        stay: list[Action] = [Preempt(r, "kv") for r in leaving if r not in swapped]
        return [*(Preempt(r, "swap") for r in swapped), *stay, *(Resume(r) for r in coming)]

    def _coming_back(self, instance: int, cluster: Cluster, others: list[int]) -> list[int]:
        """The requests that wait for room for their KV, which is in host memory."""
        ended = cluster.finished(self._ended).ids.tolist()
        self._ended += len(ended)
        for waiting in self._back:
            waiting.difference_update(ended)
        self._back[instance].difference_update(others)
        return sorted(self._back[instance]) if cluster.instances.swapped[instance] else []

    def _blocks(self, cluster: Cluster, requests: list[int]) -> Integers:
        rows = np.array(requests, np.int64)
        tokens = cluster.requests.input_tokens[rows] + cluster.requests.generated(rows)
        return np.asarray(-(-tokens // cluster.block_tokens))

    def _lacking(self, instance: int, cluster: Cluster, coming: list[int]) -> int:
        """Blocks that requests which join the batch without KV need beyond the available ones."""
        there = cluster.instances
        kept = self._kept[instance]
        blocks = int(self._blocks(cluster, [r for r in coming if r not in kept]).sum())
        spare = int(there.total_blocks[instance]) // 4 if blocks else 0  # blocks that admissions may leave
        return blocks + spare - int(there.free_blocks[instance]) - int(there.evictable_blocks[instance])

    def _swapped(self, cluster: Cluster, kept: list[int], needed: int) -> list[int]:
        """The kept requests, the lowest first, whose KV gives the needed blocks."""
        if needed <= 0:
            return []
        given = np.cumsum(self._blocks(cluster, kept))
        return kept[: int(np.searchsorted(given, needed)) + 1]
