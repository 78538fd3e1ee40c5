"""Stateless instances between elastic pools (Arrow: arXiv 2505.11916).

A role is a label. Prompts go to the instance with the least predicted TTFT, decodes to the one with the fewest resident
tokens. Every period the pool whose load is above its SLO takes an instance from the other, if that one is idle enough.
An instance on its way between pools does both: its present requests end there.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, NotNegative, Positive, Share, checked
from framework.policy import Action, Disaggregated
from framework.policy.view import Cluster, Request
from framework.system.cluster import Role
from policies._scaling import change

Floats = NDArray[np.float64]


class Arrow(Disaggregated):
    """Loads are shares of `ttft_s` and `tpot_s`, or of the `fill` of a decode instance.

    A pool above `grow` for `passes` periods takes an instance from one below `donor`; above `emergency` at once, from
    any below 1. At least `cooldown_s` pass between two moves from prefill to decode.
    """

    changes_roles = True

    @checked("policy.")
    def __init__(
        self,
        ttft_s: Positive = 2.0,
        tpot_s: Positive = 0.05,
        period_s: Positive = 1.0,
        grow: NotNegative = 1.0,
        donor: NotNegative = 0.5,
        emergency: NotNegative = 2.0,
        fill: Share = 0.8,
        passes: Count = 3,
        cooldown_s: NotNegative = 10.0,
    ) -> None:
        self.ttft_s, self.tpot_s, self.tick_s = ttft_s, tpot_s, period_s
        self.grow, self.donor, self.emergency = grow, donor, emergency
        self.fill, self.passes, self.cooldown_s = fill, passes, cooldown_s
        self.high = {"prefill": 0, "decode": 0}  # periods for which the pool has been above `grow`
        self.moving: dict[int, Role] = {}  # instances on their way, and their new role
        self.taken_s = -np.inf
        self.free_s: Floats = np.zeros(0)  # time at which each instance will have prefilled what was sent there

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        pool = cluster.prefill
        prefill_s = pool.prefill_s(request)  # quadratic in the prompt, as the paper's predictor
        ready_s = self._backlog_s(cluster)[pool.ids] + prefill_s
        instance = pool.argmin(ready_s)
        self.free_s[instance] = cluster.now_s + ready_s.min()
        return instance

    def _backlog_s(self, cluster: Cluster) -> Floats:
        """Seconds until each instance has prefilled what it was sent."""
        if len(self.free_s) == 0:
            self.free_s = np.zeros(len(cluster.instances))
        return np.where(cluster.instances.queued_tokens > 0, np.maximum(self.free_s - cluster.now_s, 0.0), 0.0)

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        if self.moving:
            moved, self.moving = self.moving, {}
            return [change(cluster, i, role) for i, role in moved.items()]
        backlog_s, held = self._backlog_s(cluster), self._resident(cluster)
        prefill, decode = cluster.prefill, cluster.decode
        loads = {"prefill": np.inf, "decode": np.inf}  # load of a pool that has crashed
        if len(prefill):
            loads["prefill"] = float(backlog_s[prefill.ids].mean()) / self.ttft_s
        if len(decode):
            loads["decode"] = max(float(decode.step_s().mean()) / self.tpot_s, float(held[decode.ids].mean()))
        self.high = {name: self.high[name] + 1 if load > self.grow else 0 for name, load in loads.items()}
        if self._takes("prefill", loads, loads["decode"]) and len(decode) > 1:
            return self._move(cluster, decode.argmin(held[decode.ids]), "prefill")
        rested = cluster.now_s >= self.taken_s + self.cooldown_s
        if rested and self._takes("decode", loads, loads["prefill"]) and len(prefill) > 1:
            self.taken_s = cluster.now_s
            return self._move(cluster, prefill.argmin(backlog_s[prefill.ids]), "decode")
        return ()

    def _resident(self, cluster: Cluster) -> Floats:
        """The share of its memory or seats that each instance fills, including requests on their way."""
        there = cluster.instances
        memory = (there.kv_tokens + there.incoming_kv_tokens) / (there.total_blocks * cluster.block_tokens)
        seats = (there.running + there.incoming) / there.max_batch
        return np.asarray(np.maximum(memory, seats) / self.fill, np.float64)

    def _takes(self, pool: str, loads: dict[str, float], other: float) -> bool:
        sustained = self.high[pool] >= self.passes and other < self.donor
        return sustained or (loads[pool] > self.emergency and other < 1.0)

    def _move(self, cluster: Cluster, instance: int, role: Role) -> list[Action]:
        """Let the instance do both until the next period, and then only the work of its new role."""
        self.moving[instance] = role
        self.high = {"prefill": 0, "decode": 0}
        return [change(cluster, instance, "mixed")]
