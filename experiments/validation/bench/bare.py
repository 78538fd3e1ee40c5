"""A bare compiled loop for comparison: the engine's decisions, every iteration stepped, and nothing else.

It is what one would write to replay one trace through one policy: plain arrays, no hooks, no leaps, no log, no
preemption, no prefix cache, and copies that wait for each other (`link_sharing=fifo`). Every request ends when it ends
in the engine (tests/experiments/test_bench.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from experiments.validation.bench.disaggregated import replay_disaggregated
from experiments.validation.bench.mixed import replay_mixed
from experiments.validation.bench.parts import NO_ROOM, ROUTINGS, Floats, Options, allocate
from framework.engine.setup.config import EngineConfig
from framework.system.cluster import ClusterSpec
from framework.system.model import Model, kv_capacity_tokens
from framework.timing.affine import Affine
from framework.workload import Workload


class CannotStepError(Exception):
    """The run needs a feature that the bare loop leaves out."""


@dataclass(frozen=True)
class BareResult:
    """`end_s` (N,) is the time of each request's last token, `steps` counts iterations of all instances."""

    end_s: Floats
    steps: int


def step_every_iteration(
    workload: Workload,
    cluster: ClusterSpec,
    model: Model,
    timing: Affine,
    engine: EngineConfig,
    routing: str = "round_robin",
) -> BareResult:
    """Replay the workload: mixed instances decode first, disaggregated ones prefill whole prompts.

    `routing` of prompts is round_robin, or least_queued (fewest tokens that lack prefill; mixed instances only); decode
    instances are taken in turn. Raises CannotStepError if KV memory runs short during decoding.
    """
    pool = cluster.pools[0]
    tokens = engine.kv_tokens or kv_capacity_tokens(model, pool.gpu, pool.parallelism, engine.kv_fraction)
    blocks = tokens // engine.block_tokens
    options = Options(
        engine.token_budget,
        engine.max_batch,
        engine.block_tokens,
        math.floor(engine.watermark * blocks),
        timing.base_s,
        timing.per_prefill_token_s,
        timing.prefill_quadratic_s,
        timing.per_sequence_s,
        timing.per_context_token_s,
        float(model.kv_bytes_per_token),
        float(cluster.link_bytes_s.min()),
        cluster.link.latency_s,
    )
    longest = int((workload.input_tokens + workload.output_tokens).max())
    if longest > model.max_context or -(-(longest - 1) // options.block_tokens) > blocks - options.watermark:
        raise CannotStepError("a request is too long")
    arrays = allocate(workload, cluster.instances, blocks, options.max_batch, options.block_tokens)
    if pool.role == "mixed":
        steps = replay_mixed(arrays, options, ROUTINGS.index(routing))
    else:
        steps = replay_disaggregated(arrays, options, pool.instances)
    if steps == NO_ROOM:
        raise CannotStepError("KV memory runs short: it does not preempt")
    return BareResult(arrays.end_s, steps)
