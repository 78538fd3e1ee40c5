"""Configurations with one planted bottleneck each, and the cause and the settings by which it is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from omegaconf import DictConfig

from framework.diagnosis.trials import Trials
from framework.objective.goodput import Goodput
from framework.run.compose import compose_on
from framework.run.job import flattened
from framework.run.trying import tried
from framework.workload import Workload
from tests.helpers.composing import configured

_AFFINE = (
    *("timing=affine", "timing.base_s=0.01", "timing.per_prefill_token_s=2e-5", "timing.prefill_quadratic_s=0"),
    *("timing.per_sequence_s=1e-5", "timing.per_context_token_s=4e-8", "server=none", "predictor=none"),
)


_ROOFLINE = ("timing=roofline", "server=none", "predictor=none")  # which knows GPUs that share the work
_KERNELS = ("timing=measured", "timing.calibrated=false", "gpu=h100", "server=none", "predictor=none")
_BLOCK = 16  # tokens of a block of prompts


@dataclass(frozen=True)
class Plant:
    """`cause` is planted in the configuration of `arguments`; one of the remedies whose arguments begin so fixes it."""

    cause: str
    remedy: str
    arguments: tuple[str, ...]
    workload: Workload
    timing: tuple[str, ...] = _AFFINE

    def config(self) -> DictConfig:
        return configured(*self.arguments[:1], *self.timing, *self.arguments[1:])

    def trials(self) -> Trials:
        config = self.config()
        experiment = compose_on(config, self.workload)
        return tried(config, flattened(config), experiment, Goodput().measure(experiment))


def steady(count: int, rate: float, prompt: int, output: int) -> Workload:
    """Requests of one size, evenly spaced."""
    return Workload(np.arange(count) / rate, np.full(count, prompt), np.full(count, output))


def in_turn(count: int, rate: float, groups: int, prompt: int, output: int) -> Workload:
    """Steady requests whose prompts are those of `groups` in turn, each the same from its second time on."""
    blocks = prompt // _BLOCK
    spans = np.arange(count)[:, None] % groups * blocks + np.array([0, blocks])
    known = {"hash_ids": np.arange(groups * blocks), "hash_spans": spans, "hash_block_tokens": _BLOCK}
    return replace(steady(count, rate, prompt, output), **known)


def in_loops(count: int, every_s: float, calls: int, prompt: int, output: int) -> Workload:
    """Loops of agents, one begun `every_s`: a call follows a tool of 2 s, and its prompt begins as the one before."""
    blocks = prompt // _BLOCK
    loop, turn = (one.ravel() for one in np.divmod(np.arange(count * calls), calls))
    order = np.argsort(every_s * loop + 2.0 * turn, kind="stable")
    rows, loop, turn = np.argsort(order), loop[order], turn[order]
    begin = loop * (blocks + calls)
    own = steady(count * calls, 1.0, prompt, output)
    return replace(
        own,
        arrival_s=every_s * loop + 2.0 * turn,
        input_tokens=_BLOCK * (blocks + turn),
        previous=np.where(turn > 0, rows[np.maximum(loop * calls + turn - 1, 0)], -1),
        think_s=np.where(turn > 0, 2.0, 0.0),
        session_id=loop,
        turn=turn,
        hash_ids=np.arange(count * (blocks + calls)),
        hash_spans=np.stack([begin, begin + blocks + turn], axis=1),
        hash_block_tokens=_BLOCK,
    )


def every_fourth(count: int, rate: float, small: tuple[int, int], large: tuple[int, int]) -> Workload:
    """Every fourth request is a large one, of the class `batch`; the others are `interactive`."""
    sizes = np.array([large if number % 4 == 3 else small for number in range(count)])
    classes = tuple("batch" if number % 4 == 3 else "interactive" for number in range(count))
    return Workload(np.arange(count) / rate, sizes[:, 0].copy(), sizes[:, 1].copy(), slo_class=classes)


def uneven(workload: Workload, seed: int) -> Workload:
    """About the same requests, as Poisson arrivals, of log-normal sizes about their own."""
    draw, count = np.random.default_rng(seed), len(workload)
    arrival_s = np.cumsum(draw.exponential(float(workload.arrival_s[-1]) / count, count))
    prompts = np.maximum(workload.input_tokens * draw.lognormal(-0.08, 0.4, count), 16).astype(np.int64)
    outputs = np.maximum(workload.output_tokens * draw.lognormal(-0.03, 0.25, count), 2).astype(np.int64)
    return replace(workload, arrival_s=arrival_s, input_tokens=prompts, output_tokens=outputs)


PLANTS = {
    "too few prefill instances": Plant(
        "prefill",
        "cluster.prefill=",
        ("policy=distserve", "cluster.prefill=1", "cluster.decode=2"),
        steady(300, 15.0, 5000, 20),
    ),
    "small KV memory": Plant(
        "memory",
        "engine.kv_",
        ("policy=chunked", "cluster.instances=1", "engine.kv_tokens=5000"),
        steady(300, 8.0, 400, 200),
    ),
    "slow link": Plant(
        "network",
        "cluster.link_bandwidth_bytes_s=null",
        ("policy=distserve", "cluster.prefill=1", "cluster.decode=1", "cluster.link_bandwidth_bytes_s=2e8"),
        steady(200, 4.0, 1000, 20),
    ),
    "long prompts between decodes": Plant(
        "interference",
        "engine.token_budget=",
        ("policy=chunked", "cluster.instances=1", "engine.token_budget=2048", "slo.tbt_p99_s=0.03"),
        every_fourth(300, 4.0, (200, 60), (20_000, 60)),
    ),
    "one class starves another": Plant(
        "order",
        "policy.order=",
        (
            *("policy=chunked", "cluster.instances=1", "slo.tpot_s=1"),
            "slo.classes={interactive:{ttft_s:1.0},batch:{ttft_s:60}}",
        ),
        every_fourth(300, 8.0, (500, 20), (20_000, 20)),
    ),
    "a router that ignores load": Plant(
        "routing",
        "policy.routing=least_queued",
        ("policy=chunked", "cluster.instances=4", "policy.routing=round_robin"),
        every_fourth(400, 20.0, (500, 20), (16_000, 20)),
    ),
    "a tick too slow": Plant(
        "ticks",
        "policy.period_s=",
        ("policy=arrow", "cluster.prefill=1", "cluster.decode=3", "policy.period_s=60"),
        steady(600, 14.0, 5000, 20),
    ),
    "cold start of spares": Plant(
        "starts",
        "cluster.prefill=",
        (
            *("policy=dynamo", "policy.planner=load", "policy.interval_s=1", "policy.queue=1000"),
            *("cluster.prefill=1", "cluster.decode=1", "cluster.spare=2", "engine.start.warm_up_s=120"),
        ),
        steady(200, 15.0, 5000, 20),
    ),
    "one of two instances down": Plant(
        "failures",
        "cluster.instances=",
        (
            *("policy=chunked", "cluster.instances=2", "engine/faults=crash"),
            "engine.faults.crashes=[{instance: 0, at_s: 2.0, down_s: 8.0}]",
        ),
        steady(720, 60.0, 1000, 20),
    ),
    "drafts never right": Plant(
        "drafting",
        "engine.speculation=none",
        (
            *("policy=chunked", "cluster.instances=1", "engine/speculation=draft", "engine.speculation.depth=8"),
            *("engine.speculation.acceptance=0", "engine.speculation.draft_cost=0.1", "slo.tpot_s=0.016"),
        ),
        steady(200, 4.0, 200, 100),
    ),
    "a host that decodes wait for": Plant(
        "host",
        "engine.asynchronous=true",
        ("policy=chunked", "cluster.instances=1", "server.host_s=0.02", "slo.tpot_s=0.025"),
        steady(200, 4.0, 200, 100),
        _KERNELS,
    ),
    "uneven ranks": Plant(
        "ranks",
        "cluster.rank_choice=",
        ("policy=chunked", "cluster.instances=1", "cluster.dp=4", "cluster.rank_choice=round_robin"),
        every_fourth(400, 16.0, (200, 20), (8000, 20)),
        _ROOFLINE,
    ),
    "prompts too long for one GPU": Plant(
        "prefill",
        "cluster.prefill=1 cluster.prefill_tp=2",
        ("policy=distserve", "cluster.prefill=2", "cluster.decode=1", "slo.ttft_s=0.15"),
        steady(100, 1.0, 8000, 20),
        _ROOFLINE,
    ),
    "prefixes that GPU memory drops": Plant(
        "memory",
        "engine.prefix_stores=dram",
        ("policy=chunked", "cluster.instances=1", "engine.kv_tokens=30000", "engine.prefix_cache=true"),
        in_turn(300, 16.0, 30, 4000, 20),
    ),
    "tools outlast the KV of their agents": Plant(
        "eviction",
        "engine.prefix_stores=dram",
        ("policy=chunked", "cluster.instances=1", "engine.kv_tokens=30000", "engine.prefix_cache=true"),
        in_loops(40, 0.1, 8, 4000, 20),
    ),
}
