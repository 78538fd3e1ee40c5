"""A family of random runs in which the policy preempts, resumes and cancels requests that already run."""

from __future__ import annotations

from dataclasses import replace

from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.broad_families import crowded, doubled, fetching, moving, pressed, severed, shared, sharing, staged
from tests.helpers.crossing_family import crossing
from tests.helpers.drafting_family import drafting
from tests.helpers.drawing import Draw
from tests.helpers.lockstep_family import grouped
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import clocked, migrating, ranked, streams
from tests.helpers.reserve_families import reserving
from tests.helpers.returning_family import returning
from tests.helpers.scenarios import Scenario, scenarios

_OTHERS = (
    *(scenarios, scenarios, crowded, severed, sharing, shared, pressed, pressed, staged, doubled, fetching, moving),
    *(early, ahead, ahead, ahead, crossing, drafting, grouped, grouped, grouped, migrating, pulled, pulled, ranked),
    *(reserving, returning, streams, clocked, clocked, clocked),
)


def decided(draw: Draw) -> Scenario:
    """What another family draws, about which the policy decides before steps, at ticks, or both."""
    return with_decisions(draw, draw.one(_OTHERS)(draw))


def with_decisions(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, with a policy that decides about requests that already run."""
    both = draw.one([True, True, False])
    tick_s = scenario.rules.tick_s
    rules = replace(
        scenario.rules,
        decide=len(scenario.workload),
        decides_at_ticks_alone=not both,
        calm=draw.one([2, 4, 12]),
        seed=draw.integer(0, 999),
        tick_s=tick_s if both else tick_s or draw.dyadic(3, 24, -7),
        victim=draw.one(["", "any"]),
        on_finish=draw.one(["", "any"]),
        select=draw.one(["", "any"]),
    )
    return replace(scenario, rules=rules)
