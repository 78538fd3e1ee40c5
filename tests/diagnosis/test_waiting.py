"""What other instances do while requests wait, in fleets that are switched on and off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from framework.diagnosis.waiting import waiting_of
from framework.policy import Scale
from framework.policy.view import Cluster, Request
from framework.system.start_cost import StartCost
from tests.engine.test_scaling import Script, partly_on
from tests.helpers.by_hand import fleet, play

ROWS = [(0.0, 1, 8), (0.0, 1, 8), (0.5, 1, 8), (12.0, 1, 8)]  # one seat an instance


class ToTheFirst(Script):
    """As told, and every request goes to instance 0 until 10 s, then to instance 1."""

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return int(cluster.now_s > 10.0)


def test_an_instance_that_is_off_is_no_idle_one() -> None:
    """Instance 1 is ordered at 1 s, and takes 8 s to start."""
    grows = ToTheFirst({1.0: [Scale("mixed", 2)]})
    settings: dict[str, Any] = {"max_batch": 1, "kv_tokens": 10_000}
    scaled = waiting_of(play(grows, ROWS, partly_on(2, 1), start=StartCost(provisioning_s=8.0), **settings))
    always = waiting_of(play(ToTheFirst({}), ROWS, fleet(mixed=2), **settings))
    assert scaled is not None
    assert always is not None
    assert (scaled.others, always.others < 0.5) == (1.0, True)
    assert replace(always, room=replace(always.room, seats=0.0)).reason == "routing"
    assert replace(scaled, room=replace(scaled.room, seats=0.0)).reason == "prefill"
