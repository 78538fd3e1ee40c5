"""A family of random runs in which requests hold KV while each waits for the other's room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.engine.durations.speculation import Speculation
from framework.engine.kv.prefix_tiers import PrefixStores
from framework.load import Open
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.broad_families import with_pools
from tests.helpers.drawing import Draw
from tests.helpers.scenarios import RowTiming, Scenario, prefixes, scenarios


def crossing(draw: Draw) -> Scenario:
    """Prompts are computed on one instance and decode on another, in memory for two or three of them."""
    scenario = scenarios(draw)
    tokens = draw.one([48, 64, 96])
    count, size = draw.integer(10, 24), draw.one([1, 2, 4, 8])
    prompts = draw.integers(tokens // 5, tokens // 2, count)
    outputs = draw.integers(2, tokens // 4, count)
    arrival_s = draw.dyadic(1, 20, -9) * np.cumsum([draw.one([0, 0, 0, 0, 1]) for _ in range(count)])
    families = draw.integer(1, 3)
    ids = [
        [1000 * (k % families) + j if j < shared else 100_000 + 100 * k + j for j in range(-(-prompt // size))]
        for k, prompt in enumerate(prompts)
        for shared in [draw.integer(0, 6)]
    ]
    names = prefixes(ids, size) if draw.chance(0.5) else {}
    pulls = draw.chance(0.25)
    engine = replace(
        scenario.engine,
        transfers="pulled" if pulls else "sent",
        speculation=Speculation() if pulls else scenario.engine.speculation,
        block_tokens=draw.one([b for b in (1, 2, 4, 8) if size % b == 0]),
        kv_tokens=tokens,
        max_batch=draw.one([2, 12, 12, 12]),
        token_budget=draw.one([16, 64, 64]),
        watermark=draw.one([0.0, 0.0, 0.0625]),
        prefix_cache=bool(names),
        prefix_unit=draw.one(["trace", "engine"]),
        prefix_stores=PrefixStores(),
        preemption=draw.one(["recompute", "swap"]),
        layerwise_tokens=None,
    )
    rules = replace(
        scenario.rules,
        route_prefill=draw.one(["turn", "turn", "hash"]),
        route_decode=draw.one(["next", "next", "hash"]),
        split_at=draw.one(["", "", "prompt", "output", "both"]),
        batching=draw.one(["", "", "", "", "budget", "mode"]),
        admit="",
        roles=draw.one([0, 0, 1]) if scenario.rules.tick_s else 0,
        moves=draw.one([0, 1]) if scenario.rules.tick_s else 0,
    )
    pools = [
        replace(
            pool,
            role="mixed" if draw.chance(0.85) else pool.role,
            instances=draw.one([1, 2] if len(scenario.cluster.pools) > 1 else [2, 2, 3]),
            reserve_tokens=draw.one([None, None, None, tokens // 2]),
            token_budget=None,
            max_batch=None,
        )
        for pool in scenario.cluster.pools[:2]
    ]
    timing = scenario.timing
    if draw.chance(0.4):  # steps that end together
        timing = RowTiming(dict.fromkeys(timing.rows, StepRow(base_s=2.0**-6)))
    workload = Workload(arrival_s, np.array(prompts), np.array(outputs), **names)
    model = replace(scenario.model, max_context=1000)
    return replace(
        scenario,
        workload=workload,
        model=model,
        timing=timing,
        engine=engine,
        cluster=with_pools(scenario, pools),
        load=Open(),
        rules=rules,
    )
