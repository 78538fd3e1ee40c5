"""Tokens at the pace of readers, with preemption (Andes: Liu et al., arXiv 2404.16283).

A reader reads the available text at `reading_tokens_s`. Quality of experience (QoE) is the area under the curve of
tokens read over time, divided by the same area for a reader whose first token comes after `ttft_s` and who never waits.
The gain of a request is the increase of its QoE, `horizon_s` from now, if it is served rather than waits. Its priority
is the gain over its KV tokens. If requests wait for room or seats, those of lower priority step aside, and their KV
goes to host memory. One whose reader has much left to read gains nothing, and makes room for one whose reader waits.
There are at most `preemptions` a request on average.

Simplified: requests are taken in the order of their priority as long as there is room (the paper's greedy packing). The
batch is as large as memory and seats allow, while Andes searches for the best size. Served requests get tokens at the
pace of the present step. The whole area is that up to the horizon, since the length of an answer is not known. A
request back from host memory is not preempted before it runs. Steps are those of `continuous`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import NotNegative, Positive, checked
from framework.compiler.decorators import compiled
from framework.engine.setup.config import Batching
from framework.policy import Action, Aggregated, Cluster, Preempt, Resume, SetMaxBatch
from framework.policy.rules import PREFILL_RULES, rule
from policies._stepping_aside import coming_back, stepping_aside

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Andes(Aggregated):
    """Gains are computed whenever something changes on an instance, and every `period_s` while requests wait there."""

    batching_mode: ClassVar[Batching | None] = "prefill_first"
    dynamic_keys = True

    @checked("policy.")
    def __init__(
        self,
        ttft_s: Positive = 1.0,
        reading_tokens_s: Positive = 5.3,
        horizon_s: Positive = 20.0,
        preemptions: NotNegative = 1.0,
        period_s: Positive = 0.5,
        routing: str = "least_queued",
    ) -> None:
        self.reading_tokens_s = reading_tokens_s
        self._settings = np.array([ttft_s, reading_tokens_s, horizon_s])
        self.preemptions, self.tick_s = preemptions, period_s
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)

    def prepare(self, cluster: Cluster) -> None:
        count = len(cluster.requests.input_tokens)
        self._read = np.zeros(count)  # tokens that each reader had read at the last look
        self._seen_s = np.full(count, np.nan)  # time of that look
        self._pace = np.full(len(cluster.instances), self.reading_tokens_s)  # tokens/s that a decode gets
        self._preempted = self._came = 0
        self._is_known = np.zeros(count, np.bool_)  # those that came

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        return -self._priority(queue, cluster)

    def decide(self, instance: int, cluster: Cluster) -> list[Action]:
        """Decide by priority which waiting and suspended requests replace running ones."""
        there = cluster.instances
        queued, running, aside = cluster.queued(instance), cluster.decoding(instance), cluster.suspended_on(instance)
        waiting = np.concatenate([queued, aside])
        new = queued[~self._is_known[queued]]
        self._is_known[new] = True
        self._came += len(new)
        if len(waiting) == 0:
            return []
        if len(running):
            self._pace[instance] = 1.0 / there.step_s()[instance]
        priority = self._priority(np.concatenate([waiting, running]), cluster)
        mine, theirs = priority[: len(waiting)], priority[len(waiting) :]
        first, last = np.lexsort([waiting, -mine]), np.lexsort([-running, theirs])
        allowed = max(int(self.preemptions * self._came) - self._preempted, 0)
        ranked, last = waiting[first], last[:allowed]
        leaving = stepping_aside(cluster, instance, ranked, running[last], (-mine[first], -theirs[last]))
        self._preempted += len(leaving)
        actions: list[Action] = [Preempt(r, "swap") for r in leaving]
        return actions + [Resume(r) for r in coming_back(cluster, instance, ranked, first >= len(queued), leaving)]

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        """Let each instance with waiting requests be asked again when its step ends."""
        there = cluster.instances
        busy = set(np.flatnonzero(there.queued).tolist()) | set(cluster.requests.instance[cluster.suspended].tolist())
        return [SetMaxBatch(i, int(there.max_batch[i])) for i in cluster.prefill.ids.tolist() if i in busy]

    def _priority(self, ids: Integers, cluster: Cluster) -> Floats:
        """The gain of each request if its instance serves it from now on, over the KV tokens that it takes."""
        requests, gains = cluster.requests, np.empty(len(ids))
        columns = requests.arrival_s, requests.input_tokens, requests.instance
        readers = self._read, self._seen_s, self._pace
        _gains(ids, requests.generated(ids), columns, readers, cluster.now_s, self._settings, gains)
        return gains


@compiled
def _gains(
    ids: Integers,
    emitted: Integers,
    columns: tuple[Floats, Integers, Integers],
    readers: tuple[Floats, Floats, Floats],
    now_s: float,
    settings: Floats,
    gains: Floats,
) -> None:
    """Advance the readers to the present, and write the gain of each request over its tokens.

    `columns`: arrivals, prompts and instances of all requests. `readers`: tokens read and the time of the last look of
    each request, tokens/s on each instance. `settings`: `ttft_s`, `reading_tokens_s` and `horizon_s`.
    """
    arrival_s, input_tokens, instance = columns
    read, seen_s, pace = readers
    ttft_s, reading, horizon_s = settings[0], settings[1], settings[2]
    for k in range(len(ids)):
        r = ids[k]
        since_s = 0.0 if np.isnan(seen_s[r]) else now_s - seen_s[r]
        read[r] = min(read[r] + reading * since_s, float(emitted[k]))
        seen_s[r] = now_s
        left = emitted[k] - read[r]  # tokens that have come and are not read
        served = _area(left, pace[instance[r]], reading, horizon_s)
        waits = _area(left, 0.0, reading, horizon_s)
        reads_s = max(now_s + horizon_s - arrival_s[r] - ttft_s, 1e-9)
        whole = reading * reads_s**2 / 2
        gains[k] = (served - waits) / whole / (input_tokens[r] + emitted[k])


@compiled
def _area(left: float, pace: float, reading: float, horizon_s: float) -> float:
    """Tokens x seconds that are read within the horizon, if `left` tokens are there and more come at `pace`."""
    ahead_s = min(left / max(reading - pace, 1e-9), horizon_s) if pace < reading else horizon_s
    rest_s = horizon_s - ahead_s
    return reading * ahead_s**2 / 2 + reading * ahead_s * rest_s + min(pace, reading) * rest_s**2 / 2
