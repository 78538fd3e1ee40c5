"""The family of random runs in which ranks are instances that step together."""

from __future__ import annotations

from dataclasses import replace

from framework.system.cluster import ClusterSpec, PoolSpec
from framework.system.model import Model, kv_capacity_tokens
from tests.helpers.block_families import early
from tests.helpers.broad_families import crowded, doubled, fetching, moving, pressed, severed, shared, sharing, staged
from tests.helpers.drawing import Draw
from tests.helpers.scenarios import Scenario, in_one_stream, scenarios, with_room, with_split

_BROAD = (scenarios, crowded, severed, sharing, shared, pressed, staged, doubled, fetching, moving, early)


def grouped(draw: Draw) -> Scenario:
    """What other families draw, of whose pools some or all are ranks that step together."""
    scenario = draw.one(_BROAD)(draw)
    mostly = draw.one([0.5, 1.0])
    specs = [replace(pool, batching=in_one_stream(pool.batching)) for pool in scenario.cluster.pools]
    chosen = [pool.role != "off" and (k == 0 or draw.chance(mostly)) for k, pool in enumerate(specs)]
    pools = [
        _of_ranks(pool, scenario.model, draw.one([2, 2, 4]), draw.one([1, 1, 2])) if is_chosen else pool
        for pool, is_chosen in zip(specs, chosen, strict=True)
    ]
    engine = replace(scenario.engine, batching=in_one_stream(scenario.engine.batching))
    return replace(scenario, cluster=ClusterSpec(tuple(pools), scenario.cluster.link), engine=engine)


def _of_ranks(pool: PoolSpec, model: Model, ranks: int, groups: int) -> PoolSpec:
    """So many groups of ranks, each of which has the room for KV that an instance of the pool has."""
    tokens = kv_capacity_tokens(model, pool.gpu, pool.parallelism, 1.0)
    split = with_split(replace(pool, rank_choice="even"), model, pp=1, dp=ranks)
    whole = with_room(split, model, tokens * ranks)
    return replace(whole, rank_choice="routed", instances=ranks * groups)
