"""A family of random runs whose tiers of prefixes are written by different rules, in chunks of different sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from tests.helpers.drawing import Draw
from tests.helpers.pinned_family import pinned
from tests.helpers.scenarios import Scenario, prefix_stores


def tiered(draw: Draw) -> Scenario:
    """What the family of pins draws, in as little memory, with one to three tiers."""
    return with_tiers(draw, pinned(draw))


def with_tiers(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, with one to three tiers of prefixes."""
    engine = scenario.engine
    size = engine.block_tokens if engine.shares_blocks else scenario.workload.hash_block_tokens
    stores = prefix_stores(draw, exact=True)
    tiers: dict[str, Tier] = {}
    above_is_whole = True  # no chunks in the tier above
    for name, tier in stores.tiers.items():
        rule: dict[str, Any] = {}
        if above_is_whole and draw.chance(0.4):
            rule = {"write": "back", "shared": False}
        else:
            rule["write_after"] = draw.one([1, 1, 2, 2, 3])
            rule["outputs"] = draw.one(["left", "written"])
            if draw.chance(0.4):
                rule["chunk_tokens"] = size * draw.integer(1, 3)
        tiers[name] = replace(tier, **rule)
        above_is_whole = tiers[name].chunk_tokens is None
    rules = replace(scenario.rules, on_call_end=draw.one(["", "", scenario.rules.on_call_end]))
    engine = replace(engine, prefix_stores=PrefixStores(tiers, stores.layer_wise))
    return replace(scenario, engine=engine, rules=rules)
