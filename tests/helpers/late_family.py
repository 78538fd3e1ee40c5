"""A family of random runs some of whose requests are late."""

from __future__ import annotations

from dataclasses import replace

from tests.helpers.broad_families import crowded, doubled, moving, pressed, sharing, staged
from tests.helpers.drawing import Draw
from tests.helpers.gateway_family import gateway
from tests.helpers.impatient_family import impatient
from tests.helpers.programs_family import programs
from tests.helpers.scenarios import RowTiming, Scenario, scenarios

_OTHERS = (scenarios, crowded, doubled, moving, pressed, sharing, staged, programs, impatient, gateway)


def late(draw: Draw) -> Scenario:
    """What another family draws, with requests that are late."""
    scenario = draw.one(_OTHERS)(draw)
    share, mean_s = draw.one([0.125, 0.5, 1.0]), draw.dyadic(1, 31, draw.one([-8, -5]))
    rows = {name: replace(row, late_share=share, late_s=mean_s) for name, row in scenario.timing.rows.items()}
    return replace(scenario, timing=RowTiming(rows))
