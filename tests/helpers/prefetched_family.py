"""A family of random runs whose policy prefetches the KV of calls that have ended, or moves it."""

from __future__ import annotations

from dataclasses import replace

from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from tests.helpers.drawing import Draw
from tests.helpers.pinned_family import pinned
from tests.helpers.scenarios import Scenario
from tests.helpers.tiered_family import tiered


def prefetched(draw: Draw) -> Scenario:
    """What the families of pins and tiers draw, in less memory, with longer loads, and a prefetch after many calls."""
    return with_prefetches(draw, draw.one((*5 * (tiered,), pinned))(draw))


def with_prefetches(draw: Draw, scenario: Scenario) -> Scenario:
    """A run of conversations with tiers, after whose calls KV is prefetched or moved."""
    engine, think_s = scenario.engine, scenario.workload.think_s
    assert think_s is not None
    room = draw.one([engine.kv_tokens, 112, 128, 128, 160])
    tiers = {name: _slower(draw, tier) for name, tier in engine.prefix_stores.tiers.items()}
    engine = replace(engine, kv_tokens=room, prefix_stores=PrefixStores(tiers, engine.prefix_stores.layer_wise))
    rules = replace(
        scenario.rules,
        on_call_end=draw.one(["any", "any", "all"]),
        ttl_exponent=draw.one([-6, -4, -3]),
        prefetches=draw.one([4, 7, 8]),
        prefetch=draw.one(["", "own", "own", "any"]),
        moves_kv=draw.apart().one([0, 4, 8, 8]),
    )
    workload = replace(scenario.workload, think_s=draw.one([1.0, 4.0, 16.0]) * think_s)
    return replace(scenario, workload=workload, engine=engine, rules=rules)


def _slower(draw: Draw, tier: Tier) -> Tier:
    """The tier with a latency that is at times much longer, and room for all at times."""
    return replace(
        tier,
        latency_s=tier.latency_s + draw.one([0.0, 2.0**-5, 2.0**-3, 2.0**-2]),
        capacity_tokens=draw.one([tier.capacity_tokens, None]) if tier.capacity_bytes is None else None,
    )
