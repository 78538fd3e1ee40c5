"""Prefill and decode units of data-parallel ranks (DeepSeek-AI, "DeepSeek-V3/R1 Inference System Overview", 2025).

From github.com/deepseek-ai/open-infra-index, day 6. A prefill unit shares experts over 32 GPUs and a decode unit over
144; each GPU attends to its own requests. Three balancers keep GPUs from waiting for each other: of prefills, in core
attention and input tokens; of decodes, in KV tokens and requests; of experts. This policy is the first two among units.
Among the ranks of a unit the cluster's `rank_choice` does it, for experts `timing.experts`.

Communication hides behind the other of two micro-batches (`timing.two_batches`). The deployment's decode also splits
attention in two, a pipeline of five stages, so that attention hides communication too; here it hides none. With the
step times of that deployment (EP144, 64 to 128 requests a GPU) matrices and experts alone take longer than the way to
the experts and back, so nothing of it is left to hide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, checked
from framework.engine.setup.config import Batching
from framework.policy import Disaggregated
from framework.policy.view import Cluster, Request
from framework.system.cluster import ChunkSchedule, ClusterSpec, PoolSpec

Floats = NDArray[np.float64]

_STAGES = 128  # most stages of a chunk schedule: beyond them the last chunk size holds


class DeepSeek(Disaggregated):
    """A request goes to the unit with the least maximum of two loads, each with the request and relative to the units'
    mean.

    A chunk has at most the core attention of a whole prompt of `attention_tokens` (None: any), so that the ranks of a
    prefill step have similar core attention. That is also the most tokens to which a rank adds chunks. This is a
    reconstruction.
    """

    batching_mode: ClassVar[Batching | None] = "decode_first"  # chunks, by each rank's share of the token budget

    @checked("policy.")
    def __init__(self, attention_tokens: Count | None = 4096) -> None:
        self.attention_tokens = attention_tokens
        self.attention: Floats = np.zeros(0)  # core attention that each unit still has to compute, in pairs of tokens
        self.pairs: dict[int, tuple[int, float]] = {}  # (unit, pairs) of requests that wait or prefill

    def layout(self, spec: ClusterSpec) -> ClusterSpec:
        spec = super().layout(spec)
        if self.attention_tokens is None:
            return spec
        schedule = _even_chunks(self.attention_tokens)
        pools = (
            replace(pool, chunk_schedule=schedule) if _is_ranked(pool) and pool.chunk_schedule is None else pool
            for pool in spec.pools
        )
        return replace(spec, pools=tuple(pools))

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        pool = cluster.prefill
        if len(self.attention) == 0:
            self.attention = np.zeros(len(cluster.instances))
        self._done(request)
        self.attention[cluster.instances.queued_tokens == 0] = 0.0
        tokens = request.input_tokens + request.generated
        cached = pool.cached_tokens(request).astype(np.float64)
        pairs = tokens**2 - cached**2
        unit = pool.argmin(_larger(pool.queued_tokens + tokens - cached, self.attention[pool.ids] + pairs))
        self.pairs[request.id] = unit, float(pairs[pool.ids == unit][0])
        self.attention[unit] += self.pairs[request.id][1]
        return unit

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        self._done(request)
        pool = cluster.decode
        kv = request.input_tokens + request.generated - 1
        tokens = pool.kv_tokens + pool.incoming_kv_tokens + kv
        return pool.argmin(_larger(tokens, pool.running + pool.incoming + 1))

    def _done(self, request: Request) -> None:
        """Remove the request from the queue of its instance."""
        unit, pairs = self.pairs.pop(request.id, (0, 0.0))
        self.attention[unit] = max(self.attention[unit] - pairs, 0.0)


def _is_ranked(pool: PoolSpec) -> bool:
    """Whether each rank of a prefill pool has its own chunks."""
    return pool.role == "prefill" and pool.has_ranks


def _even_chunks(tokens: int) -> ChunkSchedule:
    """The chunks, by the prefilled tokens of a prompt, with as much core attention as its first one, of `tokens`."""
    stage = max(tokens // 4, 1)
    done = stage * np.arange(_STAGES, dtype=np.float64)
    sizes = np.maximum(np.sqrt(done**2 + float(tokens) ** 2) - done, 1.0)
    return ChunkSchedule(tuple(int(size) for size in sizes), stage)


def _larger(first: NDArray[np.generic], second: NDArray[np.generic]) -> Floats:
    """The larger of two loads, each relative to its mean."""
    return np.asarray(np.maximum(first / (first.sum() / len(first)), second / (second.sum() / len(second))))
