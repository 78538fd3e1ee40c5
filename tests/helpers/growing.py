"""A policy that switches instances on, for runs that are to have a fleet that is scaled."""

from __future__ import annotations

from framework.policy import Cluster, Scale
from policies.chunked import Chunked


class Growing(Chunked):
    """Has all instances on from the first second on."""

    changes_roles = True
    tick_s = 1.0

    def on_tick(self, cluster: Cluster) -> list[Scale]:
        return [Scale("mixed", len(cluster.instances))]
