"""A family of random runs in which the policy pins the KV of calls that have ended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.engine.kv.prefix_tiers import PrefixStores
from framework.load import Closed
from framework.workload import Workload
from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.broad_families import crowded, doubled, fetching, moving, pressed, severed, shared, sharing, staged
from tests.helpers.crashing_family import crashing
from tests.helpers.decided_family import decided
from tests.helpers.drafting_family import drafting
from tests.helpers.drawing import Draw
from tests.helpers.gateway_family import gateway
from tests.helpers.impatient_family import impatient
from tests.helpers.lockstep_family import grouped
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import migrating, ranked, streams
from tests.helpers.reserve_families import reserving
from tests.helpers.returning_family import returning
from tests.helpers.scaling_family import scaling
from tests.helpers.scenarios import Scenario, prefix_stores, prefixes, scenarios
from tests.helpers.stale_family import stale

_BROAD = (scenarios, scenarios, crowded, severed, sharing, shared, pressed, staged, doubled, fetching, moving, early)
_MORE = (ahead, drafting, grouped, migrating, pulled, ranked, reserving, returning, streams)
_SELDOM = (crashing, decided, gateway, impatient, scaling, stale)
_LONGEST = 100  # tokens of a prompt with what came before


def pinned(draw: Draw) -> Scenario:
    """What another family draws, with conversations in little memory, most calls of which are pinned."""
    return with_pins(draw, draw.one((*_BROAD, *_MORE, *4 * _SELDOM))(draw))


def with_pins(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, with its requests in conversations whose KV is pinned."""
    engine = replace(
        scenario.engine,
        prefix_cache=True,
        prefix_unit=draw.one(["trace", "engine"]),
        prefix_stores=_stores(draw, scenario.engine.prefix_stores),
    )
    load = scenario.load
    if load.clients is None and draw.chance(0.3):
        load = Closed(draw.integer(1, 4), patience=load.patience)
    workload = _conversations(draw, scenario.workload, engine.block_tokens * draw.one([1, 1, 2]))
    rules = replace(
        scenario.rules,
        on_call_end=draw.one(["any", "any", "all"]),
        ttl_exponent=draw.one([-7, -5, -3]),
        route_prefill=draw.one([scenario.rules.route_prefill, "turn", "cached"]),
    )
    return replace(scenario, workload=workload, engine=engine, load=load, rules=rules)


def _stores(draw: Draw, before: PrefixStores) -> PrefixStores:
    """Those that there are, or others in a part of all cases."""
    return before if before.tiers or draw.chance(0.8) else prefix_stores(draw, exact=True)


def _conversations(draw: Draw, workload: Workload, size: int) -> Workload:
    """The requests as calls of programs, whose prompts continue that of the call before; `size` tokens in a block."""
    count, exponent = len(workload), draw.one([-9, -7, -5])
    prompts: list[int] = []
    names: list[list[int]] = []
    previous: list[int] = []
    joins: list[tuple[int, int]] = []
    program: list[int] = []
    last: dict[int, list[int]] = {}
    for k in range(count):
        chosen = draw.integer(1, 4)
        calls = last.setdefault(chosen, [])
        waits = [draw.one(calls[-2:])] if calls and draw.chance(0.85) else []
        before = waits[0] if waits else -1
        grown = prompts[before] + int(workload.output_tokens[before]) if waits else 0
        if waits and grown + 20 <= _LONGEST and draw.chance(0.85):  # else the context was reset
            prompts.append(grown + draw.integer(0, 20))
            common = names[before]
        else:
            prompts.append(draw.integer(1, 50))
            common = [100 + j for j in range(draw.integer(0, 3))]
        blocks = prompts[-1] // size
        names.append((common[:blocks] + [1000 * (k + 1) + j for j in range(blocks)])[:blocks])
        previous.append(before)
        others = [call for call in calls if call != before]
        if waits and others and draw.chance(0.15):
            joins.append((k, draw.one(others)))
        calls.append(k)
        program.append(chosen)
    return replace(
        workload,
        input_tokens=np.array(prompts),
        previous=np.array(previous),
        joins=np.array(joins, np.int64).reshape(-1, 2) if joins else None,
        session_id=np.array(program),
        turn=None,
        think_s=np.array([draw.some(True, 1, 40, exponent) for _ in previous]),
        **prefixes(names, size),
    )
