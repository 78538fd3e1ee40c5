"""Arrivals at a rate that ramps and swings: the expected number by a time is the integral of the rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from traces.drawn.changing_rate import ChangingRate
from traces.drawn.distributions import Arrivals

RATES = {
    "swing": {"rate": 5.0, "swing": 0.8, "period_s": 60.0, "peak_s": 12.0},
    "ramp": {"rate": 2.0, "end_rate": 20.0, "ramp_s": 40.0},
    "falling": {"rate": 20.0, "end_rate": 1.0, "ramp_s": 30.0},
    "both": {"rate": 3.0, "end_rate": 9.0, "ramp_s": 50.0, "swing": 0.5, "period_s": 25.0, "peak_s": 5.0},
}


def rate_at(time_s: Any, rate: float, end_rate: float | None = None, ramp_s: float = 1.0, **wave: float) -> Any:
    straight = rate + ((rate if end_rate is None else end_rate) - rate) * np.minimum(time_s / ramp_s, 1.0)
    angle = 2 * np.pi * (time_s - wave.get("peak_s", 0.0)) / wave.get("period_s", 86400.0)
    return straight * (1 + wave.get("swing", 0.0) * np.cos(angle))


@pytest.mark.parametrize("name", RATES)
def test_expected_arrivals_are_the_integral_of_the_rate(name: str) -> None:
    time_s = np.linspace(0.0, 120.0, 240_001)
    rates = rate_at(time_s, **RATES[name])
    integral = np.concatenate(([0.0], np.cumsum((rates[1:] + rates[:-1]) / 2) * time_s[1]))
    changing = ChangingRate(**RATES[name])
    np.testing.assert_allclose(changing.expected(time_s), integral, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(changing.times_s(changing.expected(time_s[1::1000])), time_s[1::1000], rtol=1e-9)


@pytest.mark.parametrize("name", ["poisson", "gamma", "fixed"])
def test_more_arrive_where_the_rate_is_higher(name: str) -> None:
    arrivals = Arrivals(name, 20.0, swing=0.9, period_s=100.0, peak_s=50.0)
    times_s = arrivals.sample(20_000, np.random.default_rng(0))
    assert times_s[0] == 0.0
    assert np.all(np.diff(times_s) >= 0)
    counts = np.histogram(times_s % 100.0, bins=4, range=(0.0, 100.0))[0]
    assert counts[1:3].min() > 2 * max(counts[0], counts[3])


def test_a_constant_rate_draws_as_it_always_did() -> None:
    rng = np.random.default_rng(3)
    gaps = np.random.default_rng(3).gamma(1.0, 1.0 / 7.0, 99)
    assert Arrivals("poisson", 7.0).sample(100, rng).tolist() == [0.0, *np.cumsum(gaps)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rate": 0.0}, "rate must be a finite number above 0, got 0.0"),
        ({"rate": 1.0, "swing": 1.0}, "swing is 1, must be below 1"),
        ({"rate": 1.0, "end_rate": 2.0}, "ramp_s, with an end_rate, must be a finite number above 0, got 0.0"),
        ({"rate": 1.0, "period_s": 0.0}, "period_s"),
    ],
)
def test_a_rate_that_cannot_be_is_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Arrivals("poisson", **settings)
