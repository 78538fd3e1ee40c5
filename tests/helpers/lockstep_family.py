"""The family of random runs in which ranks are instances that step together."""

from __future__ import annotations

from dataclasses import replace

from framework.system.cluster import ClusterSpec, PoolSpec
from framework.system.model import Model, kv_capacity_tokens
from tests.helpers.block_families import early
from tests.helpers.broad_families import crowded, doubled, fetching, moving, pressed, severed, shared, sharing, staged
from tests.helpers.drawing import Draw
from tests.helpers.rare_families import clocked, ranked
from tests.helpers.scenarios import Scenario, in_one_stream, scenarios, speculations, with_room, with_split

_BROAD = (
    *(scenarios, crowded, severed, sharing, shared, pressed, staged, doubled, fetching, moving, early),
    *(crowded, pressed, pressed, shared, fetching, fetching, clocked, clocked),
    *(ranked, ranked, ranked),
)


def grouped(draw: Draw) -> Scenario:
    """What other families draw, of whose pools some or all are ranks that step together, and others have ranks or
    stages of another kind.
    """
    return with_groups(draw, draw.one(_BROAD)(draw))


def with_groups(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, on ranks that step together."""
    model, pools = scenario.model, list[PoolSpec]()
    for k, drawn in enumerate(scenario.cluster.pools):
        pool = replace(drawn, batching=in_one_stream(drawn.batching))
        kind = "together" if k == 0 else draw.one(["together", "distinguished", "staged"])
        if pool.role != "off" and kind == "together":
            pool = _of_ranks(pool, model, draw.one([2, 2, 4]), draw.one([1, 1, 2]))
        elif kind == "distinguished":
            pool = replace(with_split(pool, model, pp=1, dp=2), rank_choice=draw.one(["kv", "requests"]))
        elif kind == "staged":
            pool = replace(with_split(pool, model, pp=2), rank_choice="even")
        pools.append(pool)
    engine = replace(scenario.engine, batching=in_one_stream(scenario.engine.batching))
    speculation = draw.one([engine.speculation, engine.speculation, speculations(draw)])
    engine = replace(engine, speculation=speculation)
    return replace(scenario, cluster=ClusterSpec(tuple(pools), scenario.cluster.link), engine=engine)


def _of_ranks(pool: PoolSpec, model: Model, ranks: int, groups: int) -> PoolSpec:
    """So many groups of ranks, each of which has the room for KV that an instance of the pool has."""
    tokens = kv_capacity_tokens(model, pool.gpu, pool.parallelism, 1.0)
    split = with_split(replace(pool, rank_choice="even"), model, pp=1, dp=ranks)
    whole = with_room(split, model, tokens * ranks)
    return replace(whole, rank_choice="routed", instances=ranks * groups)
