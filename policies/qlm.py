"""Groups of requests in the order in which they are due (QLM: Patke et al., SoCC 2024, arXiv 2407.00047).

Requests of a class that arrive one after the other form a group, which is due when its first request is. An instance
pulls requests group by group. The wait of a request is estimated as the time to prefill the prompts ahead of it and,
where there is no room for it, the output tokens expected of requests that run or wait ahead of it, divided by the
tokens that the instance makes in a second. A prompt goes to the instance with the least wait. If a request would wait
until after it is due, and would not be late if it began now, running requests of groups that are due later are evicted
for it, and their KV goes to host memory. Every period a request that would be late moves to the queue of an instance
where it would not.

Simplified: there is one model, so none is swapped. Groups are put into queues as they form, in the order in which they
are due; QLM solves a linear programme for the order, which with one model and limits that can be kept has this solution
(Jackson's rule). Expected outputs are those of `predictor=`, and of no length without one; QLM fits a distribution of
outputs to each group. Steps are those of `continuous`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, Positive, checked
from framework.compiler.decorators import compiled
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Preempt, Request, Requeue, Resume, SetMaxBatch
from framework.policy.view import Floats
from framework.timing.estimate import StepTimes, estimate_s
from policies._class_limits import limits_s
from policies._stepping_aside import blocks_of, coming_back, stepping_aside

Integers = NDArray[np.int64]
_CLOSE = 1e-9  # relative difference of two times below which the order of a sum could decide which is later


class Qlm(Aggregated):
    """Limits `ttft_s` of all requests, or of each class in the order of their names.

    A group has at most `group_requests`. Every `period_s` waits are estimated anew.
    """

    batching_mode: ClassVar[Batching | None] = "prefill_first"
    dynamic_keys = True

    @checked("policy.")
    def __init__(
        self,
        ttft_s: Positive | None = 2.0,
        classes_ttft_s: Sequence[float] | None = None,
        group_requests: Count = 32,
        period_s: Positive = 0.25,
    ) -> None:
        self._limits = limits_s("policy.classes_ttft_s", ttft_s, classes_ttft_s)
        self.group_requests, self.tick_s = group_requests, period_s

    def prepare(self, cluster: Cluster) -> None:
        classes = cluster.requests.slo_class
        self._limit_s = self._limits(classes)
        self._due_s = np.full(len(classes), np.nan)  # time at which the first token of each request is due
        self._key_s = np.full(len(classes), np.nan)  # that of the first request of its group
        self._open: dict[int, tuple[float, int]] = {}  # of each class the last group: when it is due, its requests

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        r = request.id
        if np.isnan(self._due_s[r]):
            self._join(r, request.slo_class, cluster.now_s)
        there, ids = cluster.instances, cluster.prefill.ids.tolist()
        requests = there.running + there.prefilling + there.queued
        return int(min(ids, key=lambda i: (self._wait_s(i, r, cluster), there.queued_tokens[i], requests[i], i)))

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        return np.nan_to_num(self._key_s[queue], posinf=1e12)

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Evict running requests for those that would be late, and let evicted ones come back."""
        queued, running = cluster.queued(instance), cluster.decoding(instance)
        waiting = np.concatenate([queued, cluster.suspended_on(instance)])
        if len(waiting) == 0:
            return []
        first = np.lexsort([waiting, self._key_s[waiting]])
        waiting = waiting[first]
        running = running[np.lexsort([-running, -self._key_s[running]])]
        late = self._need_room_now(instance, queued, cluster)
        late = late[np.lexsort([late, self._key_s[late]])]
        leaving = stepping_aside(cluster, instance, late, running, (self._key_s[late], self._key_s[running]))
        actions: list[Action] = [Preempt(r, "swap") for r in leaving]
        return actions + [Resume(r) for r in coming_back(cluster, instance, waiting, first >= len(queued), leaving)]

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        """Move what would be late, and let each instance where requests wait be asked again when its step ends."""
        there = cluster.instances
        busy = set(np.flatnonzero(there.queued).tolist()) | set(cluster.requests.instance[cluster.suspended].tolist())
        ready = cluster.prefill.ids.tolist()
        actions: list[Action] = []
        for i in ready:
            if i not in busy:
                continue
            actions.append(SetMaxBatch(i, int(there.max_batch[i])))
            for r in cluster.queued(i)[:1].tolist():
                best = min(ready, key=lambda other: self._wait_s(other, r, cluster))
                if self._is_late(i, r, cluster) and not self._is_late(best, r, cluster):
                    actions.append(Requeue(r, best))
        return actions

    def _join(self, r: int, kind: int, now_s: float) -> None:
        """Let a request that arrives now join the last group of its class, or begin another one."""
        self._due_s[r] = now_s + self._limit_s[r]
        key_s, count = self._open.get(kind, (0.0, self.group_requests))
        if count >= self.group_requests:
            key_s, count = float(self._due_s[r]), 0
        self._open[kind] = key_s, count + 1
        self._key_s[r] = key_s

    def _need_room_now(self, instance: int, queued: Integers, cluster: Cluster) -> Integers:
        """Those of a queue that would be late if they waited, and not if they began now."""
        prompts, due_s = cluster.requests.input_tokens[queued], self._due_s[queued]
        own_s = self._prefills_s(instance, prompts, cluster)
        able = np.flatnonzero(cluster.now_s + own_s <= due_s)
        if len(able) == 0:
            return queued[:0]
        keys_s, running = self._key_s[queued], int(cluster.instances.running[instance])
        order = np.argsort(keys_s, kind="stable")
        ahead = np.searchsorted(keys_s[order], keys_s[able], side="right") - 1  # how many are ahead of each
        waits_s = self._prefills_s(instance, np.cumsum(prompts[order])[ahead] - prompts[able], cluster)
        free, seats = self._room(instance, cluster)
        needed = np.cumsum(blocks_of(cluster, queued)[order])[ahead]
        waits = (free < needed) | (seats <= ahead) if running else np.zeros(len(able), np.bool_)
        if waits.any():
            chosen = able[waits]
            left = self._left(instance, queued, chosen, cluster)
            sums = left[:running].sum() + np.cumsum(left[running:][order])[ahead[waits]] - left[running:][chosen]
            waits_s[waits] += sums * cluster.instances.step_s()[instance] / running
        done_s = cluster.now_s + waits_s + own_s[able]
        late = done_s > due_s[able]
        for k in np.flatnonzero(waits & (np.abs(done_s - due_s[able]) <= _CLOSE * done_s)).tolist():
            late[k] = self._is_late(instance, int(queued[able[k]]), cluster)  # whatever the order of the sum
        return queued[able[late]]

    def _left(self, instance: int, queued: Integers, chosen: Integers, cluster: Cluster) -> Floats:
        """Output tokens expected of requests that run, then of those that wait: 0 where none of the `chosen` places in
        the queue is behind it.
        """
        keys_s, running = self._key_s[queued], cluster.decoding(instance)
        last_s = keys_s[chosen].max()
        ahead, last = keys_s <= last_s, chosen[keys_s[chosen] == last_s]
        if len(last) == 1:
            ahead[last] = False
        left = np.zeros(len(running) + len(queued))
        found = np.concatenate([np.ones(len(running), np.bool_), ahead])
        left[found] = self._expected(np.concatenate([running, queued[ahead]]), cluster)
        return left

    def _expected(self, ids: Integers, cluster: Cluster) -> Floats:
        """Output tokens expected of these requests, 0 without a predictor."""
        left = cluster.remaining_tokens(ids)
        left[np.isnan(left)] = 0.0
        return left

    def _is_late(self, instance: int, r: int, cluster: Cluster) -> bool:
        prefill_s = self._prefill_s(instance, int(cluster.requests.input_tokens[r]), cluster)
        return bool(cluster.now_s + self._wait_s(instance, r, cluster) + prefill_s > self._due_s[r])

    def _prefill_s(self, instance: int, tokens: int, cluster: Cluster) -> float:
        """Seconds to prefill so many tokens in steps of the token budget."""
        return float(self._prefills_s(instance, np.array([tokens]), cluster)[0])

    def _prefills_s(self, instance: int, tokens: Integers, cluster: Cluster) -> Floats:
        """The same for each of these numbers."""
        there, seconds = cluster.instances, np.empty(len(tokens))
        _in_steps(there.step_times, instance, int(there.token_budget[instance]), tokens, seconds)
        return seconds

    def _room(self, instance: int, cluster: Cluster) -> tuple[int, int]:
        """Blocks and seats that are free on the instance."""
        there = cluster.instances
        free = int(there.free_blocks[instance] + there.evictable_blocks[instance] - there.total_blocks[instance] // 100)
        return free, int(there.max_batch[instance] - there.running[instance] - there.prefilling[instance])

    def _wait_s(self, instance: int, r: int, cluster: Cluster) -> float:
        """Seconds until the request would have room and a seat on the instance, by the tokens ahead of it."""
        there, queued = cluster.instances, cluster.queued(instance)
        ahead = np.empty(len(queued), np.int64)
        count, tokens = _ahead_of(r, queued, self._key_s, cluster.requests.input_tokens, ahead)
        ahead = ahead[:count]
        free, seats = self._room(instance, cluster)
        prompts_s = self._prefill_s(instance, tokens, cluster)
        if there.running[instance] == 0:
            return prompts_s
        if seats > count and free >= int(blocks_of(cluster, np.concatenate([ahead, [r]])).sum()):
            return prompts_s
        running = cluster.decoding(instance)
        expected = self._expected(np.concatenate([running, ahead]), cluster)
        return prompts_s + float(expected.sum() * there.step_s()[instance] / len(running))


@compiled
def _ahead_of(r: int, queued: Integers, keys_s: Floats, input_tokens: Integers, ahead: Integers) -> tuple[int, int]:
    """Write the requests of a queue that are at least as urgent as r, without r; return how many, and their tokens."""
    count, tokens = 0, 0
    for other in queued:
        if keys_s[other] <= keys_s[r] and other != r:
            ahead[count] = other
            tokens += input_tokens[other]
            count += 1
    return count, tokens


@compiled
def _in_steps(times: StepTimes, i: int, budget: int, tokens: Integers, seconds: Floats) -> None:
    """Write the seconds to prefill each number of tokens in steps of `budget` tokens."""
    for k in range(len(tokens)):
        step = min(tokens[k], budget)
        seconds[k] = estimate_s(times, i, step, 0, 0) * tokens[k] / step if step > 0 else 0.0
