"""A family of random runs in which KV blocks are shared from their allocation on, generated ones too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.engine.kv.prefix_tiers import PrefixStores
from framework.workload import Workload
from tests.helpers.broad_families import bursts, with_pools
from tests.helpers.drawing import Draw
from tests.helpers.scenarios import Scenario, prefix_stores, prefixes, scenarios

_LONGEST = 100  # tokens of a prompt with what came before


def early(draw: Draw) -> Scenario:
    """Equal prompts of one instant, and turns that go on from what was said before, in little memory."""
    scenario, block_tokens = scenarios(draw), draw.one([1, 1, 2, 4, 8])
    engine = replace(
        scenario.engine,
        block_tokens=block_tokens,
        prefix_cache=True,
        prefix_unit="engine",
        prefix_stores=prefix_stores(draw, exact=True) if draw.chance(0.3) else PrefixStores(),
        preemption=draw.one(["recompute", "recompute", "swap"]),
        kv_tokens=draw.one([128, 144, 160, 240]),
        watermark=draw.one([0.0, 0.0, 0.0625]),
        token_budget=draw.one([16, 32, 64, scenario.engine.token_budget]),
        batching=draw.one(["decode_first", "unified", "unified", scenario.engine.batching]),
    )
    pools = [
        replace(pool, instances=1, reserve_tokens=None if draw.chance(0.85) else 128) for pool in scenario.cluster.pools
    ]
    workload = _conversations(draw, block_tokens * draw.one([1, 1, 2, 4]))
    if draw.chance(0.4):  # few at a time with long outputs: who gives way comes back soon
        workload = bursts(draw, 12, 48)
        engine = replace(engine, kv_tokens=80, max_batch=3, watermark=0.0, preemption="recompute", batching="unified")
    rules = replace(scenario.rules, route_prefill=draw.one(["", "hash", "cached", "turn"]), fetch_prefix="")
    return replace(scenario, workload=workload, engine=engine, cluster=with_pools(scenario, pools), rules=rules)


def _conversations(draw: Draw, size: int) -> Workload:
    """Up to twenty requests of few families, some of them later turns; `size` tokens in a block of the trace."""
    count, gap_s = draw.integer(8, 20), draw.dyadic(1, 40, draw.one([-9, -7, -5]))
    waits = np.array([draw.one([0, 0, 0, 0, 1, 2]) for _ in range(count)])
    prompts: list[int] = []
    names: list[list[int]] = []
    outputs, previous = draw.integers(1, draw.one([12, 40]), count), []
    for k in range(count):
        open_turns = [
            j for j in range(k) if j not in previous and prompts[j] + outputs[j] + 20 <= _LONGEST and draw.chance(0.6)
        ]
        before = draw.one(open_turns) if open_turns and draw.chance(0.6) else -1
        if before >= 0:
            prompts.append(prompts[before] + outputs[before] + draw.integer(0, 20))
            common = names[before][: prompts[before] // size]
        else:
            prompts.append(draw.integer(1, 50))
            family = draw.integer(1, 2)
            filled = -(-prompts[-1] // size)
            common = [100 * family + j for j in range(filled if draw.chance(0.6) else draw.integer(0, filled))]
        blocks = -(-prompts[-1] // size) if draw.chance(0.5) else prompts[-1] // size
        names.append((common + [1000 * (k + 1) + j for j in range(blocks)])[:blocks])
        previous.append(before)
    return Workload(
        gap_s * np.cumsum(waits),
        np.array(prompts),
        np.array(outputs),
        previous=np.array(previous),
        think_s=gap_s * np.array(draw.integers(0, 3, count)),
        **prefixes(names, size),
    )
