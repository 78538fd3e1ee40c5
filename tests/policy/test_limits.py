"""What the SLO allows to a request, as policies see it."""

from __future__ import annotations

import math

import polars as pl
import pytest

import servelab
from framework.policy import Aggregated, Cluster, Request
from tests.engine.test_decisions import ENGINES, play


class Telling(Aggregated):
    """Turns every request away, with its limits as the reason, and those of all requests for the first one."""

    def admit(self, request: Request, cluster: Cluster) -> str:
        limits = cluster.requests.limits
        return f"{limits.ttft_s.tolist()} {limits.tpot_s.tolist()}" if request.id == 0 else str(tuple(request.limits))


def test_a_request_has_the_limits_of_its_class() -> None:
    """A class has the limits of all requests where it names none of its own."""
    classes = ["batch", "chat", "batch", "other"]
    rows = pl.DataFrame(
        {"arrival_s": [0.0, 1.0, 2.0, 3.0], "input_tokens": 10, "output_tokens": 2, "slo_class": classes}
    )
    own = {"batch": {"ttft_s": 30.0, "tpot_s": None}, "chat": {"ttft_s": 0.5}}
    run = servelab.run(Telling(), rows, cluster__instances=1, slo__ttft_s=3.0, slo__tpot_s=0.25, slo__classes=own)
    columns = "[30.0, 0.5, 30.0, 3.0] [inf, 0.25, inf, 0.25]"
    assert run.requests["reason"].to_list() == [columns, "(0.5, 0.25)", "(30.0, inf)", "(3.0, 0.25)"]


class Reading(Aggregated):
    """Notes the limits of all requests, and of each as it arrives."""

    def prepare(self, cluster: Cluster) -> None:
        self.all = cluster.requests.limits
        self.seen: list[tuple[float, float]] = []

    def admit(self, request: Request, cluster: Cluster) -> bool:
        self.seen.append(request.limits)
        return True


@ENGINES
def test_without_an_slo_any_time_will_do(engine: str) -> None:
    policy = Reading()
    play(engine, [(0, 2, 2), (1, 2, 2)], policy)
    assert policy.seen == [(math.inf, math.inf)] * 2
    assert [*zip(*(limits.tolist() for limits in policy.all), strict=True)] == policy.seen
    with pytest.raises(ValueError, match="read-only"):
        policy.all.ttft_s[0] = 1.0
