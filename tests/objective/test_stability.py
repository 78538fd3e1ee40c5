"""What a run tells of its rate: overload, too short a run, a system that fills up, requests that no rate helps."""

from __future__ import annotations

import numpy as np
import pytest

from framework.metrics.slo import Slo
from framework.objective.experiment import Experiment
from framework.objective.probe import play, probe
from framework.objective.stability import GROWING, MISSED, SUSTAINED, UNDECIDED, Reading, read, undisturbed_misses
from framework.timing.affine import Affine
from framework.workload import at_rate, repeated
from tests.helpers.servers import CRITERION, SERVICE_S, experiment, poisson, regular, requests, ttft_within


def reading_of(one: Experiment, rate: float, passes: int) -> Reading:
    return play(one, rate, passes, CRITERION)[0]


@pytest.mark.parametrize("rho", [1.02, 1.2, 1.9])
def test_time_in_system_grows_by_the_overload(rho: float) -> None:
    reading = reading_of(experiment(requests(regular(1000)), ttft_within(1e6)), rho / SERVICE_S, passes=2)
    assert reading.growth == pytest.approx(rho - 1, rel=1e-6)
    assert reading.growth_error < 1e-9
    assert reading.verdict == GROWING


def test_a_reading_says_what_it_sees() -> None:
    loose, tight = ttft_within(1e6), ttft_within(0.15)
    assert reading_of(experiment(requests(poisson(5000, 0)), loose), 0.5 / SERVICE_S, 2).verdict == SUSTAINED
    assert reading_of(experiment(requests(poisson(5000, 0)), tight), 0.5 / SERVICE_S, 2).verdict == MISSED
    assert reading_of(experiment(requests(regular(2)), loose), 0.5 / SERVICE_S, 2).verdict == UNDECIDED  # no two pairs
    noise = at_rate(requests(poisson(400, 0)), 0.8 / SERVICE_S)  # halves that are not alike
    alone = experiment(noise, loose).run()
    assert read(alone, loose, 400, 50.0, attainment=0.9, resolution=0.01).verdict == UNDECIDED
    assert read(alone, loose, 400, 50.0, attainment=0.9, resolution=1.0).verdict == SUSTAINED


def test_a_run_shorter_than_its_requests_tells_nothing() -> None:
    """All of them arrive within 6 s and take 100 s each: what the system does when it is full has not been seen."""
    slow = Affine(base_s=1.0)
    one = experiment(requests(regular(150), output_tokens=100), Slo(ttft_s=10.0, tpot_s=None), slow, seats=1000)
    reading = reading_of(one, rate=50.0, passes=2)
    assert reading.attainments == (1.0, 1.0)
    assert reading.verdict == UNDECIDED


def test_growth_that_dies_down_is_no_overload() -> None:
    """A request takes 1 s alone, and 10 s among the 30 that there are in the end."""
    filling = Affine(base_s=0.01, per_sequence_s=0.003)
    one = experiment(requests(regular(20), output_tokens=100), Slo(None, None), filling, seats=512)
    assert reading_of(one, 3.0, passes=8).verdict == GROWING
    probed, result = probe(one, 3.0, CRITERION)
    assert probed.reading.verdict == SUSTAINED
    assert np.median(result.requests["end_s"] - result.requests["arrival_s"]) == pytest.approx(10.0, rel=0.1)


def test_undisturbed_misses_are_those_that_no_rate_helps() -> None:
    """Two at once, one alone, then two whose stays overlap."""
    arrival_s = np.array([0.0, 0.0, 10.0, 20.0, 20.05])

    def share(limit_s: float) -> float:
        doubled = experiment(repeated(requests(arrival_s), 2), ttft_within(limit_s))
        return undisturbed_misses(doubled.run(), doubled.slo, requests=2 * len(arrival_s))

    assert share(1.0) == 0.0
    assert share(0.12) == 1 / 5  # the second of the pair; the last one could be helped
    assert share(0.05) == 3 / 5
