"""A family of random runs whose clients give up, and send requests again."""

from __future__ import annotations

from dataclasses import replace

from framework.load import Closed, Open, Patience
from tests.helpers.broad_families import crowded, doubled, fetching, moving, pressed, severed, sharing, staged
from tests.helpers.crashing_family import crashing
from tests.helpers.decided_family import decided
from tests.helpers.drawing import Draw
from tests.helpers.lockstep_family import grouped
from tests.helpers.scenarios import Scenario, scenarios

_OTHERS = (
    *(scenarios, scenarios, crowded, doubled, fetching, moving, pressed, pressed, severed, sharing, staged),
    *(
        crashing,
        crashing,
        crashing,
        crashing,
        crashing,
        decided,
        decided,
        decided,
        decided,
        decided,
        grouped,
        grouped,
        grouped,
    ),
)


def impatient(draw: Draw) -> Scenario:
    """What another family draws, of clients that wait for a little while only."""
    return with_patience(draw, draw.one(_OTHERS)(draw))


def with_patience(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, with clients that give up."""
    patience = Patience(
        draw.dyadic(1, 60, draw.one([-7, -5, -3])), draw.one([0, 1, 2, 5]), draw.dyadic(1, 16, draw.one([-8, -5]))
    )
    assert isinstance(scenario.load, Open | Closed)
    return replace(scenario, load=replace(scenario.load, patience=patience))
