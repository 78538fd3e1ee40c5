"""KV-aware routing, conditional disaggregation and planners of the fleet (NVIDIA Dynamo, ai-dynamo/dynamo).

A request is given to the decode worker of least cost; only where its prompt is long and few wait does a prefill worker
prefill it for that one. A planner, if there is one, adapts the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.cluster import ClusterSpec
from framework.policy import Action, Disaggregated
from framework.views import Cluster, Request
from policies.planning import decodes_where_it_is, is_remote, prefill_only, with_local_prefills
from policies.rules import rule
from policies.workers import LOAD, SLA, plan_by_load, plan_by_sla, plan_nothing

Planner = Callable[["Dynamo", Cluster], Iterable[Action]]
PLANNERS: dict[str, Planner] = {"none": plan_nothing, "load": plan_by_load, "sla": plan_by_sla}
OPTIONS: dict[str, dict[str, Any]] = {"none": {}, "load": LOAD, "sla": SLA}


class Dynamo(Disaggregated):
    """Costs are `overlap_weight` * blocks to prefill + blocks in use; prompts beyond `local_tokens` are prefilled
    elsewhere while fewer than `queue` wait. `planner` is none, load or sla, and `planning` its options.
    """

    roles: ClassVar[tuple[str, ...]] = ("prefill", "decode", "off")

    def __init__(
        self,
        overlap_weight: float = 1.0,
        local_tokens: int = 1000,
        queue: int = 2,
        planner: str = "none",
        interval_s: float = 30.0,
        planning: dict[str, Any] | None = None,
    ) -> None:
        self.overlap_weight, self.local_tokens, self.queue = overlap_weight, local_tokens, queue
        self.plan = rule("policy.planner", planner, PLANNERS)
        self.changes_roles = planner != "none"
        self.tick_s = interval_s if self.changes_roles else None
        self.planning = OPTIONS[planner] | (planning or {})
        for name in self.planning:
            rule("policy.planning", name, OPTIONS[planner])
        self.worker: dict[int, int] = {}  # the decode worker of requests that another prefills
        self.arrived, self.prompt_tokens, self.ended = 0, 0, 0  # in this interval; of the run
        self.history: list[tuple[float, ...]] = []  # what the planner has seen, an entry an interval

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        return with_local_prefills(super().layout(spec))

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
        worker = self._least(cost, cluster.decode.ids)
        if not is_remote(cluster, int(lacking[worker]), self.local_tokens, self.queue):
            return worker
        self.worker[request.id] = worker
        return self._least(self.overlap_weight * prefill_blocks, prefill_only(cluster))

    def _least(self, cost: NDArray[np.float64], ids: NDArray[np.int64]) -> int:
        return int(ids[cost[ids].argmin()])

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        here = decodes_where_it_is(request, cluster)
        if here >= 0:
            return here
        decode, worker = cluster.decode, self.worker.pop(request.id, -1)
        return worker if worker in decode.ids else decode.argmin(decode.kv_tokens + decode.incoming_kv_tokens)

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        return self.plan(self, cluster)
