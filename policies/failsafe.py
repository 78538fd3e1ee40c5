"""Fail-soft tensor parallelism (FailSafe: Xu et al., arXiv 2511.14116): instances that lose GPUs go on with the others.

It returns within seconds on the GPUs that are left, and on all of them once they are repaired. Prompts go where the
product of new prefill tokens and requests is the least for each GPU that works, so an instance with fewer gets fewer.
KV of prompts is backed up in host memory as it is computed, and a request that a crash dropped loads it from there.

Simplified, by the abstract: cyclic KV placement and hybrid attention are `engine.faults.fewer.kv_split=even`, which
shares memory and attention evenly at no cost. FailSafe keeps the KV of healthy GPUs and restores only the lost shard;
here an instance returns empty, and the whole prompt is loaded over the PCIe links that are left. The tokens that a
request has emitted are computed again, since stores take them only at its end. A backup costs no time, and survives
the crash. FailSafe routes requests to the data-parallel ranks of one instance, here they are routed to instances.
Steps are unified, as in `vllm_v1`.
"""

from __future__ import annotations

from typing import ClassVar

from framework.checks import checked
from framework.engine.setup.config import Batching
from framework.policy import Aggregated, Cluster, Request


class FailSafe(Aggregated):
    """`grows`: an instance goes back to all its GPUs once they are repaired, which costs it its KV once more."""

    batching_mode: ClassVar[Batching | None] = "unified"

    @checked("policy.")
    def __init__(self, *, grows: bool = True) -> None:
        self.grows = grows

    def prepare(self, cluster: Cluster) -> None:
        self._gpus = cluster.instances.gpus.copy()

    def reconfigure(self, instance: int, cluster: Cluster) -> bool:
        return self.grows or bool(cluster.instances.gpus[instance] < self._gpus[instance])

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        pool = cluster.prefill
        new_tokens = pool.queued_tokens + request.input_tokens - pool.cached_tokens(request)
        requests = pool.queued + pool.prefilling + pool.running + pool.incoming + 1
        return pool.argmin(new_tokens * requests / pool.gpus.astype(float) ** 2)
