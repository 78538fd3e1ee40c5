"""A fleet that follows the load closely, because instances start fast (BlitzScale: Zhang et al., OSDI 2025,
arXiv 2412.17246).

Weights come from instances that run, over the network of the GPUs, and a chain of receivers forwards them, so that many
instances start in the time of one (section 4). `engine/start=peers` has that time. So the fleet may be small: whenever
tokens that wait for their prefill would take more than `wait_s` on the instances that are on, or KV more than `kv` of
their memory, as many instances are started as lack; instances without work are stopped once `calm_s` have passed in
which fewer would do.

Simplified: a receiver takes work when all its weights are there. In the paper it computes layers as they arrive, for
instances that are overloaded (live scaling, section 5). Copies of weights take no bandwidth from KV, and the time does
not depend on who sends. Prefill and decode instances are not scaled apart. Steps are those of `vllm_v1`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from framework.checks import NotNegative, Positive, Share, checked
from framework.codes import OFF
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Scale
from framework.policy.rules import PREFILL_RULES, rule


class BlitzScale(Aggregated):
    """`wait_s` and `kv` bound the load of the instances that are on, `period_s` apart; `routing` spreads requests."""

    batching_mode: ClassVar[Batching | None] = "unified"
    roles: ClassVar[tuple[str, ...]] = ("mixed", "off")
    changes_roles = True

    @checked("policy.")
    def __init__(
        self,
        wait_s: Positive = 0.25,
        kv: Share = 0.5,
        period_s: Positive = 0.25,
        calm_s: NotNegative = 10.0,
        routing: str = "least_queued",
    ) -> None:
        self.wait_s, self.kv, self.tick_s, self.calm_s = wait_s, kv, period_s, calm_s
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)

    def prepare(self, cluster: Cluster) -> None:
        self._wanted: list[tuple[float, int]] = []  # times, and how many instances were wanted then

    def on_tick(self, cluster: Cluster) -> list[Action]:
        there, now_s = cluster.instances, cluster.now_s
        budget = int(there.token_budget[0])
        tokens_s = budget / float(there.estimate_s(budget, 0, 0)[0])  # prefilled in a second
        waiting = float(there.queued_tokens.sum()) / tokens_s / self.wait_s
        used = there.total_blocks - there.free_blocks - there.evictable_blocks
        held = float(used.sum()) / float(there.total_blocks[0]) / self.kv
        self._wanted = [(at_s, count) for at_s, count in self._wanted if at_s > now_s - self.calm_s]
        self._wanted.append((now_s, math.ceil(max(waiting, held))))
        wanted = min(max(1, *(count for _, count in self._wanted)), len(there))
        on = int(np.count_nonzero(there.next_role != OFF))
        return [] if wanted == on else [Scale(cluster.spec.pools[0].name, wanted)]
