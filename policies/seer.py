"""Roll-outs in chunks, the longest groups first (Seer: Qin et al., arXiv 2511.14617).

The samples of a prompt are a group, the session of its requests. Two parts decide what runs where.

Divided roll-out: no request is bound to an instance. It waits in one buffer for all, is given room for `chunk_tokens`
more tokens where most room is, and then competes anew: it stays, moves to an instance with more room, or steps aside.
Room is reserved for the whole chunk, so that no request is preempted in the middle of one.

Context-aware order: the first sample of each group is its probe. Probes go first, those with the fewest tokens before
others. The longest sample of a group that has ended is the estimate of the group; other samples wait by it, the longest
first. A group of which none has ended counts as the longest.

Simplified: KV of a request that steps aside lies in the host memory of its instance, where it comes back, and a request
that moves is copied from one instance to the other while it decodes; the paper has one pool of KV for all. The ends of
chunks are looked for every `period_s`. Grouped drafts, the paper's third part, are left out. The rule of ties and the
sizes are chosen here. Steps are those of `vllm_v1`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, checked
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Migrate, Preempt, Request, Requeue, Resume

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Seer(Aggregated):
    """`chunk_tokens`: output for which a request gets room at once; `period_s`: between two looks at ends of chunks."""

    batching_mode: ClassVar[Batching | None] = "unified"

    @checked("policy.")
    def __init__(self, chunk_tokens: Count = 2048, period_s: Positive = 1.0) -> None:
        self.chunk_tokens, self.tick_s = chunk_tokens, period_s

    def prepare(self, cluster: Cluster) -> None:
        sessions = cluster.requests.session
        names = np.where(sessions < 0, -1 - np.arange(len(sessions)), sessions)
        _, first, group = np.unique(names, return_index=True, return_inverse=True)
        self._group = group.reshape(-1)
        self._is_probe = np.zeros(len(sessions), np.bool_)
        self._is_probe[first] = True
        self._longest = np.full(len(first), np.inf)  # of the samples of each group that have ended
        self._goal = np.zeros(len(sessions), np.int64)  # tokens at the end of the present chunk; 0: no chunk yet
        self._out: set[int] = set()  # those that step aside, and have until they come back
        self._back: dict[int, int] = {}  # those that come back, and their instances, until they decode

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Put new requests into the buffer."""
        waiting = cluster.queued(instance)
        new = waiting[self._goal[waiting] == 0]
        return [*(Preempt(int(r)) for r in new), *self._placed(cluster, new)] if len(new) else []

    def on_finish(self, request: Request, cluster: Cluster) -> list[Action]:
        group, tokens = self._group[request.id], request.generated
        known = self._longest[group]
        self._longest[group] = tokens if np.isinf(known) else max(known, tokens)
        return self._placed(cluster, cluster.suspended[:0])

    def on_tick(self, cluster: Cluster) -> list[Action]:
        return self._placed(cluster, cluster.suspended[:0])

    def _placed(self, cluster: Cluster, new: Integers) -> list[Action]:
        """Give chunks to requests of the buffer (the `new` ones included) and to those whose chunk is over, in order.

        One that finds no room closes the instances on which it could be for those behind it.
        """
        room, seats, over = self._room(cluster)
        aside = np.union1d(cluster.suspended, new) if len(new) else cluster.suspended
        ids = np.concatenate([aside, np.array(list(over), np.int64)])
        ids = ids[np.lexsort([ids, *self._keys(ids, cluster)])]
        tokens = cluster.requests.input_tokens[ids] + cluster.requests.generated(ids) + self.chunk_tokens
        actions: list[Action] = []
        is_open = seats > 0
        for r, needed in zip(ids.tolist(), (-(-tokens // cluster.block_tokens)).tolist(), strict=True):
            if not is_open.any():
                break
            home = over.get(r, int(cluster.requests.instance[r]) if r in self._out else -1)
            able = is_open.copy()
            if r not in over and home >= 0:  # its KV is in the host memory of its instance
                able[np.arange(len(able)) != home] = False
            fits = able & (room >= np.minimum(needed, cluster.instances.total_blocks))
            if not fits.any():
                is_open &= ~able
                continue
            chosen = int(np.where(fits, room, -1).argmax())
            if home >= 0 and fits[home] and room[chosen] < room[home] + needed:
                chosen = home  # less than its own size to gain
            actions += (self._goes_on if r in over else self._begins)(r, home, chosen)
            self._goal[r] = int(cluster.requests.generated(np.array([r]))[0]) + self.chunk_tokens
            room[chosen] -= needed
            seats[chosen] -= 1
            is_open[chosen] &= seats[chosen] > 0
            over.pop(r, None)
        leaving = [r for r in over if r not in self._out]
        self._out.update(leaving)
        return [*(Preempt(r, "swap") for r in leaving), *actions]

    def _goes_on(self, r: int, home: int, chosen: int) -> list[Action]:
        """What lets r, which decodes at home, have its next chunk on the chosen instance."""
        withdrawn: list[Action] = [Resume(r)] if r in self._out else []
        self._out.discard(r)
        return [*withdrawn, Migrate(r, chosen)] if chosen != home else withdrawn

    def _begins(self, r: int, home: int, chosen: int) -> list[Action]:
        """What lets r of the buffer have a chunk on the chosen instance; `home`: where its KV is, -1: it has none."""
        if home < 0:
            return [Resume(r), Requeue(r, chosen)]
        self._out.discard(r)
        self._back[r] = home
        return [Resume(r)]

    def _room(self, cluster: Cluster) -> tuple[Integers, Integers, dict[int, int]]:
        """Blocks and seats that chunks under way leave on each instance; requests whose chunk is over, and where."""
        there, requests = cluster.instances, cluster.requests
        ids, owners, _ = cluster.residents(there)
        tokens = requests.generated(ids)
        is_over = (tokens >= self._goal[ids]) & ~cluster.migrating(ids)
        over = dict(zip(ids[is_over].tolist(), there.ids[owners[is_over]].tolist(), strict=True))
        if self._back:
            decoding = set(ids.tolist())
            self._back = {r: i for r, i in self._back.items() if r not in decoding and there.swapped[i]}
        held, where = [ids[~is_over], np.array(list(self._back), np.int64)], [owners[~is_over]]
        where.append(np.array(list(self._back.values()), np.int64))
        for i in np.flatnonzero(there.queued + there.prefilling).tolist():
            waiting = np.concatenate([cluster.queued(i), cluster.prefilling(i)])
            held.append(waiting[self._goal[waiting] > 0])
            where.append(np.full(len(held[-1]), i))
        ids, owners = np.concatenate(held), np.concatenate(where)
        tokens = requests.input_tokens[ids] + np.maximum(self._goal[ids], requests.generated(ids))
        taken = np.bincount(owners, -(-tokens // cluster.block_tokens), len(there)).astype(np.int64)
        return there.total_blocks - taken, there.max_batch - np.bincount(owners, minlength=len(there)), over

    def _keys(self, ids: Integers, cluster: Cluster) -> list[Floats]:
        """The order of requests, the most important key last: probes first."""
        is_probe = self._is_probe[ids]
        rank = np.where(is_probe, cluster.requests.generated(ids), -self._longest[self._group[ids]])
        return [rank, np.where(is_probe, 0.0, 1.0)]
