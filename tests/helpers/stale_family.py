"""A family of random runs whose front end sees instances as they last reported."""

from __future__ import annotations

from dataclasses import replace

from framework.policy.reports import Views
from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.broad_families import crowded, doubled, fetching, moving, pressed, severed, shared, sharing, staged
from tests.helpers.crashing_family import crashing
from tests.helpers.decided_family import decided
from tests.helpers.drafting_family import drafting
from tests.helpers.drawing import Draw
from tests.helpers.impatient_family import impatient
from tests.helpers.lockstep_family import grouped
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import clocked, migrating, ranked, streams
from tests.helpers.reserve_families import reserving
from tests.helpers.returning_family import returning
from tests.helpers.scaling_family import scaling
from tests.helpers.scenarios import Scenario, scenarios

_BROAD = (scenarios, crowded, severed, sharing, shared, pressed, staged, doubled, fetching, moving, early)
_MORE = (ahead, drafting, grouped, migrating, pulled, ranked, reserving, returning, streams, clocked)
_SELDOM = (crashing, decided, grouped, scaling, *2 * (impatient,))
_OTHERS = (*_BROAD, *_MORE, *3 * _SELDOM)


def stale(draw: Draw) -> Scenario:
    """What another family draws, with reports that are rare, that arrive late, or both; some are for ticks alone."""
    return with_reports(draw, draw.one(_OTHERS)(draw))


def with_reports(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, with a front end that goes by reports."""
    every_s = draw.dyadic(3, 24, draw.one([-7, -5, -4]))
    views = draw.one(
        [Views(every_s), Views(delay_s=every_s), Views(every_s, draw.integer(1, 4) * every_s), Views(every_s, 0.125)]
    )
    if draw.apart().chance(0.3):
        views = replace(views, hooks="on_tick")
    return replace(scenario, engine=replace(scenario.engine, views=views))
