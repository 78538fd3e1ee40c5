"""Instances by tiers of TPOT, filled one after the other (PolyServe: Zhu et al., arXiv 2507.17769).

Requests of a class form a tier, by the limit on TPOT. An instance serves one tier, whose limit its steps keep: chunks
are as large as the limit allows next to the decodes (dynamic chunking), and whole where nothing decodes. A prompt goes
to the most loaded instance of its tier that would still attain both limits, so load forms a gradient and the last
instances empty. If none of its own attains them, a free instance joins its tier; without one, the prompt shares an
instance of a tighter tier. An instance without requests is free. With spare instances one is started when none is free,
and one is stopped when more than `free` are.

Simplified: a prompt is expected to wait for the rest of the prompts before it as for one of their length, and to be
computed in chunks as large as the present one, each longer by what the decodes add. Load is KV that is held, on its way
and queued. Growth of outputs is not predicted. If no instance attains the limits the prompt goes to the one with the
fewest queued tokens; no request is turned away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from framework.checks import Count, Positive, Share, checked
from framework.codes import OFF
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Request, SetRole, SetTokenBudget
from framework.system.cluster import ClusterSpec
from framework.timing.estimate import estimate_s
from policies._class_limits import limits_s

_FREE = -1
_SMALLEST_CHUNK = 32  # tokens


class PolyServe(Aggregated):
    """Limits `ttft_s`, and `tpot_s` of all requests or `classes_tpot_s` of each class in the order of their names.

    `full`: the share of KV memory that a new prompt may fill. `period_s`: between starts and stops of instances.
    """

    batching_mode: ClassVar[Batching | None] = "decode_first"
    roles: ClassVar[tuple[str, ...]] = ("mixed", "off")

    @checked("policy.")
    def __init__(
        self,
        ttft_s: Positive | None = 2.0,
        tpot_s: Positive | None = 0.05,
        classes_tpot_s: Sequence[float] | None = None,
        full: Share = 0.9,
        free: Count = 1,
        period_s: Positive = 10.0,
    ) -> None:
        self.ttft_s = np.inf if ttft_s is None else ttft_s
        self._tpot = limits_s("policy.classes_tpot_s", tpot_s, classes_tpot_s)
        self.full, self.free, self.tick_s = full, free, period_s

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        self.changes_roles = any(pool.begins_on < pool.instances for pool in spec.pools)
        if not self.changes_roles:
            self.tick_s = None
        return super().layout(spec)

    def prepare(self, cluster: Cluster) -> None:
        self.limits_s = self._tpot(np.arange(int(cluster.requests.slo_class.max(initial=0)) + 1)).tolist()
        self._tier = np.full(len(cluster.instances), _FREE)
        self._most = cluster.instances.token_budget.copy()

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        there, tier = cluster.instances, request.slo_class
        self._tier[self._idle(cluster)] = _FREE
        load = there.kv_tokens + there.incoming_kv_tokens + there.queued_tokens
        ready = [int(i) for i in cluster.prefill.ids]
        own = [i for i in ready if self._limit_of(i) == self.limits_s[tier]]
        tighter = [i for i in ready if self._limit_of(i) < self.limits_s[tier]]
        free = [i for i in ready if self._tier[i] == _FREE]
        for i in sorted(own, key=lambda i: (-load[i], i)):
            if self._attains(i, request, cluster):
                return i
        if free:
            self._tier[free[0]] = tier
            return free[0]
        for i in sorted(tighter, key=lambda i: (-self._limit_of(i), -load[i], i)):
            if self._attains(i, request, cluster):
                return i
        return min(own or ready, key=lambda i: int(there.queued_tokens[i]))

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Set the largest chunk, of the budget and its halves, whose step keeps the limit of the instance's tier."""
        there = cluster.instances
        if self._tier[instance] == _FREE or there.queued_tokens[instance] == 0:
            return []
        decodes = int(there.running[instance])
        chunk = self._chunk(instance, cluster, decodes, int(there.kv_tokens[instance]))
        tokens = min(chunk + decodes, int(self._most[instance]))
        return [] if tokens == there.token_budget[instance] else [SetTokenBudget(instance, tokens)]

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        there = cluster.instances
        idle = np.flatnonzero(self._idle(cluster) & (there.role != OFF) & ~there.changing())
        off = np.flatnonzero((there.next_role == OFF) & ~there.changing())
        if len(idle) == 0 and len(off):
            return [SetRole(int(off[0]), "mixed")]
        return [SetRole(int(idle[-1]), "off")] if len(idle) > self.free else []

    def _limit_of(self, instance: int) -> float:
        """The limit that an instance's steps keep, NaN if it is free."""
        tier = int(self._tier[instance])
        return np.nan if tier == _FREE else self.limits_s[tier]

    def _attains(self, i: int, request: Request, cluster: Cluster) -> bool:
        """Whether the instance would keep its limits with one more request."""
        there = cluster.instances
        waiting = int(there.queued_tokens[i]) + request.input_tokens
        decodes = int(there.queued[i] + there.prefilling[i] + there.running[i]) + 1
        context = int(there.kv_tokens[i] + there.incoming_kv_tokens[i]) + waiting
        room = self.full * int(there.total_blocks[i]) * cluster.block_tokens
        limit_s = self._limit_of(i)
        if context > room or decodes > there.max_batch[i]:
            return False
        if estimate_s(there.step_times, i, _SMALLEST_CHUNK, decodes, context) > limit_s:
            return False
        chunk = self._chunk(i, cluster, int(there.running[i]), int(there.kv_tokens[i]))
        times, prompts = there.step_times, np.append(cluster.prefilling(i), cluster.queued(i))
        whole = int(cluster.requests.input_tokens[prompts].sum())
        done = max(whole - int(there.queued_tokens[i]), 0)
        beside_s = estimate_s(times, i, chunk, decodes, context) - estimate_s(times, i, chunk, 0, 0)
        ahead_s = estimate_s(times, i, whole, 0, 0) - estimate_s(times, i, done, 0, 0)
        own_s = float(there.prefill_s(request, chunk_tokens=chunk)[i])
        wait_s = ahead_s + own_s + -(-waiting // chunk) * beside_s
        return bool(wait_s <= self.ttft_s)

    def _chunk(self, i: int, cluster: Cluster, decodes: int, context: int) -> int:
        """Prompt tokens for which a step with these decodes has room: all that it may have where nothing decodes."""
        limit_s, chunk = self._limit_of(i) if decodes else np.inf, int(self._most[i])
        times = cluster.instances.step_times
        while chunk > _SMALLEST_CHUNK and estimate_s(times, i, chunk, decodes, context) > limit_s:
            chunk //= 2
        return chunk

    def _idle(self, cluster: Cluster) -> Any:
        there = cluster.instances
        return (there.queued + there.prefilling + there.running + there.incoming + there.swapped) == 0
