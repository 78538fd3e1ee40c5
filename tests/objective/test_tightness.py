"""How far the limits could be tightened, on a server whose latencies are known."""

from __future__ import annotations

import numpy as np
import pytest

from framework.errors import InputError
from framework.metrics.slo import Slo
from framework.objective.tightness import Tightness
from framework.timing.affine import Affine
from tests.helpers.servers import SERVICE_S, experiment, regular, requests, ttft_within


@pytest.mark.parametrize("limit_s", [1.5e-6 * SERVICE_S, 0.05, 0.1, 0.8, 5e3, SERVICE_S / 1.5e-6])
def test_it_is_the_limit_over_what_every_request_takes(limit_s: float) -> None:
    measured = Tightness().measure(experiment(requests(regular(20)), ttft_within(limit_s)))
    assert measured.value == pytest.approx(limit_s / SERVICE_S, rel=2e-4)
    assert measured.evaluation.summary["slo_tightness"] == measured.value


@pytest.mark.parametrize(("attainment", "services"), [(0.9, 9), (0.85, 9), (0.8, 8), (1.0, 10)])
def test_so_many_of_the_requests_keep_it(attainment: float, services: int) -> None:
    """Ten come at once: they take 1, 2, ... 10 service times."""
    measured = Tightness(attainment).measure(experiment(requests(np.zeros(10)), ttft_within(1.0)))
    assert measured.value == pytest.approx(1.0 / (services * SERVICE_S), rel=2e-4)


def test_the_limit_that_is_nearest_decides() -> None:
    one = experiment(requests(regular(20), output_tokens=3), Slo(ttft_s=4.0, tpot_s=0.2), Affine(base_s=SERVICE_S))
    assert Tightness().measure(one).value == pytest.approx(0.2 / SERVICE_S, rel=2e-4)


def test_classes_have_their_own_limits() -> None:
    slo = Slo(ttft_s=4.0, tpot_s=None, classes={"chat": {"ttft_s": 1.0, "tpot_s": None}})
    assert slo.scaled(3.0) == Slo(ttft_s=12.0, tpot_s=None, classes={"chat": {"ttft_s": 3.0, "tpot_s": None}})


def test_it_is_0_where_requests_are_not_served() -> None:
    one = experiment(requests(regular(4), input_tokens=2 * 10**6), ttft_within(1.0))
    assert Tightness().measure(one).value == 0


def test_a_run_without_limits_is_refused() -> None:
    with pytest.raises(InputError, match=r"none is set; set slo\.ttft_s"):
        Tightness().measure(experiment(requests(regular(4)), Slo(ttft_s=None, tpot_s=None)))


@pytest.mark.parametrize(
    "slo", [Slo(ttft_s=None, tpot_s=1.0), Slo(ttft_s=None, tpot_s=None, classes={"chat": {"ttft_s": 1.0}})]
)
def test_limits_that_hold_for_no_request_are_refused(slo: Slo) -> None:
    """Requests of one token are not held against TPOT, and none is of that class."""
    with pytest.raises(InputError, match=r"90 % of the requests keep the SLO however tight it is"):
        Tightness().measure(experiment(requests(regular(4)), slo))
