"""Cached contexts leave by how likely they are needed again, learnt by agent (CacheSage: arXiv 2605.27744).

A layer between agents and engine knows which agent makes a call, and which made the call before it in the program. It
learns how often a call of one agent is followed by one of each agent, within `horizon_s`. When a call ends, the chance
that its agent is called again in the program, within `steps` calls that each follow so soon, is the survival of its
context. What is less likely to be read again is evicted earlier; what is equally likely, by last use.

An agent is a tenant of the trace, for a trace has no other name of who makes a call. Calls of an agent that has made
fewer than `samples` count as those of all agents do.

Reconstructed from the abstract. Survival is put into sixteen ranks of equal width when a call ends, and does not fall
while a context is idle. A prompt that the calls of an agent share has the rank of the last of them. Contexts are not
prefetched: what was evicted is computed again or, with prefix stores, loaded once its call comes. Routing is that of
`sticky`.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from framework.checks import Count, Positive, Whole, checked
from framework.policy import Cluster, Request, Retain
from policies.sticky import Sticky

_RANKS = 16  # from -8 to 7


class CacheSage(Sticky):
    """`horizon_s`: the time in which a call must follow for memory to wait for it."""

    @checked("policy.")
    def __init__(
        self,
        horizon_s: Positive = 60.0,
        steps: Count = 4,
        samples: Count = 20,
        slack: Positive = 1.5,
        least: Whole = 4,
    ) -> None:
        super().__init__(slack, least)
        self.horizon_s, self.steps, self.samples = horizon_s, steps, samples

    def prepare(self, cluster: Cluster) -> None:
        super().prepare(cluster)
        self._last: dict[int, tuple[int, float]] = {}  # of each program: agent and end of its last call
        self._calls: Counter[int] = Counter()  # that have ended, of each agent
        self._next: defaultdict[int, Counter[int]] = defaultdict(Counter)  # calls that followed so soon, by agent

    def admit(self, request: Request, cluster: Cluster) -> bool:
        agent, end_s = self._last.pop(request.session, (-1, 0.0))
        if agent >= 0 and cluster.now_s - end_s <= self.horizon_s:
            self._next[agent][request.tenant] += 1
        return True

    def on_call_end(self, request: Request, cluster: Cluster) -> Retain:
        agent = request.tenant
        rank = int(_RANKS * self._survival(agent)) - _RANKS // 2
        self._calls[agent] += 1
        if request.session >= 0:
            self._last[request.session] = agent, cluster.now_s
        return Retain(rank=min(rank, _RANKS // 2 - 1))

    def _survival(self, agent: int) -> float:
        """The chance that a program whose last call was the agent's calls it again within `steps` calls."""
        if self._calls[agent] < self.samples:
            followed = sum(counter.total() for counter in self._next.values())
            return followed / max(1, self._calls.total())
        again, reached = 0.0, {agent: 1.0}
        for _ in range(self.steps):
            further: defaultdict[int, float] = defaultdict(float)
            for one, chance in reached.items():
                for other, count in self._next[one].items():
                    further[other] += chance * count / max(1, self._calls[one])
            again += further.pop(agent, 0.0)
            reached = further
        return again
