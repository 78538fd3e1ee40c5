"""A family of random runs whose requests are calls of programs: branches, joins, several first calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.load import Closed
from framework.workload import Workload
from tests.helpers.block_families import early
from tests.helpers.broad_families import crowded, doubled, fetching, moving, pressed, severed, sharing, staged
from tests.helpers.crashing_family import crashing
from tests.helpers.decided_family import decided
from tests.helpers.drawing import Draw
from tests.helpers.ending_family import ending
from tests.helpers.impatient_family import impatient
from tests.helpers.lockstep_family import grouped
from tests.helpers.pulled_family import pulled
from tests.helpers.scaling_family import scaling
from tests.helpers.scenarios import Scenario, scenarios
from tests.helpers.stale_family import stale

_OTHERS = (
    *(scenarios, scenarios, crowded, doubled, fetching, moving, pressed, severed, sharing, staged, early),
    *(crashing, crashing, decided, decided, ending, grouped, impatient, impatient, pulled, scaling, stale),
)


def programs(draw: Draw) -> Scenario:
    """What another family draws, with its requests in programs; half of the loads are closed."""
    return with_programs(draw, draw.one(_OTHERS)(draw))


def with_programs(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, with its requests in programs."""
    load = scenario.load
    if load.clients is None and draw.chance(0.4):
        load = Closed(draw.integer(1, 4), patience=load.patience)
    return replace(scenario, workload=_in_programs(draw, scenario.workload), load=load)


def _in_programs(draw: Draw, workload: Workload) -> Workload:
    """The requests as calls that wait for one or several before them, for the last or for any."""
    exponent, most, firsts = draw.one([-9, -7, -5]), draw.integer(1, 4), draw.one([0.0, 0.0, 0.2])
    calls: list[list[int]] = [[] for _ in range(most + 1)]
    previous, joins, session_id = [], [], []
    for k in range(len(workload)):
        program = draw.integer(0, most)
        before = calls[program]
        session_id.append(program if program else -1)
        awaited: list[int] = []
        if program and before and not draw.chance(firsts):
            number = draw.one([1, 1, 1, 2, 3])
            awaited = list(dict.fromkeys(draw.one(before[-3:] if draw.chance(0.7) else before) for _ in range(number)))
        previous.append(awaited[0] if awaited else -1)
        joins += [(k, other) for other in awaited[1:]]
        before.append(k)
    return replace(
        workload,
        previous=np.array(previous, np.int64),
        joins=np.array(joins, np.int64).reshape(-1, 2),
        session_id=np.array(session_id, np.int64),
        think_s=np.array([draw.some(True, 1, 40, exponent) for _ in previous]),
    )
