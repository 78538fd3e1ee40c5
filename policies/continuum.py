"""KV of a program stays for a time after each call, and programs are served in the order of their coming (Continuum).

CacheTTL (arXiv 2511.02230): when a call ends, its KV is pinned for a TTL, so that the next call of the program, which a
tool sets off, finds it. The TTL weighs what eviction would cost (the context is computed again, behind the queue that
there is) against the memory that others wait for meanwhile. Waiting calls are ordered by the arrival of their program.

Reconstructed, for the formula here is not the paper's: of the times g after which calls have come back so far, the TTL
is the g with the largest `P(g) * saved_s * (1 + waiting) - E[min(X, g)] * share * waiting`, in seconds of all requests.
X is the time until the next call comes, P(g) the probability that it comes within g. `saved_s` are the seconds to
prefill the context, for which the call and the `waiting` requests of the instance would wait; `share` is the part of
its KV memory that the context takes, for which they wait meanwhile. If no g gains anything the blocks stay by last use.
Routing is that of `sticky`: the paper has one engine.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, NotNegative, Positive, Whole, checked
from framework.policy import Cluster, Request, Retain
from policies.sticky import Sticky

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Continuum(Sticky):
    """`longest_s` bounds TTLs; `first_s` is the TTL until `samples` calls, the most that count, have come back."""

    @checked("policy.")
    def __init__(
        self,
        longest_s: Positive = 600.0,
        first_s: NotNegative = 2.0,
        samples: Count = 200,
        slack: Positive = 1.5,
        least: Whole = 4,
    ) -> None:
        super().__init__(slack, least)
        self.longest_s, self.first_s, self.samples = longest_s, first_s, samples

    def prepare(self, cluster: Cluster) -> None:
        super().prepare(cluster)
        self._begin_s: dict[int, float] = {}  # arrival of the first call of each program
        self._end_s: dict[int, float] = {}  # end of the last call of each program that has not come back
        self._gaps_s: deque[float] = deque(maxlen=self.samples)  # from the end of a call to the next one
        self._ends = self._returns = 0  # calls of programs that have ended, and that another has followed

    def admit(self, request: Request, cluster: Cluster) -> bool:
        if request.session >= 0:
            self._begin_s.setdefault(request.session, cluster.now_s)
            end_s = self._end_s.pop(request.session, None)
            if end_s is not None:
                self._gaps_s.append(cluster.now_s - end_s)
                self._returns += 1
        return True

    def prioritize(self, queue: Integers, cluster: Cluster) -> Floats:
        arrival_s, sessions = cluster.requests.arrival_s[queue], cluster.requests.session[queue]
        pairs = zip(sessions.tolist(), arrival_s.tolist(), strict=True)
        return np.array([self._begin_s.get(session, came_s) for session, came_s in pairs])

    def on_call_end(self, request: Request, cluster: Cluster) -> Retain | None:
        if request.session < 0:
            return None
        self._end_s[request.session] = cluster.now_s
        self._ends += 1
        if len(self._gaps_s) < self.samples:
            return Retain(self.first_s)
        return Retain(self._ttl_s(request, cluster))

    def _ttl_s(self, request: Request, cluster: Cluster) -> float:
        """The TTL that gains most, 0 if none gains anything."""
        there, i = cluster.instances, int(cluster.requests.instance[request.id])
        tokens = request.input_tokens + request.generated
        waiting = int(there.queued[i])
        saved_s = float(there.prefill_s(request, np.zeros(len(there), np.int64))[i])
        share = tokens / (int(there.total_blocks[i]) * cluster.block_tokens)
        gaps_s = np.sort(np.array(self._gaps_s))
        count = len(gaps_s)
        held_s = (np.cumsum(gaps_s) + gaps_s * np.arange(count - 1, -1, -1)) / count
        comes = self._returns / self._ends
        gain = comes * np.arange(1, count + 1) / count * saved_s * (1 + waiting)
        gain -= (comes * held_s + (1.0 - comes) * gaps_s) * share * waiting
        gain[gaps_s > self.longest_s] = 0.0
        best = int(gain.argmax())
        return float(gaps_s[best]) if gain[best] > 0.0 else 0.0
