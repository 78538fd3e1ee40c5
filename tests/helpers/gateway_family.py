"""A family of random runs whose requests wait at a gateway."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from framework.system.gateway import Gateway
from framework.workload import Workload
from tests.helpers.ahead_family import ahead
from tests.helpers.block_families import early
from tests.helpers.broad_families import crowded, doubled, fetching, moving, pressed, severed, shared, sharing, staged
from tests.helpers.crashing_family import crashing
from tests.helpers.decided_family import decided
from tests.helpers.drafting_family import drafting
from tests.helpers.drawing import Draw
from tests.helpers.impatient_family import impatient
from tests.helpers.lockstep_family import grouped
from tests.helpers.programs_family import programs
from tests.helpers.pulled_family import pulled
from tests.helpers.rare_families import clocked, migrating, ranked, streams
from tests.helpers.reserve_families import reserving
from tests.helpers.returning_family import returning
from tests.helpers.scaling_family import scaling
from tests.helpers.scenarios import Scenario, scenarios
from tests.helpers.stale_family import stale

_BROAD = (scenarios, crowded, severed, sharing, shared, pressed, staged, doubled, fetching, moving, early)
_MORE = (ahead, drafting, grouped, migrating, pulled, ranked, reserving, returning, streams, clocked)
_SELDOM = (crashing, decided, scaling, stale, impatient, programs)
_OTHERS = (*_BROAD, *_MORE, *4 * _SELDOM)


def gateway(draw: Draw) -> Scenario:
    """What another family draws, behind a gateway that is often full."""
    return with_gateway(draw, draw.one(_OTHERS)(draw))


def with_gateway(draw: Draw, scenario: Scenario) -> Scenario:
    """A run, behind a gateway."""
    count = len(scenario.workload)
    workload = replace(scenario.workload, **_columns(draw, scenario.workload))
    return replace(scenario, workload=workload, engine=replace(scenario.engine, gateway=_gateways(draw, count)))


def _columns(draw: Draw, workload: Workload) -> dict[str, Any]:
    """Priorities, tenants and classes, where there are none."""
    count = len(workload)
    tenants = tuple(draw.one("abc") for _ in range(count))
    classes = tuple(draw.one(["chat", "batch", "other"]) for _ in range(count))
    found: dict[str, Any] = {}
    if workload.tenant is None:
        found["tenant"] = tenants
    if workload.slo_class is None:
        found["slo_class"] = classes
    if workload.priority is None and draw.chance(0.5):
        found["priority"] = np.array([draw.integer(-1, 1) for _ in range(count)])
    return found


def _gateways(draw: Draw, count: int) -> Gateway:
    by: Any = draw.one(["priority", "slo_class", "tenant"])
    order = {"priority": [], "slo_class": ["chat", "batch"], "tenant": ["b"]}[by]
    name = {"priority": None, "slo_class": "batch", "tenant": "others"}[by]
    ttl_s = draw.one([None, None, 0.0, draw.dyadic(1, 40, draw.one([-7, -5, -3]))])
    own: dict[str, float | None] = {"most_waiting": draw.integer(1, 3)} if draw.chance(0.4) else {}
    if draw.chance(0.3):
        own["ttl_s"] = draw.dyadic(1, 40, -5)
    return Gateway(
        saturation=draw.one(["utilization", "utilization", "in_flight"]),
        queue_threshold=draw.one([1.0, 1.0, 2.0, 4.0]),
        kv_threshold=draw.one([1.0, 0.5, 0.25, 0.125]),
        saturated_at=draw.one(["mean", "all"]),
        most_in_flight=draw.integer(1, 4),
        bands_by=by,
        band_order=order,
        fairness=draw.one(["arrival", "round_robin", "tokens"]),
        output_weight=draw.one([0.0, 1.0, 2.0]),
        most_waiting=draw.one([None, None, draw.integer(1, max(1, count // 2))]),
        ttl_s=ttl_s,
        bands={name: own} if own and name is not None else {},
    )
