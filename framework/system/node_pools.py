"""Clusters of node pools: instances that differ in price, in GPU, or in the time until a machine is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Annotated, Any, Literal

from framework.checks import NotNegative, check_fields, checked, up_to
from framework.errors import InputError, shown
from framework.system.cluster import MOST_INSTANCES, ClusterSpec, Gpus, Network, PoolSpec, Spare, linked
from framework.system.gpu import Gpu
from framework.system.links import LinkSharing
from framework.system.parallelism import Parallelism


@dataclass(frozen=True, kw_only=True)
class NodePool:
    """Equal instances at one price, which a policy scales by the pool's name.

    `usd_per_hour`: of a GPU, None: the price that its kind states. `provisioning_s`: until a machine of the pool and
    its server run, in place of `engine.start.provisioning_s`, None: that. `gpu`, `tp`: None: the cluster's.
    `on_at_start`: as of `PoolSpec`. Raises InputError for a value out of range.
    """

    instances: Annotated[int, up_to(MOST_INSTANCES)]
    role: Literal["mixed", "prefill", "decode"] = "mixed"
    on_at_start: Spare | None = None
    usd_per_hour: NotNegative | None = None
    provisioning_s: NotNegative | None = None
    gpu: Gpu | None = None
    tp: Gpus | None = None

    def spec(self, name: str, gpu: Gpu, parallelism: Parallelism) -> PoolSpec:
        """The pool of that name; `gpu` and `parallelism` are those of pools without their own."""
        check_fields(self, f"cluster.pools.{name}.")
        own = self.gpu or gpu
        priced = own if self.usd_per_hour is None else replace(own, usd_per_hour=self.usd_per_hour)
        on_at_start, provisioning_s = self.on_at_start, self.provisioning_s
        parallelism = replace(parallelism, tp=self.tp or parallelism.tp)
        return PoolSpec(
            *(name, self.role, self.instances, priced, parallelism),
            on_at_start=on_at_start,
            provisioning_s=provisioning_s,
        )


@checked("cluster.")
def node_pools(
    pools: Mapping[str, Any],
    gpu: Gpu,
    tp: Gpus = 1,
    pp: Gpus = 1,
    ep: Gpus = 1,
    dp: Gpus = 1,
    link_bandwidth_bytes_s: float | None = None,
    link_latency_s: NotNegative = 0.0,
    link_sharing: LinkSharing = "fair",
    fabric_bandwidth_bytes_s: float | None = None,
) -> ClusterSpec:
    """Pools by name, in order: each is a NodePool, a mapping of its fields, or None, which is no pool; the rest is as
    for `mixed`.

    Raises InputError for a pool that is neither, and for what a cluster refuses.
    """
    if not isinstance(pools, Mapping) or not any(given is not None for given in pools.values()):
        raise InputError(f"cluster.pools must map names to pools, got {shown(pools)}")
    parallelism, named = Parallelism(tp, pp, ep, dp), {str(name): given for name, given in pools.items()}
    specs = tuple(_pool(name, given).spec(name, gpu, parallelism) for name, given in named.items() if given is not None)
    return linked(specs, Network(link_bandwidth_bytes_s, link_latency_s, link_sharing, fabric_bandwidth_bytes_s))


def _pool(name: str, given: object) -> NodePool:
    if isinstance(given, NodePool):
        return given
    known = {field.name: field.default is MISSING for field in fields(NodePool)}
    needed = {field for field, is_needed in known.items() if is_needed}
    if not isinstance(given, Mapping) or not needed <= set(given) <= set(known):
        raise InputError(
            f"cluster.pools.{name}: a pool is written {{instances: 2, usd_per_hour: 1.99}}, and may have"
            f" {', '.join(field for field in known if field not in ('instances', 'usd_per_hour'))};"
            f" got {shown(given)}"
        )
    return NodePool(**given)
