"""Instances of two kinds that both prefill and decode (TaiChi: arXiv 2508.01989).

Prefill-heavy ones take large chunks, decode-heavy ones small ones. Requests begin to decode on decode-heavy instances.
When memory gets short, the request with the longest output moves to a prefill-heavy one, and back when its TPOT nears
the SLO (flowing decode). Prompts go where their TTFT can be kept (length-aware prefill).

Simplified: instances keep their kind and chunks, which the paper finds off-line for a load. The thresholds of memory
and of TPOT are a reconstruction. Estimates know no output lengths, and no prompts that come later: decodes that a
prefill shares its steps with stay as they are. With `estimate=even`, the default, a chunk lasts as long at any context,
a queue is so many chunks, and a copy finds an idle link; `estimate=context` has none of these three.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, Share, Whole, checked
from framework.policy import Action, Disaggregated, Migrate
from framework.policy.view import Cluster, Request
from framework.system.cluster import ClusterSpec
from policies._class_limits import limits_s

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Estimate = Literal["even", "context"]
Flow = Literal["period", "change"]


class TaiChi(Disaggregated):
    """Prefill-heavy instances are those of the prefill pools, with chunks of `prefill_chunk`, the others the rest.

    Limits are `ttft_s` and `tpot_s`, or those of each class in the order of their names, or where none is given those
    of the run's SLO. Prompts of up to `short_tokens` go to decode-heavy instances first. A request leaves one of these
    above `full` of its KV memory, and returns above `near` of its TPOT limit: looked at every `period_s`, and with
    `flow=change` also before a step of an instance on which something has changed. `estimate` of TTFT: see above.
    """

    @checked("policy.")
    def __init__(
        self,
        prefill_chunk: Count = 1024,
        decode_chunk: Count = 256,
        ttft_s: Positive | None = None,
        tpot_s: Positive | None = None,
        classes_ttft_s: Sequence[float | None] | None = None,
        classes_tpot_s: Sequence[float | None] | None = None,
        short_tokens: Whole = 512,
        full: Share = 0.9,
        near: Positive = 0.9,
        period_s: Positive = 0.5,
        flow: Flow = "period",
        estimate: Estimate = "even",
    ) -> None:
        self.chunks = {"prefill": prefill_chunk, "decode": decode_chunk}
        self.given = ("ttft_s", ttft_s, classes_ttft_s), ("tpot_s", tpot_s, classes_tpot_s)
        self.of_classes = [limits_s(f"policy.classes_{name}", one, classes) for name, one, classes in self.given]
        self.tick_s, self.short_tokens, self.full, self.near = period_s, short_tokens, full, near
        self.by_context = estimate == "context"
        if flow == "change":
            vars(self)["decide"] = self._flow_from
        self.heavy: tuple[bool, ...] = ()  # whether each pool is prefill-heavy

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        spec = super().layout(spec)
        self.heavy = tuple(pool.role == "prefill" for pool in spec.pools)
        pools = [
            replace(pool, role="mixed", batching="decode_first", token_budget=self.chunks[pool.role])
            for pool in spec.pools
        ]
        return replace(spec, pools=tuple(pools))

    def prepare(self, cluster: Cluster) -> None:
        there, requests = cluster.instances, cluster.requests
        limits = [
            getattr(requests.limits, name) if one is None and classes is None else of(requests.slo_class)
            for (name, one, classes), of in zip(self.given, self.of_classes, strict=True)
        ]
        self.ttft_s, self.tpot_s = limits
        heavy = np.asarray(self.heavy)[there.pool]
        self.kinds = np.flatnonzero(heavy), np.flatnonzero(~heavy)
        budgets = enumerate(there.token_budget)
        self.chunk_s = np.array([there.estimate_s(int(budget), 0, 0)[i] for i, budget in budgets])
        self.alone_s = np.zeros(len(requests.input_tokens))  # the prefill of each request alone, where it was sent

    def _split(self, cluster: Cluster) -> tuple[Integers, Integers]:
        """Prefill-heavy and decode-heavy instances that take work. If those of one kind have all crashed, the others
        replace them.
        """
        large, small = (ids[cluster.instances.role[ids] > 0] for ids in self.kinds)
        return large if len(large) else small, small if len(small) else large

    # --- length-aware prefill -----------------------------------------------------------------------------------------

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        large, small = self._split(cluster)
        alone_s = self._alone_s(request, cluster)
        ready_s = self._ready_s(request, cluster, alone_s)
        ready_s[large] += self._copy_s(request, cluster, large, small)
        chosen = self._chosen(request, cluster, ready_s <= self.ttft_s[request.id], small)
        able = cluster.prefill.ids
        if chosen < 0:
            chosen = int(able[ready_s[able].argmin()])
        self.alone_s[request.id] = alone_s[chosen]
        return chosen

    def _chosen(self, request: Request, cluster: Cluster, feasible: NDArray[np.bool_], small: Integers) -> int:
        """Of the instances that are in time the one with the fewest tokens to prefill, -1: none is."""
        able = cluster.prefill.ids
        for ids in (small, able) if request.input_tokens <= self.short_tokens else (able,):
            in_time = ids[feasible[ids]]
            if len(in_time):
                return int(in_time[cluster.instances.queued_tokens[in_time].argmin()])
        return -1

    def _alone_s(self, request: Request, cluster: Cluster) -> Floats:
        """Seconds of the request's prefill alone on each instance, in its chunks; 0 where no estimate reads them."""
        there = cluster.instances
        if not self.by_context:
            return np.zeros(len(there))
        cached, found = there.cached_tokens(request), np.zeros(len(there))
        for budget in set(there.token_budget.tolist()):
            is_of = there.token_budget == budget
            found[is_of] = there.prefill_s(request, cached, budget)[is_of]
        return found

    def _ready_s(self, request: Request, cluster: Cluster, alone_s: Floats) -> Floats:
        """Seconds until each instance has prefilled its waiting prompts and the request, chunk by chunk with
        decodes.
        """
        there = cluster.instances
        tokens = there.queued_tokens + request.input_tokens - there.cached_tokens(request)
        steps = np.ceil(tokens / np.maximum(there.token_budget - there.running, 1))
        if not self.by_context:
            return np.asarray(steps * (self.chunk_s + there.step_s()), np.float64)
        ahead_s = np.array([self._ahead_s(cluster, i) for i in range(len(there))])
        return np.asarray(ahead_s + alone_s + steps * there.step_s(), np.float64)

    def _ahead_s(self, cluster: Cluster, instance: int) -> float:
        """Seconds of the prompts on an instance, of those under way by the share of tokens that is left."""
        there, tokens = cluster.instances, cluster.requests.input_tokens
        if there.queued_tokens[instance] == 0:
            return 0.0
        waiting, begun = cluster.queued(instance), cluster.prefilling(instance)
        left = int(there.queued_tokens[instance] - tokens[waiting].sum())
        share = min(max(left / max(int(tokens[begun].sum()), 1), 0.0), 1.0)
        return float(self.alone_s[waiting].sum() + share * self.alone_s[begun].sum())

    def _copy_s(self, request: Request, cluster: Cluster, large: Integers, small: Integers) -> Floats:
        """Seconds of the copy of the request's KV from each prefill-heavy instance, shape of `large`.

        By context, what waits on the link of the source, or of the decode-heavy instance that would take it, is first.
        """
        there, tokens = cluster.instances, np.full(len(large), request.input_tokens)
        bandwidth = there.bandwidth_bytes_s[large]
        if not self.by_context:
            return np.asarray(tokens * cluster.kv_bytes_per_token / bandwidth, np.float64)
        ids, _, stays = cluster.residents(there)
        leaving = ids[~stays]
        held = cluster.requests.input_tokens[leaving] + np.maximum(cluster.requests.generated(leaving) - 1, 0)
        out = np.bincount(cluster.requests.instance[leaving], held, len(there))[large]
        d = self._emptiest(cluster, small)
        into_s = (there.incoming_kv_tokens[d] + tokens) / there.bandwidth_bytes_s[d]
        return np.asarray(np.maximum((out + tokens) / bandwidth, into_s) * cluster.kv_bytes_per_token, np.float64)

    # --- flowing decode -----------------------------------------------------------------------------------------------

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        _, small = self._split(cluster)
        here = int(cluster.requests.instance[request.id])
        return here if here in small else self._emptiest(cluster, small)

    def _emptiest(self, cluster: Cluster, ids: Integers) -> int:
        there = cluster.instances
        return int(ids[(there.kv_tokens + there.incoming_kv_tokens)[ids].argmin()])

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        large, small = self._split(cluster)
        return self._away(cluster, small, large) + self._back(cluster, large, small)

    def _flow_from(self, instance: int, cluster: Cluster) -> Iterable[Action]:
        """The same moves from one instance."""
        large, small = self._split(cluster)
        only = np.array([instance])
        return self._away(cluster, only, large) if instance in small else self._back(cluster, only, small)

    def _away(self, cluster: Cluster, small: Integers, large: Integers) -> list[Action]:
        """The longest output leaves each of the decode-heavy instances that is full."""
        there, requests, moves = cluster.instances, cluster.requests, list[Action]()
        used = 1.0 - (there.free_blocks[small] + there.evictable_blocks[small]) / there.total_blocks[small]
        for i in small[used > self.full]:
            ids = self._movable(cluster, int(i))
            if len(ids):
                longest = ids[requests.generated(ids).argmax()]
                moves.append(Migrate(int(longest), self._emptiest(cluster, large)))
        return moves

    def _back(self, cluster: Cluster, large: Integers, small: Integers) -> list[Action]:
        """Requests near their TPOT limits leave the prefill-heavy instances."""
        requests, moves = cluster.requests, list[Action]()
        for i in large:
            ids = self._movable(cluster, int(i))
            later = requests.generated(ids) - 1
            spent_s = cluster.now_s - requests.first_token_s[ids]
            slow = ids[(later > 0) & (spent_s > self.near * self.tpot_s[ids] * later)]
            moves += [Migrate(int(r), self._emptiest(cluster, small)) for r in slow]
        return moves

    def _movable(self, cluster: Cluster, instance: int) -> Integers:
        ids = cluster.decoding(instance)
        return ids[~cluster.migrating(ids)]
