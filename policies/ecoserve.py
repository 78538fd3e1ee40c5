"""Prefill and decode separated in time, not in place (EcoServe: arXiv 2504.18154).

An instance prefills or decodes, never both in a step, and no KV moves. Decodes that are ahead of their TPOT limit have
saved time; a prefill is admitted while that covers it. The instances of a macro-instance take new requests in turn:
each until the next prompt would break TTFT, TPOT or its memory (rolling activation). An instance prefills at once what
it has taken, one prompt after another; a prompt that none could take waits until saved time covers it.

In a fleet (`cluster.on_at_start` below `cluster.instances`) an instance is started where too many prompts find nobody
to take them, and one is stopped after a time without such prompts. Macro-instances split and merge as instances come
and go (mitosis scaling); requests stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, Share, Whole, checked
from framework.codes import OFF
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Plan, SetRole, SetTokenBudget
from framework.policy.rules import rule
from framework.policy.view import Cluster, Request
from framework.system.cluster import ClusterSpec
from policies._macro_instances import MacroInstances

SLACKS: dict[str, Callable[[NDArray[np.float64]], float]] = {
    "mean": lambda values: values.sum() / len(values),
    "least": lambda values: values.min(),
}


@dataclass(frozen=True)
class Queue:
    """Requests that wait for their first token, in the order of their arrival in the queue: prompts and the seconds of
    their prefills, shape (n,), and the sums of both.
    """

    ids: NDArray[np.int64]
    prompts: NDArray[np.int64]
    prefill_s: NDArray[np.float64]
    tokens: int
    ahead_s: float

    @classmethod
    def of(cls, ids: NDArray[np.int64], prompts: NDArray[np.int64], prefill_s: NDArray[np.float64]) -> Queue:
        ahead_s = float(np.cumsum(prefill_s)[-1]) if len(ids) else 0.0  # in the order in which they are appended
        return cls(ids, prompts, prefill_s, int(prompts.sum()), ahead_s)

    def with_last(self, request: Request, prefill_s: float) -> Queue:
        ids, prompts = np.append(self.ids, request.id), np.append(self.prompts, request.input_tokens)
        sums = self.tokens + request.input_tokens, self.ahead_s + prefill_s
        return Queue(ids, prompts, np.append(self.prefill_s, prefill_s), *sums)

    def without(self, ended: NDArray[Any]) -> Queue:
        return Queue.of(self.ids[~ended], self.prompts[~ended], self.prefill_s[~ended])


_EMPTY = Queue.of(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


class EcoServe(Aggregated):
    """A macro-instance has `least_members` to `most_members` instances (0: all of them); arrivals go to the one with
    the least waiting.

    `slack`: either the least or the mean saved time of an instance's decodes must cover a prefill. Waiting prompts
    count as decodes from the end of their prefills on, so each of several simultaneous arrivals sees those before it.
    An instance that decodes while prompts wait looks again every `period_s`. A fleet is looked at every `look_s`: it
    grows where more than the share `refused` of the arrivals since then found nobody to take them, by one instance at a
    time, and shrinks by one after `calm_s` without such an arrival.
    """

    batching_mode: ClassVar[Batching | None] = "prefill_first"

    @checked("policy.")
    def __init__(
        self,
        ttft_s: Positive = 2.0,
        tpot_s: Positive = 0.05,
        least_members: Count = 4,
        most_members: Whole = 0,
        slack: str = "least",
        period_s: Positive = 0.1,
        look_s: Positive = 5.0,
        refused: Share = 0.1,
        calm_s: Positive = 60.0,
    ) -> None:
        self.ttft_s, self.tpot_s, self.tick_s = ttft_s, tpot_s, period_s
        self.look_s, self.refused, self.calm_s = look_s, refused, calm_s
        self.macro = MacroInstances(least_members, most_members)
        self.slack = rule("policy.slack", slack, SLACKS)
        self.active: dict[int, int] = {}  # the instance of each macro-instance that takes requests
        self.budget: dict[int, int] = {}  # tokens of a prefill step, of each instance
        self.waiting: dict[int, Queue] = {}  # queue of each instance
        self.taken: set[int] = set()  # requests that wait although there was room for them
        self.arrived = self.untaken = 0  # requests since the last look at the fleet, and those that nobody could take
        self.looked_s = self.tight_s = 0.0  # the last look, and the last one that found such a request

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        self.changes_roles = any(pool.begins_on < pool.instances for pool in spec.pools)
        return super().layout(spec)

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        prefill_s = cluster.instances.prefill_s(request)
        number, group = self._macro_instance(cluster)
        self.arrived += 1
        start = int(np.searchsorted(group, self.active.get(number, 0)))
        for i in (*group[start:], *group[:start]):
            if self._can_take(int(i), request, float(prefill_s[i]), cluster):
                self.active[number] = int(i)
                self.taken.add(request.id)
                break
        else:  # none can: choose the one with the least waiting
            i = min(group, key=lambda j: (self._queue(int(j), cluster).ahead_s, j))
            self.untaken += 1
        self.waiting[int(i)] = self.waiting.get(int(i), _EMPTY).with_last(request, float(prefill_s[i]))
        return int(i)

    def _macro_instance(self, cluster: Cluster) -> tuple[int, np.ndarray]:
        """The macro-instance with the least to prefill for each running member: its number, and these members."""
        self.macro.update(cluster.prefill.ids)
        queued = cluster.instances.queued_tokens
        number, group = min(self.macro.groups.items(), key=lambda entry: (queued[entry[1]].mean(), entry[0]))
        return number, np.sort(group)

    def _can_take(self, i: int, request: Request, prefill_s: float, cluster: Cluster) -> bool:
        there, queue = cluster.instances, self._queue(i, cluster)
        ahead_s = queue.ahead_s + prefill_s
        waits_s = ahead_s - np.cumsum(queue.prefill_s)  # waits of the present requests, behind their own prefills
        waited_s = cluster.now_s - request.arrival_s
        tokens = there.kv_tokens[i] + there.queued_tokens[i] + request.input_tokens
        return bool(
            waited_s + ahead_s <= self.ttft_s
            and self._least_left(np.append(self._saved_s(i, cluster) - ahead_s, self.tpot_s - waits_s)) >= 0
            and tokens <= there.total_blocks[i] * cluster.block_tokens
        )

    def _queue(self, i: int, cluster: Cluster) -> Queue:
        """The requests that wait on i, without those that a crash took from there."""
        queue = self.waiting.get(i, _EMPTY)
        ended = ~np.isnan(cluster.requests.first_token_s[queue.ids]) | (cluster.requests.instance[queue.ids] != i)
        if ended.any():
            self.taken.difference_update(queue.ids[ended].tolist())
            queue = self.waiting[i] = queue.without(ended)
        return queue

    def _saved_s(self, i: int, cluster: Cluster) -> NDArray[np.float64]:
        """How far each of i's decodes is ahead of its TPOT limit."""
        ids, requests = cluster.decoding(i), cluster.requests
        spent_s = cluster.now_s - requests.first_token_s[ids]
        return np.asarray(self.tpot_s * requests.generated(ids) - spent_s, np.float64)

    def _least_left(self, left_s: NDArray[np.float64]) -> float:
        """The part of each one's remaining time that counts; no limit if there is none."""
        return float(self.slack(left_s)) if len(left_s) else np.inf

    def batching(self, instance: int, cluster: Cluster) -> Plan:
        """Prefill what was taken, and beyond that as much of the queue as the saved time covers, preempted requests
        first; else decode.
        """
        there, queue = cluster.instances, self._queue(instance, cluster)
        budget = self.budget.setdefault(instance, int(there.token_budget[instance]))
        again = int(there.queued_tokens[instance]) - queue.tokens
        again_s = float(there.estimate_s(again, 0, 0)[instance]) if again > 0 else 0.0
        at_once = max((k + 2 for k, r in enumerate(queue.ids.tolist()) if r in self.taken), default=0)
        left_s, tokens = self._least_left(self._saved_s(instance, cluster)), 0
        rows = chain(((again, again_s),), zip(queue.prompts, queue.prefill_s, strict=True))
        for k, (prompt, prefill_s) in enumerate(rows):
            left_s -= prefill_s
            if (k >= at_once and left_s < 0) or tokens >= budget:
                break
            tokens += int(prompt)
        if tokens > 0 or there.running[instance] == 0:
            return Plan(max(min(tokens, budget), 1), "prefill_first")
        return Plan(budget, "decode_only")

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        there = cluster.instances
        for i in np.flatnonzero((there.queued > 0) & (there.running > 0)):
            yield SetTokenBudget(int(i), int(there.token_budget[i]))  # asks for its plan again
        if self.changes_roles and cluster.now_s >= self.looked_s + self.look_s:
            yield from self._fleet(cluster)

    def _fleet(self, cluster: Cluster) -> Iterable[Action]:
        """Start an instance, or stop one, by what became of the arrivals since the last look."""
        now_s, there = cluster.now_s, cluster.instances
        if self.untaken > 0:
            self.tight_s = now_s
        off, is_tight = np.flatnonzero(there.next_role == OFF), self.untaken > self.refused * self.arrived
        self.looked_s, self.arrived, self.untaken = now_s, 0, 0
        if there.changing().any():
            return
        if is_tight and len(off):
            yield SetRole(int(off[0]), "mixed")
        elif now_s >= self.tight_s + self.calm_s and len(cluster.prefill) > 1:
            self.macro.update(cluster.prefill.ids)
            self.tight_s = now_s  # the next one goes after as long a time
            yield SetRole(self.macro.spare(), "off")
