"""A family of random runs of models in which some layers have linear attention."""

from __future__ import annotations

from dataclasses import replace

from framework.engine.kv.prefix_tiers import PrefixStores
from framework.system.cluster import PoolSpec
from framework.system.model import LinearAttention, Model, kv_capacity_tokens
from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.broad_families import crowded, doubled, fetching, moving, pressed, severed, sharing, staged
from tests.helpers.crashing_family import crashing
from tests.helpers.decided_family import decided
from tests.helpers.drafting_family import drafting
from tests.helpers.drawing import Draw
from tests.helpers.impatient_family import impatient
from tests.helpers.lockstep_family import grouped
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import migrating, ranked, streams
from tests.helpers.reserve_families import reserving, seated
from tests.helpers.scaling_family import scaling
from tests.helpers.scenarios import Scenario, scenarios, with_room
from tests.helpers.stale_family import stale

_BROAD = (scenarios, crowded, severed, sharing, pressed, staged, doubled, fetching, moving, early)
_OTHERS = (*_BROAD, ahead, drafting, grouped, migrating, pulled, ranked, reserving, seated, streams)
_SELDOM = (crashing, decided, impatient, scaling, stale)


def stateful(draw: Draw) -> Scenario:
    """What another family draws, without shared prefixes, and with states in place of the KV of some layers.

    Instances have room for as many tokens as before, from which states now take a part.
    """
    return with_states(draw, draw.one((*_OTHERS, *2 * _SELDOM))(draw))


def with_states(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, without shared prefixes, of a model with states."""
    engine = replace(scenario.engine, prefix_cache=False, prefix_unit="trace", prefix_stores=PrefixStores())
    before = replace(scenario.model, windowed_layers=0, window=0)
    largest = max(pool.parallelism.tp for pool in scenario.cluster.pools)
    linear = LinearAttention(
        draw.integer(1, before.layers - 1),
        *draw.one([(1, largest), (largest, 2 * largest), (2 * largest, 2 * largest)]),
        key_dim=draw.one([1, 2, 4]),
        value_dim=draw.one([1, 2, 4, 8]),
        kernel=draw.one([1, 2, 4]),
    )
    model = replace(before, linear=linear)
    pools = tuple(_as_roomy(pool, scenario.model, model) for pool in scenario.cluster.pools)
    return replace(scenario, engine=engine, model=model, cluster=replace(scenario.cluster, pools=pools))


def _as_roomy(pool: PoolSpec, before: Model, model: Model) -> PoolSpec:
    return with_room(pool, model, kv_capacity_tokens(before, pool.gpu, pool.parallelism, 1.0))
