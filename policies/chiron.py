"""Backpressure scales batches on instances, and instances of a fleet, for interactive and batch requests (Chiron: Patke
et al., arXiv 2501.08090).

*Local.* The backpressure of an instance is the time of its decode step over the tightest TPOT limit there. Above 1 the
instance gets fewer seats, below 1 it gets more once all are taken.

*Global.* A request is interactive if its TTFT limit is at most `interactive_s`, else a batch request. Instances for
interactive requests are as many as those need for their seats, or for the prompts that arrived last, divided by `use`:
the rest is kept for spikes, and serves batch requests meanwhile. Batch requests are ordered by deadline, and step aside
for interactive ones. Further instances, for batch requests alone, are started only if the others cannot serve those
that wait, up to some deadline, by that deadline; they are stopped when no batch request is left.

Simplified: an instance needs as many tokens a second as finished requests have shown. The throughput of a batch size is
not part of the local backpressure, and seats are at most those of the engine. A request that steps aside is computed
again, where Chiron moves its KV to host memory. Groups of similar deadlines are single requests. Instances above need
are stopped one at a time, the last first. `use` is 1/3 in the paper. Steps are those of `vllm_v1`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import NotNegative, Positive, Share, checked
from framework.codes import OFF
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Preempt, Request, Requeue, Resume, SetMaxBatch, SetRole
from framework.policy.view import Floats
from policies._class_limits import limits_s
from policies._stepping_aside import stepping_aside

Integers = NDArray[np.int64]


class Chiron(Aggregated):
    """`classes_ttft_s`: limits of classes in the order of their names, None: those of the run's SLO; `tpot_s` likewise.

    Every `period_s` seats and instances are set anew; fewer interactive ones after `calm_s` in which fewer would do.
    """

    batching_mode: ClassVar[Batching | None] = "unified"
    roles: ClassVar[tuple[str, ...]] = ("mixed", "off")
    changes_roles = True

    @checked("policy.")
    def __init__(
        self,
        period_s: Positive = 1.0,
        interactive_s: Positive = 30.0,
        use: Share = 1 / 3,
        calm_s: NotNegative = 60.0,
        tpot_s: Positive | None = None,
        classes_ttft_s: Sequence[float] | None = None,
    ) -> None:
        self.tick_s, self.interactive_s, self.use, self.calm_s = period_s, interactive_s, use, calm_s
        self.tpot_s = tpot_s
        self._limits = None if classes_ttft_s is None else limits_s("policy.classes_ttft_s", None, classes_ttft_s)

    def prepare(self, cluster: Cluster) -> None:
        requests, count = cluster.requests, len(cluster.instances)
        ttft_s = requests.limits.ttft_s if self._limits is None else self._limits(requests.slo_class)
        self._ttft_s = np.minimum(ttft_s, 1e9)
        self._interactive = self._ttft_s <= self.interactive_s
        self._tpot_s = requests.limits.tpot_s if self.tpot_s is None else np.full(len(ttft_s), self.tpot_s)
        self._for_batch = np.zeros(count, np.bool_)  # instances that serve batch requests alone
        self._most = cluster.instances.max_batch.copy()
        self._tokens = self._busy_s = 0.0  # of finished requests, and of instances with work
        there = cluster.instances
        budget = int(there.token_budget[0])
        self._token_s = float(there.estimate_s(budget, 0, 0)[0]) / budget  # of a prefill
        self._prompt_tokens = 0  # uncached, of interactive requests since the last tick
        self._enough_s = 0.0  # since when fewer interactive instances would do

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        pool = cluster.prefill
        load = (pool.queued + pool.prefilling + pool.running + pool.incoming).astype(np.float64)
        alone = self._for_batch[pool.ids]
        interactive = self._interactive[request.id]
        home = pool.argmin(np.where(alone if interactive else ~alone, load + 1e9, load))
        if interactive:
            cached = pool.cached_tokens(request)[pool.ids == home]
            self._prompt_tokens += request.input_tokens - int(cached[0])
        return home

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        due_s = cluster.requests.arrival_s[queue] + self._ttft_s[queue]
        return np.where(self._interactive[queue], 0.0, 1.0 + due_s)

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Batch requests step aside for interactive ones that find no room or seat."""
        waiting, running = cluster.queued(instance), cluster.decoding(instance)
        waiting, running = waiting[self._interactive[waiting]], running[~self._interactive[running]][::-1]
        if len(waiting) == 0 or len(running) == 0:
            return []
        costs = np.zeros(len(waiting)), np.ones(len(running))
        leaving = stepping_aside(cluster, instance, waiting, running, costs)
        return [action for r in leaving for action in (Preempt(r), Resume(r))]

    def on_finish(self, request: Request, cluster: Cluster) -> list[Action]:
        self._tokens += request.input_tokens + request.generated
        return []

    def on_tick(self, cluster: Cluster) -> list[Action]:
        there = cluster.instances
        on = np.flatnonzero(there.next_role != OFF)
        present = there.queued + there.prefilling + there.running
        self._busy_s += float(self.tick_s or 0.0) * np.count_nonzero(present)
        return [*self._seats(cluster, on), *self._fleet(cluster, on), *self._moves(cluster)]

    def _seats(self, cluster: Cluster, on: Integers) -> list[Action]:
        """The local autoscaler."""
        there, step_s, actions = cluster.instances, cluster.instances.step_s(), []
        for i in on[there.running[on] > 0].tolist():
            pressure = float(step_s[i] / self._tpot_s[cluster.decoding(i)].min())
            seats, taken = int(there.max_batch[i]), int(there.running[i] + there.prefilling[i])
            wanted = max(int(taken / pressure), 1) if pressure > 1.0 else seats
            if pressure < 1.0 and taken >= seats:
                wanted = min(math.ceil(seats / max(pressure, 0.5)), int(self._most[i]))
            if wanted != seats and wanted <= self._most[i]:
                actions.append(SetMaxBatch(i, wanted))
        return list(actions)

    def _fleet(self, cluster: Cluster, on: Integers) -> list[Action]:
        """The global autoscaler: starts, stops, and instances that change between the kinds."""
        ids = np.concatenate([np.zeros(0, np.int64), *(self._present(cluster, i) for i in on.tolist())])
        mine = self._interactive[ids]
        seats = cluster.instances.max_batch[on].mean() if len(on) else 1.0
        computing = self._prompt_tokens * self._token_s / (self.tick_s or 1.0)
        self._prompt_tokens = 0
        needed = max(np.count_nonzero(mine) / seats, computing)
        interactive, have = max(math.ceil(needed / self.use), 1), np.count_nonzero(~self._for_batch[on])
        if interactive >= have:
            self._enough_s = cluster.now_s
        elif cluster.now_s - self._enough_s < self.calm_s:
            interactive = have
        else:
            interactive = have - 1
        batch = self._batch_needed(cluster, ids[~mine], interactive - needed)
        if batch == 0 and not mine.all():
            batch = int(np.count_nonzero(self._for_batch[on]))  # they stay until no batch request is left
        return self._towards(cluster, on, interactive, batch)

    def _batch_needed(self, cluster: Cluster, ids: Integers, spare: float) -> int:
        """Instances that batch requests need beyond `spare` ones, so that each is begun by its deadline."""
        waiting = ids[cluster.requests.generated(ids) == 0]
        if len(waiting) == 0 or self._tokens == 0:
            return 0
        due_s = cluster.requests.arrival_s[waiting] + self._ttft_s[waiting]
        order = np.argsort(due_s, kind="stable")
        tokens = np.cumsum(cluster.requests.input_tokens[waiting][order])
        left_s = np.maximum(due_s[order] - cluster.now_s, self.tick_s or 0.0)
        return max(math.ceil(float((tokens / left_s).max()) / (self._tokens / self._busy_s) - spare), 0)

    def _towards(self, cluster: Cluster, on: Integers, interactive: int, batch: int) -> list[Action]:
        """Start what is missing, change the kind of what is not, and stop what is too much."""
        off = np.flatnonzero(cluster.instances.next_role == OFF)
        total = min(interactive + batch, len(cluster.instances))
        starting, stopping = off[: max(total - len(on), 0)], on[total:]
        stay = np.concatenate([on[:total], starting])
        self._for_batch[:] = False
        self._for_batch[stay[min(interactive, len(stay)) :]] = True
        return [*(SetRole(int(i), "mixed") for i in starting), *(SetRole(int(i), "off") for i in stopping)]

    def _moves(self, cluster: Cluster) -> list[Action]:
        """Batch requests that wait where interactive ones are served go to instances for them, as far as these have
        seats.
        """
        pool = cluster.prefill
        homes = pool.ids[self._for_batch[pool.ids]]
        there = cluster.instances
        free = {
            int(i): int(there.max_batch[i] - there.running[i] - there.prefilling[i] - there.queued[i]) for i in homes
        }
        actions: list[Action] = []
        for i in pool.ids[~self._for_batch[pool.ids]].tolist():
            waiting = cluster.queued(i)
            for r in waiting[~self._interactive[waiting]].tolist():
                home = max(free, key=lambda k: free[k], default=-1)
                if home < 0 or free[home] < 1:
                    return actions
                free[home] -= 1
                actions.append(Requeue(r, home))
        return actions

    def _present(self, cluster: Cluster, i: int) -> Integers:
        return np.concatenate([cluster.queued(i), cluster.prefilling(i), cluster.decoding(i)])
