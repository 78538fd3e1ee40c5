"""A family of random runs whose policy scales pools, together with every other mechanism."""

from __future__ import annotations

from dataclasses import replace

from framework.system.cluster import PoolSpec
from framework.system.start_cost import StartCost
from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.broad_families import (
    crowded,
    doubled,
    fetching,
    moving,
    pressed,
    severed,
    sharing,
    staged,
    with_pools,
)
from tests.helpers.crashing_family import crashing
from tests.helpers.crossing_family import crossing
from tests.helpers.decided_family import decided
from tests.helpers.drafting_family import drafting
from tests.helpers.drawing import Draw
from tests.helpers.ending_family import ending
from tests.helpers.impatient_family import impatient
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import migrating, ranked, streams
from tests.helpers.reserve_families import reserving
from tests.helpers.returning_family import returning
from tests.helpers.scenarios import Scenario, scenarios

_OTHERS = (
    *(scenarios, scenarios, crowded, severed, sharing, pressed, staged, doubled, fetching, moving, early, ahead),
    *(crossing, drafting, ending, migrating, pulled, ranked, reserving, returning, streams, impatient, impatient),
    *(impatient, impatient, impatient, impatient, crashing, crashing, crashing, crashing, decided, decided, decided),
)


def scaling(draw: Draw) -> Scenario:
    """What another family draws, with more instances, some of which are off at the start."""
    return with_scaling(draw, draw.one(_OTHERS)(draw))


def with_scaling(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, with more instances in its pools, and a policy that scales them."""
    pools: list[PoolSpec] = []
    for pool in scenario.cluster.pools:
        own_s = draw.apart().some(True, 1, 40, -7) if draw.apart().chance(0.3) else None
        larger = _larger(draw, pool, 0 if pool.role in {other.role for other in pools} else 1)
        pools.append(replace(larger, provisioning_s=own_s))
    start = StartCost(
        draw.some(True, 1, 40, -7),
        draw.one([None, 2.0 ** draw.integer(14, 18)]),
        draw.some(True, 1, 40, -7),
        2.0 ** draw.apart().integer(14, 18) if draw.apart().chance(0.4) else None,
        draw.apart().some(True, 1, 20, -8) if draw.apart().chance(0.3) else 0.0,
        0.25 if draw.apart().chance(0.3) else 0.0,
    )
    engine = replace(scenario.engine, start=start, start_s=0.0)
    rules = replace(
        scenario.rules,
        scales=draw.one([1, 1, 2]),
        tick_s=scenario.rules.tick_s or draw.dyadic(3, 24, draw.one([-7, -6])),
        roles=draw.one([0, 0, scenario.rules.roles]),
    )
    return replace(scenario, engine=engine, cluster=with_pools(scenario, pools), rules=rules)


def _larger(draw: Draw, pool: PoolSpec, least: int) -> PoolSpec:
    """The pool with instances that are off at the start, `least` are on; ranks that step together stay on."""
    if pool.group > 1 or pool.role == "off":
        return pool
    more = draw.integer(0, 2)
    on = draw.one([None, draw.integer(least, pool.instances + more)])
    return replace(pool, instances=pool.instances + more, on_at_start=on)
