"""A family of random runs in which many mechanisms are at work together, whatever goes with what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from framework.engine.kv.prefix_tiers import Tier
from framework.load import Open
from framework.system.cluster import RankChoice
from framework.system.faults import FaultSchedule
from framework.workload import Workload
from tests.helpers.broad_families import with_pools
from tests.helpers.crashing_family import with_faults
from tests.helpers.decided_family import with_decisions
from tests.helpers.drawing import Draw
from tests.helpers.gateway_family import with_gateway
from tests.helpers.impatient_family import with_patience
from tests.helpers.lockstep_family import with_groups
from tests.helpers.narrowed_family import with_fewer_gpus
from tests.helpers.pinned_family import with_pins
from tests.helpers.prefetched_family import with_prefetches
from tests.helpers.programs_family import with_programs
from tests.helpers.scaling_family import with_scaling
from tests.helpers.scenarios import (
    Scenario,
    in_one_stream,
    prefix_stores,
    prefixes,
    scenarios,
    speculations,
    with_split,
)
from tests.helpers.spanning_family import with_spans
from tests.helpers.stale_family import with_reports
from tests.helpers.stateful_family import with_states
from tests.helpers.tiered_family import with_tiers

Layer = Callable[[Draw, Scenario], Scenario]
_LAYERS: tuple[tuple[Layer, float], ...] = (  # and in which part of the runs each is at work
    *((with_decisions, 0.4), (with_patience, 0.5), (with_reports, 0.4), (with_scaling, 0.4), (with_gateway, 0.6)),
    (with_faults, 0.4),
)


def meeting(draw: Draw) -> Scenario:
    """Many requests in little memory, on instances of one kind, with some of all mechanisms that go with that."""
    scenario = _busy(draw, scenarios(draw))
    kind, last = draw.one(_KINDS)
    scenario = draw.one(_MEMORIES)(draw, kind(draw, scenario))
    for layer, share in _LAYERS:
        if draw.chance(share):
            scenario = layer(draw, scenario)
    return last(draw, scenario)


def _busy(draw: Draw, scenario: Scenario) -> Scenario:
    """The run with more requests, on two instances of each pool or more, and a policy that moves and splits them."""
    count, size, alike = draw.integer(16, 28), scenario.engine.block_tokens, draw.chance(0.4)
    prompts = draw.integers(4, 50, count)
    gap_s = draw.dyadic(1, 24, draw.one([-8, -7, -6]))
    waits = [draw.one([0, 0, 1, 1, 2]) for _ in range(count)]
    names = [
        [100 * (k % 3) + j if j < shared else 1000 + 100 * k + j for j in range(-(-prompt // size))]
        for k, prompt in enumerate(prompts)
        for shared in [draw.integer(0, 8)]
    ]
    workload = Workload(
        gap_s * np.cumsum(waits),
        np.array(prompts),
        np.array(draw.integers(1, draw.one([16, 40, 40]), count)),
        **prefixes(names, size),
    )
    engine = replace(
        scenario.engine,
        kv_tokens=draw.one([80, 96, 112, 128]),
        watermark=0.0,
        max_batch=draw.integer(4, 12),
        token_budget=draw.one([16, 32, 64]),
        batching=draw.one(["unified", "unified", "mixed", scenario.engine.batching]),
        layerwise_tokens=draw.one([None, 1, 8]),
        attention=replace(scenario.engine.attention, overlap=draw.one([0.0, 0.5, 1.0])),
    )
    if draw.chance(0.4):
        engine = replace(engine, speculation=speculations(draw))
    pools = [
        replace(
            pool,
            instances=max(2, pool.instances),
            token_budget=None,
            max_batch=None,
            batching=draw.one([None, None, pool.batching]),
            role="mixed" if alike and pool.role != "off" else pool.role,
        )
        for pool in scenario.cluster.pools
    ]
    rules = replace(
        scenario.rules,
        admit="",
        batching=draw.one(["", "", scenario.rules.batching]),
        tick_s=scenario.rules.tick_s or draw.dyadic(3, 24, -6),
        moves=draw.one([0, 2, 4]),
        roles=draw.one([0, 1, 2]),
        split_at=draw.one(["", "prompt", "output", "both"]),
        prioritize=draw.one(["", "dynamic", scenario.rules.prioritize]),
        route_prefill=draw.one(["turn", "hash", scenario.rules.route_prefill]),
        route_decode=draw.one(["next", "hash", scenario.rules.route_decode]),
    )
    link = replace(scenario.cluster.link, bandwidth_bytes_s=2.0 ** draw.integer(9, 14))
    pools = [replace(pool, link_bytes_s=None) for pool in pools]
    cluster = replace(with_pools(scenario, pools), link=link)
    return replace(scenario, workload=workload, engine=engine, cluster=cluster, rules=rules, load=Open())


# --- kinds of instances, which exclude each other ---------------------------------------------------------------------


_CHOICES: tuple[RankChoice, ...] = ("kv", "requests", "round_robin")


def _split(draw: Draw, scenario: Scenario, **sizes: Any) -> Scenario:
    """On instances whose model is split so, with one stream of steps."""
    choice: RankChoice = draw.one(_CHOICES) if "dp" in sizes else "even"
    pools = [
        replace(
            with_split(pool, scenario.model, **{"pp": 1, "dp": 1, **sizes}),
            rank_choice=choice,
            batching=in_one_stream(pool.batching),
        )
        for pool in scenario.cluster.pools
    ]
    engine = replace(scenario.engine, batching=in_one_stream(scenario.engine.batching))
    return replace(scenario, engine=engine, cluster=with_pools(scenario, pools))


def _plain(draw: Draw, scenario: Scenario) -> Scenario:
    return _split(draw, scenario)


def _ranks(draw: Draw, scenario: Scenario) -> Scenario:
    return _split(draw, scenario, dp=draw.one([2, 4]))


def _stages(draw: Draw, scenario: Scenario) -> Scenario:
    return _split(draw, scenario, pp=draw.one([2, 4]))


def _streams(draw: Draw, scenario: Scenario) -> Scenario:
    """Prefills run concurrently with decodes on most instances."""
    pools = [replace(pool, batching=draw.one([None, None, pool.batching])) for pool in scenario.cluster.pools]
    engine = replace(scenario.engine, batching="concurrent")
    return replace(scenario, engine=engine, cluster=with_pools(scenario, pools))


def _fewer_gpus(draw: Draw, scenario: Scenario) -> Scenario:
    """Some of whose GPUs fail; what is slow stays so."""
    before, narrowed = scenario.engine.faults, with_fewer_gpus(draw, scenario)
    after = narrowed.engine.faults
    assert isinstance(after, FaultSchedule)
    if isinstance(before, FaultSchedule):
        after = replace(after, slowdowns=before.slowdowns)
    return replace(narrowed, engine=replace(narrowed.engine, faults=after))


def _as_it_is(draw: Draw, scenario: Scenario) -> Scenario:
    return scenario


_KINDS: tuple[tuple[Layer, Layer], ...] = (
    *((_plain, _as_it_is), (_ranks, _as_it_is), (_stages, _as_it_is), (_streams, _as_it_is), (with_groups, _as_it_is)),
    *((_plain, _fewer_gpus), (_streams, _fewer_gpus), (_plain, with_spans), (_plain, with_spans)),
)


# --- what is kept of KV -----------------------------------------------------------------------------------------------


def _tiers(draw: Draw, scenario: Scenario) -> Scenario:
    """Prefixes are kept in stores, from which instances fetch them."""
    stores = prefix_stores(draw, exact=True)
    own = {name: replace(tier, shared=False) for name, tier in stores.tiers.items()}
    engine = replace(scenario.engine, prefix_cache=True, prefix_stores=replace(stores, tiers=own))
    return replace(scenario, engine=engine, rules=replace(scenario.rules, fetch_prefix="most"))


def _calls(draw: Draw, scenario: Scenario) -> Scenario:
    """Programs, whose prompts are kept in stores."""
    return with_programs(draw, _tiers(draw, scenario))


def _pins(draw: Draw, scenario: Scenario) -> Scenario:
    return with_pins(draw, _tiers(draw, scenario))


def _prefetches(draw: Draw, scenario: Scenario) -> Scenario:
    """Prefetches after most calls, the next of which come late, from stores that have room for all."""
    scenario = with_prefetches(draw, with_tiers(draw, _pins(draw, scenario)))
    think_s, stores = scenario.workload.think_s, scenario.engine.prefix_stores
    assert think_s is not None
    engine = replace(
        scenario.engine,
        prefix_stores=replace(stores, tiers={name: _ready(tier) for name, tier in stores.tiers.items()}),
    )
    pools = [
        replace(pool, instances=draw.one([1, 2, 2])) if pool.group == 1 else pool for pool in scenario.cluster.pools
    ]
    return replace(
        scenario,
        workload=replace(scenario.workload, think_s=think_s + draw.one([0.0, 1.0, 4.0])),
        engine=engine,
        cluster=with_pools(scenario, pools),
        rules=replace(
            scenario.rules,
            on_call_end="all",
            ttl_exponent=draw.one([-5, -3, -3]),
            prefetches=draw.one([6, 8]),
            roles=draw.one([0, 1]),
        ),
    )


def _ready(tier: Tier) -> Tier:
    """The tier with room for all, which takes each block at once or when it is evicted."""
    own = replace(tier, capacity_tokens=None, capacity_bytes=None)
    return own if tier.write == "back" else replace(own, write_after=1, chunk_tokens=None)


def _states(draw: Draw, scenario: Scenario) -> Scenario:
    scenario = with_states(draw, scenario)
    return with_programs(draw, scenario) if draw.chance(0.5) else scenario


_MEMORIES: tuple[Layer, ...] = (_tiers, _calls, _pins, *5 * (_prefetches,), _states, _states)
