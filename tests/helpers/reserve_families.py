"""Families of random runs in which admissions leave room for outputs, and prompts come before decodes in chunks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.engine.kv.output_reserve import OutputReserve
from tests.helpers.block_families import early
from tests.helpers.broad_families import bursts, crowded, pressed, with_pools
from tests.helpers.drawing import Draw
from tests.helpers.scenarios import Scenario, scenarios


def reserving(draw: Draw) -> Scenario:
    """Little memory, of which outputs to come have a share that follows what happens."""
    scenario = draw.one([scenarios, crowded, pressed, early])(draw)
    engine = replace(
        scenario.engine,
        batching=draw.one(["chunks_first", "chunks_first", "chunks_first", scenario.engine.batching]),
        output_reserve=OutputReserve() if draw.chance(0.1) else _reserves(draw),
        victim=draw.one(["fewest_tokens", "fewest_tokens", scenario.engine.victim]),
        requeue=draw.one(["first", "last", "last", "last"]),
        preemption=draw.one(["recompute", "recompute", scenario.engine.preemption]),
        asynchronous=draw.chance(0.5),
        token_budget=draw.one([8, 16, 32, scenario.engine.token_budget]),
    )
    pools = [
        replace(
            pool,
            batching=draw.one([None, None, "chunks_first"]),
            reserve_tokens=draw.one([None, None, None, pool.reserve_tokens]),
        )
        for pool in scenario.cluster.pools
    ]
    workload = scenario.workload
    if draw.chance(0.7):  # one after another, long enough for memory to run short
        workload = bursts(draw, draw.integer(8, 20), 44)
        workload = replace(workload, arrival_s=draw.one([1, 1, 1, 16]) * workload.arrival_s)  # idle between, at times
        engine = replace(engine, kv_tokens=draw.one([64, 64, 80]), max_batch=draw.integer(4, 12), watermark=0.0)
        pools = [replace(pool, instances=1, max_batch=None) for pool in pools]
    rules = replace(
        scenario.rules,
        batching=draw.one(["", "", scenario.rules.batching]),
        prioritize=draw.one(["", "", scenario.rules.prioritize]),
        admit="",
    )
    return replace(scenario, workload=workload, engine=engine, cluster=with_pools(scenario, pools), rules=rules)


def seated(draw: Draw) -> Scenario:
    """One synchronous instance with few seats, where some outputs are a single token, and some pools do not page."""
    scenario = scenarios(draw)
    workload = bursts(draw, draw.integer(4, 20), 20)
    single = np.array([draw.chance(0.4) for _ in range(len(workload))])
    workload = replace(workload, output_tokens=np.where(single, 1, workload.output_tokens))
    engine = replace(
        scenario.engine,
        batching="chunks_first",
        output_reserve=_reserves(draw),
        asynchronous=draw.chance(0.1),
        preemption="recompute",
        max_batch=draw.integer(2, 4),
        kv_tokens=draw.one([48, 64, 96]),
        token_budget=draw.one([8, 16, 32]),
        watermark=0.0,
    )
    reserve_tokens = draw.one([None, None, draw.integer(24, 40)])
    pools = [
        replace(pool, instances=1, max_batch=None, batching=None, reserve_tokens=reserve_tokens)
        for pool in scenario.cluster.pools
    ]
    rules = replace(scenario.rules, batching="", prioritize="", admit="")
    return replace(scenario, workload=workload, engine=engine, cluster=with_pools(scenario, pools), rules=rules)


def _reserves(draw: Draw) -> OutputReserve:
    """Ratios that are multiples of 1/16; most are less than what is to come, so that memory runs short after all."""
    ratio = draw.one([1, 1, 2, 4, 8, 16]) / 16
    return OutputReserve(
        ratio=ratio,
        least_ratio=draw.one([0.0, ratio / 2, ratio]),
        decay_steps=draw.one([1, 4, 16, 64]),
        steps_ahead=draw.one([0, 1, 4, 20]),
        declared_tokens=draw.one(["output", "output", "context", draw.integer(1, 60)]),
        most_tokens=draw.one([8, 24, 4096]),
    )
