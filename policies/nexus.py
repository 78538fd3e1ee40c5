"""Prefills and decodes as two streams on disjoint parts of one GPU (Nexus: arXiv 2507.06608).

A controller divides the streaming multiprocessors by a model of what each phase's next step takes. While KV memory is
far from full, prefills get the largest part at which decodes keep close to their time on the whole GPU; nearly full,
decodes get the largest at which prefills do. Each stream takes up a new part at its own next step. Short prompts go
first, and age.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.engine.config import Batching
from framework.engine.mechanisms.sm_sharing import require_percent
from framework.errors import InputError, require_at_least, require_choice, require_share, require_whole
from framework.policy import Aggregated, Plan
from framework.policy.rules import PREFILL_RULES, rule
from framework.policy.view import Cluster
from framework.system.cluster import ClusterSpec

Floats = NDArray[np.float64]

_LARGEST = 99  # percent: each stream keeps one


class Nexus(Aggregated):
    """`split`: dynamic, or static at `prefill_percent`, where the dynamic one begins. `queue`: spf or fcfs.

    Below `full` of the KV memory the largest prefill part is sought at which a decode step takes at most
    `decode_slack` times as long as on all SMs; from there on, the largest decode part with `prefill_slack`. A part that
    differs from the present one by no more than `hysteresis` percent is not applied. A waiting prompt is aged by
    `aging` tokens a second.
    """

    batching_mode: ClassVar[Batching | None] = "concurrent"
    shares_gpus: ClassVar[bool] = True

    def __init__(
        self,
        split: str = "dynamic",
        prefill_percent: int = 50,
        queue: str = "spf",
        aging: float = 15.0,
        full: float = 0.7,
        decode_slack: float = 1.1,
        prefill_slack: float = 1.3,
        hysteresis: int = 5,
        routing: str = "least_queued",
    ) -> None:
        require_choice("policy.split", split, ("dynamic", "static"))
        require_choice("policy.queue", queue, ("spf", "fcfs"))
        require_percent("policy.prefill_percent", prefill_percent)
        require_share("policy.full", full)
        require_at_least("policy.aging", aging, 0)
        require_at_least("policy.decode_slack", decode_slack, 1)
        require_at_least("policy.prefill_slack", prefill_slack, 1)
        require_whole("policy.hysteresis", hysteresis)
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        self.dynamic = split == "dynamic"
        self.first_percent = prefill_percent
        self.full, self.decode_slack, self.prefill_slack = full, decode_slack, prefill_slack
        self.hysteresis = hysteresis
        self.aging = aging
        self.percents: dict[int, int] = {}  # of prefills, by instance
        self.plans: dict[tuple[int, int], Plan] = {}  # by token budget and percent, made once
        if queue == "spf":
            vars(self)["prioritize"] = self.shortest_first

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        other = [pool.name for pool in spec.pools if pool.batching not in (None, self.batching_mode)]
        if other:
            raise InputError(f"policy nexus: pool {other[0]} has a batching of its own; leave it out")
        return super().layout(spec)

    def shortest_first(self, queue: NDArray[np.int64], cluster: Cluster) -> Any:
        """Prompt - aging * age. All ages grow alike, so that prompt + aging * arrival gives the same order."""
        return cluster.requests.input_tokens[queue] + self.aging * cluster.requests.arrival_s[queue]

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        percent = self.percents.get(instance, self.first_percent)
        if self.dynamic:
            best = self._best_percent(instance, cluster, percent)
            if abs(best - percent) > self.hysteresis:
                percent = best
        self.percents[instance] = percent
        chosen = int(cluster.instances.token_budget[instance]), percent
        if chosen not in self.plans:
            self.plans[chosen] = Plan(chosen[0], "concurrent", percent)
        return self.plans[chosen]

    def _best_percent(self, instance: int, cluster: Cluster, percent: int) -> int:
        """The prefills' part of the SMs, sought from the present one."""
        there = cluster.instances
        prefill_s, decode_s = cluster.streams_s(instance)
        available = int(there.free_blocks[instance]) + int(there.evictable_blocks[instance])
        if available > (1.0 - self.full) * int(there.total_blocks[instance]):
            return _largest(percent, decode_s, self.decode_slack)
        return 100 - _largest(100 - percent, prefill_s, self.prefill_slack)


@compiled
def _largest(percent: int, other_s: Floats, slack: float) -> int:
    """The largest part, in steps of 1 % from the present one, at which the other stream keeps its limit with the rest.

    Where that has nothing to do it keeps it with anything.
    """
    limit_s = slack * other_s[100]
    while percent > 1 and other_s[100 - percent] > limit_s:
        percent -= 1
    while percent < _LARGEST and other_s[100 - percent - 1] <= limit_s:
        percent += 1
    return percent
