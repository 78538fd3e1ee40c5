"""A family of random runs with asynchronous scheduling in little memory, where several requests end at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.helpers.block_families import early
from tests.helpers.broad_families import bursts, with_pools
from tests.helpers.drawing import Draw
from tests.helpers.scenarios import Scenario


def ending(draw: Draw) -> Scenario:
    """Outputs of few lengths, and blocks of few tokens: somebody lacks a block just when others end."""
    scenario = early(draw)
    workload, block_tokens, sizes = scenario.workload, scenario.engine.block_tokens, [128, 136]
    if draw.chance(0.8):  # short outputs with long ones: who came last ends while others grow
        workload, block_tokens, sizes = bursts(draw, 6, 24), draw.one([1, 1, 1, 2]), [40, 44, 48]
        lengths = [*draw.integers(2, 6, 2), *draw.integers(20, 30, 1)]
        workload = replace(workload, output_tokens=np.array([draw.one(lengths) for _ in range(len(workload))]))
    engine = replace(
        scenario.engine,
        asynchronous=True,
        block_tokens=block_tokens,
        kv_tokens=draw.one(sizes),
        max_batch=draw.integer(4, 16),
        admission_room=draw.one(["chunk", "chunk", "prompt"]),
        watermark=draw.one([0.0, 0.0, scenario.engine.watermark]),
        batching=draw.one(["unified", "unified", "unified", "unified", "decode_first"]),
        step_order=draw.one(["admission", "admission", "admission", "decodes_first"]),
        victim=draw.one(["latest", "latest", "least_urgent", "fewest_tokens"]),
    )
    pools = [replace(pool, instances=1, reserve_tokens=None, max_batch=None) for pool in scenario.cluster.pools]
    rules = replace(scenario.rules, batching="", prioritize=draw.one(["", "", "hash"]))
    return replace(scenario, workload=workload, engine=engine, cluster=with_pools(scenario, pools), rules=rules)
