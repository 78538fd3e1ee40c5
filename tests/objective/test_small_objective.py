"""What judges of runs say at their limits, and what a run tells of its tenants."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.metrics.slowdown import alone_s
from framework.objective import capacity
from framework.objective.capacity import Capacity, Search
from framework.objective.goodput import Goodput, judged
from framework.objective.probe import Probe, play
from framework.objective.sensitivity import FIGURES, sensitivity
from framework.objective.stability import (
    GROWING,
    MISSED,
    SUSTAINED,
    UNDECIDED,
    Reading,
    _is_filled,
    read,
    undisturbed_misses,
)
from framework.result import FINISHED
from framework.timing.affine import Affine
from framework.timing.table import StepRow
from framework.timing.uncertainty.widths import Width
from tests.helpers.servers import CRITERION, SERVICE_S, experiment, regular, requests, ttft_within


def test_a_system_is_given_up_on_one_sample_alone() -> None:
    with pytest.raises(
        InputError, match=r"objective\.at_least gives a system up on one sample; set objective\.replicates=0"
    ):
        Capacity(at_least=1.0, replicates=2)
    assert Capacity(at_least=1.0).at_least == 1.0
    with pytest.raises(InputError, match=r"objective\.replicates is 1"):
        Capacity(replicates=1)


def test_the_progress_of_a_replicate_follows_that_of_the_samples_before() -> None:
    told: list[tuple[int, int]] = []
    report = Capacity(replicates=2)._part(lambda done, total: told.append((done, total)), 1)
    report(3, 10)
    assert told == [(13, 30)]
    Capacity()._part(None, 0)(3, 10)


def test_who_has_tenants_is_told_how_they_fare() -> None:
    """Alone each request takes three steps of 0.1 s; at one a second they wait for nobody."""
    tenants = tuple("ab"[k % 2] for k in range(10))
    own = experiment(replace(requests(regular(10), output_tokens=3), tenant=tenants), ttft_within(1.0))
    summary = judged(own, own.run()).summary
    assert set(summary["tenants"]) == {"a", "b"}
    assert summary["worst_slowdown"] == pytest.approx(1.0)
    plain = experiment(requests(regular(10)), ttft_within(1.0))
    assert "tenants" not in judged(plain, plain.run()).summary
    first_s, later_s = alone_s(StepRow(base_s=SERVICE_S), np.array([1]), np.array([1]))
    assert (first_s + later_s).tolist() == [SERVICE_S]


def test_a_system_is_full_where_nearly_all_of_the_first_have_ended() -> None:
    """Of 80 requests over 40 s the first ten, of which a quarter of the time is 10 s from 2 s on."""

    def result(ends_s: list[float]) -> Any:
        ended = {"end_s": np.array([*ends_s, *[99.0] * (80 - len(ends_s))])}
        return SimpleNamespace(workload=SimpleNamespace(arrival_s=np.array([2.0])), requests=ended)

    assert _is_filled(result([12.0] * 10), 80, 40.0)
    assert not _is_filled(result([12.5] * 10), 80, 40.0)
    assert _is_filled(result([1.0]), 8, 40.0)
    assert not _is_filled(result([]), 7, 40.0)


def test_half_of_the_requests_that_just_attain_are_enough() -> None:
    """Ten requests a second apart, of which the second half has one of five that is late."""
    one = experiment(requests(regular(40), output_tokens=1), ttft_within(1.0))
    result = one.run()
    late = result.requests.copy()
    late["first_token_s"][39] += 5.0
    some = replace(result, requests=late)
    assert read(some, one.slo, 40, 40.0, attainment=0.95, resolution=5.0).verdict != MISSED
    assert read(some, one.slo, 40, 40.0, attainment=0.96, resolution=5.0).verdict == MISSED
    assert read(some, one.slo, 40, 40.0, attainment=0.95, resolution=5.0).attainments == (1.0, 0.95)


@pytest.mark.parametrize(("growth", "verdict"), [(0.375, SUSTAINED), (0.5, UNDECIDED), (0.625, GROWING)])
def test_growth_is_held_against_half_of_the_resolution(growth: float, verdict: str) -> None:
    """One request a second, each of which stays so many seconds longer; what was not served tells nothing of that."""
    one = experiment(requests(regular(80)), ttft_within(100.0))
    result = one.run()
    later = result.requests.copy()
    later["end_s"] = (1 + growth) * later["arrival_s"]
    later["state"][77] = FINISHED + 1
    reading = read(replace(result, requests=later), one.slo, 80, 80.0, attainment=0.9, resolution=1.0)
    assert (reading.growth, reading.growth_error, reading.verdict) == (growth, 0.0, verdict)


def test_the_order_of_requests_does_not_say_when_the_system_is_empty() -> None:
    one = experiment(requests(np.repeat(regular(10), 2)), ttft_within(1.5 * SERVICE_S))
    result = one.run()
    assert undisturbed_misses(result, one.slo, 20) == 0.5
    turned = np.r_[1:20, 0]
    later = replace(result, requests=result.requests[turned], workload=result.workload)
    assert undisturbed_misses(later, one.slo, 20) == 0.5


def test_who_meets_none_but_requests_of_its_instant_is_not_disturbed() -> None:
    """Two a second, of one instant or half a service apart; the later one is late. Of ten judged two are of even s."""
    arrival_s = np.repeat(regular(10), 2)
    arrival_s[3::4] += 0.5 * SERVICE_S
    one = experiment(requests(arrival_s), ttft_within(1.2 * SERVICE_S))
    assert undisturbed_misses(one.run(), one.slo, 20) == 0.2
    next_ = experiment(requests(0.125 * regular(20)), ttft_within(0.1), Affine(base_s=0.125))  # as the last one ends
    assert undisturbed_misses(next_.run(), next_.slo, 20) == 1.0


def test_a_further_eighth_is_played_and_not_judged() -> None:
    one = experiment(requests(regular(16)), ttft_within(1.0))
    _, result = play(one, 1.0, 2, CRITERION)
    assert len(result.requests) == 32 + 4
    _, result = play(one, 1.0, 16, CRITERION)
    assert len(result.requests) == 16 * 18
    _, result = play(experiment(requests(regular(2)), ttft_within(1.0)), 1.0, 128, CRITERION)
    assert len(result.requests) == 2 * 144


def test_a_rate_that_fails_after_one_has_passed_says_nothing_of_what_no_rate_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = experiment(requests(regular(10)), ttft_within(1.0))
    result = own.run()

    def recorded(_: Any, rate_rps: float, __: Any) -> tuple[Probe, Any]:
        reading = Reading((1.0, 1.0), 0.0, 0.0, SUSTAINED if rate_rps < 5 else MISSED)
        return Probe(rate_rps, 1, 2, 20, 1.0, reading, settled=True), result

    asked: list[int] = []
    monkeypatch.setattr(capacity, "probe", recorded)

    def misses(*given: Any) -> float:
        asked.append(1)
        return 0.0

    monkeypatch.setattr(capacity, "undisturbed_misses", misses)
    search = Search(own, CRITERION, lambda done, total: None)
    search.find(1.0, 2.0)
    assert asked == []
    assert 4.9 < search.low_rps < 5 <= search.high_rps < 5.1


def test_where_alone_all_keep_the_slo_the_limits_of_the_run_are_named() -> None:
    crowded = np.repeat(regular(30), 2)
    own = experiment(requests(crowded), ttft_within(1.5 * SERVICE_S), Affine(base_s=SERVICE_S))
    measured = Capacity().measure(own)
    failed = f"{measured.evaluation.summary['capacity_high']:.3g} req/s"
    missed = "no rate attains 90 %: even alone 0 of 60 requests miss the SLO (TTFT 0, TPOT 0, not served 0)"
    told = f"{missed}, and more at {failed}; trace.jitter_s spreads those of the same instant"
    assert measured.notes == (told,)
    limited = Capacity(run_limits={"p99_ttft_s": 0.12}).measure(own).notes[0]
    assert limited.startswith("no rate keeps p99_ttft_s 0.12")


def test_states_of_load_are_those_of_shorter_and_of_longer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(_: Any, result: Any) -> Any:
        state = "shorter" if result.requests["end_s"][0] < SERVICE_S else "longer"
        return SimpleNamespace(summary=dict.fromkeys(FIGURES, 1.0) | {"load_state": state})

    own = experiment(requests(regular(3)), ttft_within(1.0))
    run = Goodput().measure(own)
    monkeypatch.setattr("framework.objective.sensitivity.judged", told)
    assert sensitivity(own, run, Width(0.3, 1.0, "")).load_states == ("shorter", "longer")
