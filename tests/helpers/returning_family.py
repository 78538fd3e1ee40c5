"""A family of random runs in which requests are preempted where they decode, and computed again there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.engine.kv.kv_compression import KvFormat
from framework.system.cluster import ClusterSpec, Role
from tests.helpers.broad_families import bursts
from tests.helpers.drawing import Draw
from tests.helpers.scenarios import Scenario, scenarios, with_room, with_split


def returning(draw: Draw) -> Scenario:
    """Instances that decode have too little memory, and more is sent there: whoever is preempted waits before it."""
    scenario = scenarios(draw)
    pool = replace(
        scenario.cluster.pools[0],
        reserve_tokens=None,
        token_budget=draw.one([None, None, 12]),
        max_batch=None,
        batching=None,
    )
    if draw.chance(0.5):
        pool = with_split(pool, scenario.model, pp=1, dp=1)
    layouts: tuple[tuple[Role, ...], ...] = (
        *(("prefill", "decode"), ("prefill", "decode"), ("prefill", "decode", "decode")),
        *(("prefill", "decode", "mixed"), ("mixed", "decode"), ("mixed", "prefill")),
    )
    pools = [
        replace(
            with_room(pool, scenario.model, 160 if role == "prefill" else draw.one([72, 88, 104])),
            name=f"{role} {number}",
            role=role,
            instances=draw.integer(1, 2),
        )
        for number, role in enumerate(draw.one(layouts))
    ]
    engine = replace(
        scenario.engine,
        block_tokens=draw.one([1, 2, 4]),
        kv_tokens=None,
        kv_compression=KvFormat(),
        preemption="recompute",
        recompute=draw.one(["there", "there", "there", "routed"]),
        watermark=draw.one([0.0, 0.0, 0.0625]),
        max_batch=draw.one([3, 6, 12]),
        batching=draw.one(["decode_first", "unified", "unified", scenario.engine.batching]),
        admission_wait_steps=draw.one([0, 0, 2]),
        role_change_s=draw.one([0.0, draw.dyadic(1, 40, -7)]),
    )
    workload = bursts(draw, 30, 40)
    if scenario.workload.has_prefixes:
        workload = replace(scenario.workload, output_tokens=np.array(draw.integers(8, 40, len(scenario.workload))))
        engine = replace(engine, block_tokens=scenario.engine.block_tokens)
    rules = replace(
        scenario.rules,
        batching=draw.one(["", "", "", "budget", "mode"]),
        admit="",
        split_at=draw.one(["", "", "", "output"]),
        tick_s=draw.dyadic(3, 24, -7),
        moves=draw.one([0, 0, 3]),
        roles=draw.one([0, 1, 1, 2]),
    )
    link = replace(scenario.cluster.link, bandwidth_bytes_s=2.0 ** draw.integer(9, 13))
    pools = [replace(one, link_bytes_s=None) for one in pools]
    return replace(scenario, workload=workload, engine=engine, cluster=ClusterSpec(tuple(pools), link), rules=rules)
