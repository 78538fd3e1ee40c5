"""Virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

Each tenant has a counter of the service that its requests have received, in weighted tokens (arXiv 2401.00588,
Algorithm 2): the prompt when a request is first admitted, each output token when it is emitted. The tenant with the
smallest counter is admitted from next, its requests in the order of their arrival. A tenant that had nothing waiting
has its counter lifted, when it sends again, to the smallest of those that wait, or, if no tenant waits, to that of the
tenant that waited last. So no tenant saves up service while idle. Between two tenants that have requests waiting
throughout, the service differs by at most 2 max(input_weight x longest prompt, output_weight x tokens of a batch) on
one instance.

Simplified: a queue is put into this order before each step that may admit; VTC picks request by request. On several
instances counters are shared, but each instance admits from its own queue, for which the bound does not hold. The
tenant that waited last is known as of the last look. A preempted request is admitted first and not charged again. Steps
are those of chunked prefill; VTC's prototype prefills whole prompts.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Positive, checked
from framework.engine.setup.config import Batching
from framework.policy import Aggregated, Cluster, Request
from framework.policy.rules import PREFILL_RULES, rule

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Vtc(Aggregated):
    """The queue is read by the counters of tenants; `routing` spreads requests over instances."""

    batching_mode: ClassVar[Batching | None] = "decode_first"
    dynamic_keys = True

    @checked("policy.")
    def __init__(
        self, input_weight: Positive = 1.0, output_weight: Positive = 2.0, routing: str = "least_queued"
    ) -> None:
        self.input_weight, self.output_weight = input_weight, output_weight
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)

    def prepare(self, cluster: Cluster) -> None:
        tenants = int(cluster.requests.tenant.max(initial=0)) + 1
        self._most = int(cluster.instances.max_batch.max())
        self._settled = np.zeros(tenants)  # final charges: prompts, outputs of ended requests, lifts
        self._waiting = np.zeros(tenants, np.int64)  # requests that have not been admitted yet
        self._queue: set[int] = set()  # their ids
        self._live: set[int] = set()  # admitted requests whose outputs grow
        self._ended = 0
        self._last = 0  # the tenant whose request left the queue last

    def admit(self, request: Request, cluster: Cluster) -> bool:
        """Lift the counter of a tenant that returns (Algorithm 2, lines 7 to 14)."""
        counters, tenant = self._counters(cluster), request.tenant
        if self._waiting[tenant] == 0:
            others = np.flatnonzero(self._waiting)
            level = counters[others].min() if len(others) else counters[self._last]
            self._settled[tenant] += max(level - counters[tenant], 0.0)
        self._queue.add(request.id)
        self._waiting[tenant] += 1
        return True

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        """The rank of each request if all were admitted now, one after the other (lines 19 to 25).

        No step admits more than `max_batch`; later ones are in the order of their arrival.
        """
        counters, requests = self._counters(cluster), cluster.requests
        tenants, prompts = requests.tenant[queue], requests.input_tokens[queue]
        order = np.lexsort([queue, requests.arrival_s[queue]])
        keys = np.empty(len(queue))
        keys[order] = len(queue) + np.arange(len(queue))
        waiting = {int(tenant): list(order[tenants[order] == tenant][::-1]) for tenant in np.unique(tenants)}
        least = [(float(counters[tenant]), tenant) for tenant in waiting]
        heapify(least)
        for rank in range(min(len(queue), self._most)):
            counter, tenant = least[0]
            place = waiting[tenant].pop()
            keys[place] = rank
            if waiting[tenant]:
                heapreplace(least, (counter + self.input_weight * float(prompts[place]), tenant))
            else:
                heappop(least)
        return keys

    def _counters(self, cluster: Cluster) -> Floats:
        """The counter of each tenant as of now: its charges, and the emitted tokens of its running requests."""
        self._look(cluster)
        if not self._live:
            return self._settled
        live = np.fromiter(self._live, np.int64, len(self._live))
        emitted = self.output_weight * cluster.requests.generated(live)
        return self._settled + np.bincount(cluster.requests.tenant[live], emitted, len(self._settled))

    def _look(self, cluster: Cluster) -> None:
        """Charge requests admitted since the last look, and settle ended ones."""
        requests = cluster.requests
        if self._queue:
            queue = np.fromiter(self._queue, np.int64, len(self._queue))
            for r in np.sort(queue[requests.prefill_instance[queue] >= 0]).tolist():
                tenant = int(requests.tenant[r])
                self._settled[tenant] += self.input_weight * float(requests.input_tokens[r])
                self._waiting[tenant] -= 1
                self._last = tenant
                self._queue.discard(r)
                self._live.add(r)
        ended = cluster.finished(self._ended)
        self._ended += len(ended.ids)
        np.add.at(self._settled, requests.tenant[ended.ids], self.output_weight * ended.output_tokens)
        self._live.difference_update(ended.ids.tolist())
