"""Session stickiness: calls of a session go to the instance that has its context, unless that one is overloaded.

The baseline of routers that know caches (llm-d's session affinity and load-aware scorers, vLLM's production stack
router with `--routing-logic session`): a session's first call goes to the least loaded instance, later ones follow it.
If the instance has `slack` times as many requests as the mean of all and at least `least` more, the call goes to the
least loaded one, and the session moves there. Steps are unified, as in `vllm_v1`.
"""

from __future__ import annotations

from typing import ClassVar

from framework.checks import Positive, Whole, checked
from framework.engine.setup.config import Batching
from framework.policy import Aggregated, Cluster, Request


class Sticky(Aggregated):
    """`slack` and `least` say when an instance is overloaded."""

    batching_mode: ClassVar[Batching | None] = "unified"

    @checked("policy.")
    def __init__(self, slack: Positive = 1.5, least: Whole = 4) -> None:
        self.slack, self.least = slack, least

    def prepare(self, cluster: Cluster) -> None:
        self._home: dict[int, int] = {}  # instance of each session

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        pool = cluster.prefill
        load = pool.queued + pool.prefilling + pool.running + pool.incoming
        chosen = pool.argmin(load)
        home = self._home.get(request.session)
        if home is not None and home in pool.ids:
            there, mean = load[list(pool.ids).index(home)], load.mean()
            if there <= max(self.slack * mean, mean + self.least):
                chosen = home
        if request.session >= 0:
            self._home[request.session] = chosen
        return chosen
