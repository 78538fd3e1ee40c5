"""KV-aware routing, conditional disaggregation and planners of the fleet (NVIDIA Dynamo, ai-dynamo/dynamo).

A request goes to the decode worker of least cost, or to one drawn by its cost. Only if its prompt is long and few wait
does a prefill worker prefill it for that worker: the one of least cost, or the first that has room for the next prompt
of a queue of the fleet (docs, disaggregation: prefill queue). A request that finds every decode worker overloaded is
rejected. A planner, if there is one, adapts the number of workers (`policies/_dynamo_planners.py`).

Simplified: a prompt of the queue takes its KV memory on the decode worker when it has been prefilled, not before it is
put there, and the prefill worker computes it without the prefix that the decode worker has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, NotNegative, Positive, Share, Whole, checked
from framework.codes import PREFILL
from framework.policy import Action, Disaggregated, Requeue, SetMaxBatch
from framework.policy.rules import rule
from framework.policy.view import Cluster, Request
from framework.system.cluster import ClusterSpec
from policies._dynamo_planners import PLANNERS, options_of
from policies._scaling import decodes_where_it_is, is_remote, prefill_only, with_local_prefills

PrefillQueue = Literal["worker", "fleet"]


class Dynamo(Disaggregated):
    """Costs are `overlap_weight` * blocks to prefill + blocks in use; prompts beyond `local_tokens` are prefilled
    elsewhere while fewer than `queue` wait. `prefill_queue`: such a prompt waits for the prefill worker that it is
    assigned to at its arrival (worker), or in one queue of the fleet, from which prefill workers take one prompt after
    the other (fleet). `planner` is none, load, sla or both, and `planning` its options.

    A worker is drawn with probabilities proportional to exp(-cost / range of the costs / `temperature`); with 0 it is
    the cheapest. A decode worker is overloaded beyond `busy_blocks` of its KV blocks in use, or `busy_tokens` to
    prefill (Dynamo's `--active-decode-blocks-threshold` and `--active-prefill-tokens-threshold`); null: never.
    """

    roles: ClassVar[tuple[str, ...]] = ("prefill", "decode", "off")

    @checked("policy.")
    def __init__(
        self,
        overlap_weight: NotNegative = 1.0,
        local_tokens: Whole = 1000,
        queue: Whole = 2,
        prefill_queue: PrefillQueue = "worker",
        planner: str = "none",
        interval_s: Positive = 30.0,
        planning: dict[str, Any] | None = None,
        temperature: NotNegative = 0.0,
        busy_blocks: Share | None = None,
        busy_tokens: Count | None = None,
        seed: Whole = 0,
    ) -> None:
        self.overlap_weight, self.local_tokens, self.queue = overlap_weight, local_tokens, queue
        self.temperature, self.rng = temperature, np.random.default_rng(seed)
        self.busy_blocks = math.inf if busy_blocks is None else busy_blocks
        self.busy_tokens = math.inf if busy_tokens is None else busy_tokens
        self.plan = rule("policy.planner", planner, PLANNERS)
        self.changes_roles = planner != "none"
        self.planning = options_of(planner, planning)
        self.tick_s = self.planning.get("load_interval_s", interval_s) if self.changes_roles else None
        self.floor, self.floor_due_s = (1, 1), self.planning.get("throughput_interval_s", 0.0)
        self.shares_queue = prefill_queue == "fleet"
        if self.shares_queue:
            vars(self)["decide"] = self._pull
        self.pushed: dict[int, int] = {}  # the place in the queue of the fleet of what has been put there
        self.worker: dict[int, int] = {}  # the decode worker of requests that another worker prefills
        self.arrived, self.prompt_tokens, self.ended = 0, 0, 0  # counts of this interval, and of the run
        self.history: list[tuple[float, ...]] = []  # what the planner has seen, one entry an interval

    def prepare(self, cluster: Cluster) -> None:
        self.seats = cluster.instances.max_batch.copy()

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        return with_local_prefills(super().layout(spec))

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return bool(len(self._free(cluster))) or "all workers are busy"

    def _free(self, cluster: Cluster) -> NDArray[np.int64]:
        """The decode workers that are not overloaded."""
        there, ids = cluster.instances, cluster.decode.ids
        used = 1.0 - (there.free_blocks + there.evictable_blocks) / there.total_blocks
        is_busy = (used > self.busy_blocks) | (there.queued_tokens > self.busy_tokens)
        return ids[~is_busy[ids]]

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        if request.generated == 0 and request.preemptions == 0:
            self.arrived += 1
            self.prompt_tokens += request.input_tokens
        there = cluster.instances
        lacking = request.input_tokens - there.cached_tokens(request)
        prefill_blocks = (there.queued_tokens + lacking) / cluster.block_tokens
        used = there.total_blocks - there.free_blocks - there.evictable_blocks
        active_blocks = used + there.incoming_kv_tokens / cluster.block_tokens
        cost = self.overlap_weight * prefill_blocks + active_blocks + request.input_tokens / cluster.block_tokens
        free = self._free(cluster)
        worker = self._drawn(cost, free if len(free) else cluster.decode.ids)
        if not is_remote(cluster, int(lacking[worker]), self.local_tokens, self.queue):
            return worker
        self.worker[request.id] = worker
        if self.shares_queue:
            return self._push(request, cluster)
        return self._drawn(self.overlap_weight * prefill_blocks, prefill_only(cluster))

    def _push(self, request: Request, cluster: Cluster) -> int:
        """A worker that is idle, else the one on which the prompts of the fleet's queue wait."""
        self.pushed.setdefault(request.id, len(self.pushed))
        workers, there = prefill_only(cluster), cluster.instances
        idle = workers[(there.queued + there.prefilling + there.running)[workers] == 0]
        return int(idle[0]) if len(idle) else int(workers[there.queued[workers].argmax()])

    def _pull(self, instance: int, cluster: Cluster) -> Iterable[Action]:
        """Let a prefill worker take the prompt at the head of the queue of the fleet, one at a time."""
        there = cluster.instances
        is_worker = there.role[instance] == PREFILL
        seats = 1 if is_worker else int(self.seats[instance])
        actions: list[Action] = [] if there.max_batch[instance] == seats else [SetMaxBatch(instance, seats)]
        if not is_worker or there.prefilling[instance] + there.running[instance] > 0:
            return actions
        heads = [cluster.queued(i) for i in prefill_only(cluster).tolist() if there.queued[i]]
        first = min((int(ids[0]) for ids in heads), key=self._place, default=-1)
        if first >= 0 and cluster.requests.instance[first] != instance:
            actions.append(Requeue(first, instance))
        return actions

    def _place(self, request: int) -> int:
        return self.pushed.get(request, -1)

    def _drawn(self, cost: NDArray[np.float64], ids: NDArray[np.int64]) -> int:
        """One of these workers by its cost."""
        costs = cost[ids]
        if self.temperature == 0.0:
            return int(ids[costs.argmin()])
        weights = np.exp((costs.min() - costs) / max(np.ptp(costs), 1e-9) / self.temperature)
        return int(self.rng.choice(ids, p=weights / weights.sum()))

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        here = decodes_where_it_is(request, cluster)
        if here >= 0:
            return here
        decode, worker = cluster.decode, self.worker.pop(request.id, -1)
        return worker if worker in decode.ids else decode.argmin(decode.kv_tokens + decode.incoming_kv_tokens)

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        return self.plan(self, cluster) if len(cluster.decode) else ()  # All of them may have crashed.
