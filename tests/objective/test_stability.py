"""What a run tells of its rate: overload, too short a run, a system that fills up, requests that no rate helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from framework.metrics.slo import Slo
from framework.objective.experiment import Experiment
from framework.objective.probe import play, probe
from framework.objective.stability import GROWING, MISSED, SUSTAINED, UNDECIDED, Reading, read, undisturbed_misses
from framework.policy import Cluster, Policy, Request
from framework.timing.affine import Affine
from framework.workload import Workload, at_rate, repeated
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


def late(count: int, misses: range, every: int) -> Experiment:
    """A request a second; of those of `misses` each `every`-th comes together with the one before, and waits for it."""
    arrival_s = regular(count)
    arrival_s[[*misses][::every]] -= 1.0
    return experiment(requests(arrival_s), ttft_within(1.5 * SERVICE_S))


@pytest.mark.parametrize(
    ("misses", "attainments", "verdict"),
    [(range(201, 400), (1.0, 0.8), MISSED), (range(1, 200), (0.8, 1.0), SUSTAINED)],
)
def test_the_second_half_alone_is_judged(misses: range, attainments: tuple[float, float], verdict: str) -> None:
    """A fifth of one half misses: of the whole run a tenth, which would attain 0.9."""
    one = late(400, misses, every=5)
    reading = read(one.run(), one.slo, 400, 400.0, attainment=0.9, resolution=0.01)
    assert reading.attainments == attainments
    assert reading.verdict == verdict


@pytest.mark.parametrize(("every", "attained", "verdict"), [(6, 0.915, UNDECIDED), (20, 0.975, SUSTAINED)])
def test_attainment_that_fades_below_what_is_asked_is_not_sustained(every: int, attained: float, verdict: str) -> None:
    """Of the last quarter a sixth misses and of the one before none, as it goes on half of the requests soon would."""
    one = late(400, range(301, 400), every)
    reading = read(one.run(), one.slo, 400, 400.0, attainment=0.9, resolution=0.01)
    assert reading.attainments == (1.0, attained)
    assert reading.growth + reading.growth_error < 0.001
    assert reading.verdict == verdict


@pytest.mark.parametrize(("attainment", "verdict"), [(0.625, SUSTAINED), (0.63, UNDECIDED)])
def test_attainment_may_fade_to_just_what_is_asked(attainment: float, verdict: str) -> None:
    """An eighth of the second half misses, all of it in its last part: a quarter there, and 7/8 - 1/4 is 0.625."""
    one = late(320, range(241, 320), every=4)
    assert read(one.run(), one.slo, 320, 320.0, attainment, resolution=0.01).verdict == verdict


class TurnsAway(Policy):
    """Serves no request of these."""

    def __init__(self, turned_away: range) -> None:
        super().__init__()
        self._turned_away = turned_away

    def admit(self, request: Request, cluster: Cluster) -> bool | str:
        return request.id not in self._turned_away or "turned away"


@pytest.mark.parametrize(
    ("rho", "turned_away", "attainment", "verdict"),
    [
        (1.2, range(160, 200), 0.80, SUSTAINED),
        (1.2, range(160, 200), 0.81, UNDECIDED),
        (0.5, range(190, 193), 1.0, SUSTAINED),  # by chance
        (0.5, range(190, 194), 1.0, UNDECIDED),
        (0.5, range(200, 204), 0.97, SUSTAINED),
    ],
)
def test_a_queue_that_is_turned_away_before_the_second_half_is_no_capacity(
    rho: float, turned_away: range, attainment: float, verdict: str
) -> None:
    """The second half then begins with an empty system, as the first did, and is too short for the queue to matter."""
    one = experiment(requests(regular(200)), ttft_within(5.0))
    one = replace(one, renew=lambda: (TurnsAway(turned_away), None))
    reading, _ = play(one, rho / SERVICE_S, 2, replace(CRITERION, attainment=attainment))
    assert reading.growth == pytest.approx(0.0, abs=1e-9)
    assert reading.verdict == verdict


def test_a_request_that_comes_as_the_last_one_ends_finds_an_empty_system() -> None:
    service_s = 0.125
    one = experiment(requests(service_s * regular(8)), ttft_within(0.1), Affine(base_s=service_s))
    result = one.run()
    assert (result.requests["end_s"][:-1] == result.requests["arrival_s"][1:]).all()
    assert undisturbed_misses(result, one.slo, requests=8) == 1.0


@pytest.mark.parametrize(
    ("outputs", "growth", "verdict"), [((1, 3), 0.2 / 12, GROWING), ((3, 1), -0.2 / 12, UNDECIDED)]
)
def test_growth_is_of_served_requests_and_over_half_the_time(
    outputs: tuple[int, int], growth: float, verdict: str
) -> None:
    """Twelve take 0.1 s, then the same twelve 0.3 s: 0.2 s in 12 s. One is too long to be served, in both halves."""
    tokens = np.ones(24, np.int64)
    tokens[[3, 15]] = 2 * 10**6
    workload = Workload(regular(24), tokens, np.where(np.arange(24) < 12, *outputs))
    result = experiment(workload, ttft_within(1e6)).run()
    reading = read(result, ttft_within(1e6), 24, 24.0, attainment=0.9, resolution=0.01)
    assert reading.attainments == (11 / 12, 11 / 12)
    assert reading.growth == pytest.approx(growth)
    assert reading.growth_error < 1e-9
    assert reading.verdict == verdict


def test_the_error_of_growth_is_students_of_batches() -> None:
    """Four requests; of the last two one takes 0.1 s longer than the one half a run before, and one 0.3 s."""
    workload = Workload(regular(8), np.ones(8, np.int64), np.array([1, 1, 1, 1, 1, 1, 2, 4]))
    reading = read(experiment(workload, ttft_within(1e6)).run(), ttft_within(1e6), 8, 8.0, 0.9, 0.01)
    assert reading.growth == pytest.approx(0.2 / 4)
    spread_s = np.std([0.1, 0.3], ddof=1)
    assert reading.growth_error == pytest.approx(12.7062 * spread_s / 2**0.5 / 4, rel=1e-4)  # t(0.975, 1)


def test_so_many_stragglers_and_no_more_leave_a_system_filled() -> None:
    """Of the 100 requests of the first eighth one stays beyond the first quarter, or two do."""
    for stragglers, verdict in ((1, SUSTAINED), (2, UNDECIDED)):
        outputs = np.ones(800, np.int64)
        outputs[:stragglers] = 60  # 6 s, the first quarter has 4
        one = experiment(Workload(0.02 * regular(800), np.ones(800, np.int64), outputs), Slo(None, None), seats=16)
        assert read(one.run(), one.slo, 800, 16.0, attainment=0.9, resolution=0.01).verdict == verdict
