"""Prefills by urgency, decodes by slack (Kairos: Wang, arXiv 2605.02329), on prefill and decode instances.

A prefill queue is ordered so that as many prompts as possible are done within `ttft_s`. It goes by arrival, and
predicts the times of completion. If a prompt would be late, the longest prompt up to there moves behind all that can be
in time (Moore and Hodgson). So a long prompt does not make those behind it late.

A decode step holds the requests for which `tpot_s` leaves room. First come those that would be late without this step,
then the shortest contexts. Others sit out and keep their KV: they are ahead of their TPOT, and have slack.

Simplified: the abstract fixes the mechanism, and these two rules are a reconstruction. Prompts count as prefilled one
after the other, whole. The participants of a step are chosen whenever something changes on an instance, and every
`period_s` if a request sits out or steps are too long. No request sits out if less than `spare` of KV memory is free.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from framework.checks import Positive, Share, checked
from framework.codes import DECODE
from framework.policy import Action, Cluster, Disaggregated, Preempt, Resume, SetMaxBatch
from framework.policy.rules import DECODE_RULES, PREFILL_RULES, rule
from framework.timing.estimate import estimate_s

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Kairos(Disaggregated):
    """The limits `ttft_s` and `tpot_s`; `routing` and `placement` spread requests."""

    dynamic_keys = True

    @checked("policy.")
    def __init__(
        self,
        ttft_s: Positive | None = 2.0,
        tpot_s: Positive | None = 0.05,
        period_s: Positive = 0.25,
        spare: Share = 0.1,
        routing: str = "least_queued",
        placement: str = "least_kv",
    ) -> None:
        self.ttft_s, self.tpot_s = (np.inf if limit_s is None else limit_s for limit_s in (ttft_s, tpot_s))
        self.tick_s, self.spare = period_s, spare
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        self.route_decode = rule("policy.placement", placement, DECODE_RULES)

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        """The rank of each request: first those that can be in time, then the others, each by arrival."""
        requests, there = cluster.requests, cluster.instances
        instance = int(requests.instance[queue[0]])
        order = queue[np.lexsort([queue, requests.arrival_s[queue]])].tolist()
        done_s, prefill_s = cluster.now_s, dict[int, float]()
        for r in order:
            prefill_s[r] = estimate_s(there.step_times, instance, int(requests.input_tokens[r]), 0, 0)
            done_s += prefill_s[r]
            if done_s > requests.arrival_s[r] + self.ttft_s:
                longest = max(prefill_s, key=lambda one: (prefill_s[one], one))
                done_s -= prefill_s.pop(longest)
        late = [r for r in order if r not in prefill_s]
        rank = {r: k for k, r in enumerate([*prefill_s, *late])}
        return np.array([rank[r] for r in queue.tolist()], np.float64)

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Choose the participants of a decode instance's next steps."""
        there = cluster.instances
        if not there.role[instance] & DECODE:
            return []
        aside = cluster.suspended_on(instance)
        running = cluster.decoding(instance)
        if len(aside) == 0 and there.step_s()[instance] <= self.tpot_s:
            return []
        free = int(there.free_blocks[instance] + there.evictable_blocks[instance])
        everyone = np.concatenate([running, aside])
        chosen = set(everyone.tolist())
        if free >= self.spare * there.total_blocks[instance]:
            chosen = self._batch(instance, cluster, everyone)
        leaving = [Preempt(r, "kv") for r in running.tolist() if r not in chosen]
        return [*leaving, *(Resume(r) for r in aside.tolist() if r in chosen)]

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        """Let an instance be asked when its step ends if a request sits out there, or steps are too long."""
        pool = cluster.decode
        sits_out = np.isin(pool.ids, cluster.requests.instance[cluster.suspended])
        asked = pool.ids[sits_out | (pool.step_s() > self.tpot_s)]
        return [SetMaxBatch(i, int(cluster.instances.max_batch[i])) for i in asked.tolist()]

    def _batch(self, instance: int, cluster: Cluster, ids: Integers) -> set[int]:
        """The requests for which the limit on a step leaves room: those without slack, then the shortest contexts."""
        requests = cluster.requests
        generated = requests.generated(ids)
        context = requests.input_tokens[ids] + generated
        due_s = requests.first_token_s[ids] + generated * self.tpot_s  # time at which the next token is due
        has_slack = np.nan_to_num(due_s, nan=-np.inf) > cluster.now_s + self.tpot_s + float(self.tick_s or 0.0)
        tokens, chosen = 0, list[int]()
        for k in np.lexsort([ids, context, has_slack]):
            tokens += int(context[k])
            if chosen and has_slack[k]:
                step_s = estimate_s(cluster.instances.step_times, instance, 0, len(chosen) + 1, tokens)
                if step_s > self.tpot_s:
                    break
            chosen.append(int(ids[k]))
        return set(chosen)
