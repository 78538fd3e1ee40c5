"""KV-aware routing, conditional disaggregation and planners of the fleet (NVIDIA Dynamo, ai-dynamo/dynamo).

A request goes to the decode worker of least cost, or to one drawn by its cost. Only if its prompt is long and few wait
does a prefill worker prefill it for that worker. A request that finds every decode worker overloaded is rejected. A
planner, if there is one, adapts the number of workers, as documented (ai-dynamo/dynamo, planner).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, NotNegative, Positive, Share, Whole, checked
from framework.codes import DECODE, PREFILL
from framework.policy import Action, Disaggregated
from framework.policy.rules import rule
from framework.policy.view import Cluster, Request
from framework.system.cluster import ClusterSpec
from policies._scaling import (
    decodes_where_it_is,
    forecast,
    is_remote,
    largest_batch,
    prefill_only,
    resize,
    with_local_prefills,
)

LOAD = {
    "queue_high": 0.5,  # prompts per prefill worker at which one is added
    "queue_low": 0.2,
    "kv_high": 0.9,  # share of KV memory at which a decode worker is added
    "kv_low": 0.5,
    "kv_per_waiting": 0.02,  # share that a waiting request adds
    "patience": 3,  # intervals of a trend, and after an addition
}
SLA = {"ttft_s": 0.5, "itl_s": 0.05, "window": 50}


def plan_nothing(policy: Any, cluster: Cluster) -> Iterable[Action]:
    """Leave the fleet as it is."""
    return ()


def plan_by_load(policy: Any, cluster: Cluster) -> Iterable[Action]:
    """Add or remove one worker of each kind, by the waiting prompts and by the KV memory in use.

    A prefill worker is added if `queue_high` is exceeded now and, by the present trend, in `patience` intervals; a
    decode worker is not removed within that many intervals of an addition.
    """
    options, there, (prefill, decode) = policy.planning, cluster.instances, _workers(cluster)
    waiting = there.queued[prefill_only(cluster)]
    queue = float(waiting.mean()) if len(waiting) else 0.0
    pool = cluster.decode
    used = 1.0 - (pool.free_blocks + pool.evictable_blocks) / pool.total_blocks
    kv = float((used + options["kv_per_waiting"] * (pool.incoming + pool.queued)).mean())
    before, added_at = (policy.history[-1][0], policy.history[-1][1]) if policy.history else (queue, -math.inf)
    interval = len(policy.history)
    trend = queue + options["patience"] * (queue - before)
    more = (
        _step(up=min(queue, trend) > options["queue_high"], down=queue < options["queue_low"] and prefill > 1),
        _step(up=kv > options["kv_high"], down=kv < options["kv_low"] and decode > 1),
    )
    if more[1] < 0 and interval - added_at < options["patience"]:
        more = (more[0], 0)
    policy.history.append((queue, interval if more[1] > 0 else added_at))
    return resize(cluster, prefill + more[0], decode + more[1], "mixed", stop=min(more) < 0)


def _step(*, up: bool, down: bool) -> int:
    return 1 if up else -1 if down else 0


def plan_by_sla(policy: Any, cluster: Cluster) -> Iterable[Action]:
    """The workers for the forecast load: tokens of a second, of prompts and outputs, divided by a worker's capacity.

    A worker's capacity keeps `ttft_s` and `itl_s`, by the step times, corrected by observations. Both counts are scaled
    down to the fleet.
    """
    options, done = policy.planning, cluster.finished(policy.ended)
    policy.ended += len(done.ids)
    if policy.arrived and len(done.ids):
        seen = (policy.arrived, policy.prompt_tokens / policy.arrived, float(done.output_tokens.mean()))
        policy.history = [*policy.history, seen][-int(options["window"]) :]
    elif policy.history:
        policy.history = [*policy.history, (policy.arrived, *policy.history[-1][1:])]
    policy.arrived = policy.prompt_tokens = 0
    if not policy.history:
        return ()
    count, prompt, output = (forecast(column) for column in zip(*policy.history, strict=True))
    pool, context = cluster.decode, max(prompt + output / 2, 1.0)
    ttft_s = float(cluster.prefill.estimate_s(max(int(prompt), 1), 0, 0)[0])
    running = max(int(pool.running.mean()), 1)
    itl_s = float(pool.estimate_s(0, running, int(running * context))[0])
    slow = np.nanmean(done.ttft_s) / ttft_s if len(done.ids) else 1.0
    tpot_s = done.tpot_s[~np.isnan(done.tpot_s)]
    correction = float(tpot_s.mean()) / itl_s if len(tpot_s) else 1.0
    batch = largest_batch(pool, options["itl_s"] / max(correction, 1e-9), context, int(pool.max_batch[0]))
    decode_rate = batch / float(pool.estimate_s(0, batch, int(batch * context))[0])
    rate = count / policy.tick_s
    wanted = math.ceil(rate * ttft_s * min(1.0, slow)), math.ceil(rate * output / decode_rate)
    prefill, decode = max(wanted[0], 1), max(wanted[1], 1)
    fleet = len(cluster.instances)
    if prefill + decode > fleet:
        prefill = min(max(round(prefill * fleet / (prefill + decode)), 1), fleet - 1)
        decode = fleet - prefill
    return resize(cluster, prefill, decode, "mixed", stop=True)


def _workers(cluster: Cluster) -> tuple[int, int]:
    """The numbers of workers that only prefill, and that decode, once all changes are done."""
    roles = cluster.instances.next_role
    return int(np.count_nonzero(roles == PREFILL)), int(np.count_nonzero(roles & DECODE))


# --- the policy -------------------------------------------------------------------------------------------------------


Planner = Callable[["Dynamo", Cluster], Iterable[Action]]
PLANNERS: dict[str, Planner] = {"none": plan_nothing, "load": plan_by_load, "sla": plan_by_sla}
OPTIONS: dict[str, dict[str, Any]] = {"none": {}, "load": LOAD, "sla": SLA}


class Dynamo(Disaggregated):
    """Costs are `overlap_weight` * blocks to prefill + blocks in use; prompts beyond `local_tokens` are prefilled
    elsewhere while fewer than `queue` wait. `planner` is none, load or sla, and `planning` its options.

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
        self.tick_s = interval_s if self.changes_roles else None
        self.planning = OPTIONS[planner] | (planning or {})
        for name in self.planning:
            rule("policy.planning", name, OPTIONS[planner])
        self.worker: dict[int, int] = {}  # the decode worker of requests that another worker prefills
        self.arrived, self.prompt_tokens, self.ended = 0, 0, 0  # counts of this interval, and of the run
        self.history: list[tuple[float, ...]] = []  # what the planner has seen, one entry an interval

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
        return self._drawn(self.overlap_weight * prefill_blocks, prefill_only(cluster))

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
