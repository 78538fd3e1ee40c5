"""A policy that cancels, for runs that are to have cancelled requests."""

from __future__ import annotations

from framework.policy import Cancel, Cluster
from policies.chunked import Chunked


class Cancelling(Chunked):
    """Cancels every fifth request once it waits."""

    def decide(self, instance: int, cluster: Cluster) -> list[Cancel]:
        return [Cancel(int(r), "fifth") for r in cluster.queued(instance) if r % 5 == 4]
