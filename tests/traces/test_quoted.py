"""Distributions that have the figures that they are given: after the cut, and for every combination of figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from framework.errors import InputError
from traces.drawn.distributions import Distribution

SHARES = (np.arange(100_000) + 0.5) / 100_000


def values(**parameters: Any) -> np.ndarray:
    return Distribution(**parameters).quantile(SHARES)


@pytest.mark.parametrize(
    ("figures", "low", "high"),
    [
        ({"percentiles": {50: 1730, 90: 5696}}, 4, 8192),
        ({"percentiles": {50: 7059, 90: 12985}}, 4, 16384),
        ({"mean": 161, "cv": 1.2}, 4, 1024),
        ({"mean": 161, "cv": 0.05}, 4, 1024),
        ({"mean": 1738, "cv": 0.08}, 4, 1911),  # near the upper end
        ({"mean": 30, "cv": 2.0}, 4, 1024),  # near the lower one
        ({"mean": 755, "percentiles": {90: 1200}}, 4, 1536),
        ({"mean": 755, "percentiles": {"p25": 450}}, 4, 1536),
    ],
)
def test_a_cut_lognormal_distribution_has_both_figures(figures: dict[str, Any], low: float, high: float) -> None:
    drawn = values(law="cut_lognormal", low=low, high=high, **figures)
    assert low <= drawn.min()
    assert drawn.max() <= high
    if "mean" in figures:
        assert drawn.mean() == pytest.approx(figures["mean"], rel=1e-3)
    if "cv" in figures:
        assert drawn.std() / drawn.mean() == pytest.approx(figures["cv"], rel=2e-3)
    for level, value in figures.get("percentiles", {}).items():
        assert np.percentile(drawn, float(str(level).removeprefix("p"))) == pytest.approx(value, rel=1e-3)


def test_without_a_cut_that_matters_it_is_the_lognormal_distribution() -> None:
    drawn = values(law="cut_lognormal", mean=100, cv=0.5, low=1e-3, high=1e6)
    sigma = np.sqrt(np.log(1.25))
    free = stats.lognorm(sigma, scale=100 / np.sqrt(1.25)).ppf(SHARES)
    np.testing.assert_allclose(drawn, free, rtol=5e-3)


@pytest.mark.parametrize("mean", [None, 480.0, 560.0])
def test_percentiles_are_met_and_the_mean_is(mean: float | None) -> None:
    drawn = values(law="percentiles", mean=mean, percentiles={50: 432, 95: 970, 99: 1367}, low=4, high=2000)
    assert np.percentile(drawn, [50, 95, 99]) == pytest.approx([432, 970, 1367], rel=2e-3)
    assert drawn.mean() == pytest.approx(mean or 0.5 * 218 + 0.45 * 701 + 0.04 * 1168.5 + 0.01 * 1683.5, rel=1e-3)
    assert (drawn.min(), drawn.max()) == pytest.approx((4, 2000), abs=2)
    assert (np.diff(drawn) >= 0).all()


def test_a_mixture_draws_from_each_part_by_its_weight() -> None:
    parts = [{"law": "uniform", "low": 0, "high": 1}, {"law": "uniform", "low": 10, "high": 12}]
    drawn = values(law="mixture", parts=parts, weights=[1, 3])
    assert np.mean(drawn < 5) == pytest.approx(0.25, abs=1e-4)
    assert drawn[drawn > 5].mean() == pytest.approx(11, abs=1e-3)
    assert values(law="mixture", parts=parts).mean() == pytest.approx(0.5 * 0.5 + 0.5 * 11, abs=1e-3)
    assert len(Distribution("mixture", parts=parts).sample(7, np.random.default_rng(0))) == 7


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"law": "cut_lognormal", "mean": 5, "cv": 1}, "distribution cut_lognormal needs low, high: low is not set"),
        ({"law": "cut_lognormal", "mean": 5, "low": 1, "high": 9}, "needs two figures"),
        ({"law": "cut_lognormal", "cv": 1, "percentiles": {50: 5}, "low": 1, "high": 9}, "needs two figures"),
        ({"law": "cut_lognormal", "mean": 755, "cv": 0.8, "low": 4, "high": 1536}, "can be from 0.001 to 0.58"),
        ({"law": "cut_lognormal", "mean": 2000, "cv": 0.8, "low": 4, "high": 1536}, "mean is 2000, must lie between"),
        ({"law": "cut_lognormal", "mean": 5, "cv": 0.2, "low": 0, "high": 9}, "must be above 0"),
        ({"law": "cut_lognormal", "percentiles": {50: 5, "mode": 6}, "low": 1, "high": 9}, "'mode' is no percentile"),
        ({"law": "percentiles", "percentiles": {0: 5}, "low": 1, "high": 9}, "must lie between 0 and 100"),
        ({"law": "percentiles", "percentiles": {50: "x"}, "low": 1, "high": 9}, "percentile 50 is 'x'"),
        ({"law": "percentiles", "percentiles": {50: 7, 90: 6}, "low": 1, "high": 9}, "values must rise"),
        (
            {"law": "percentiles", "mean": 8, "percentiles": {50: 5}, "low": 1, "high": 9},
            "the mean is from 3 to 7, not 8",
        ),
        ({"law": "mixture", "parts": [{"mean": 3}]}, "a part has mean; its keys are law"),
        ({"law": "mixture", "parts": {"law": "fixed"}}, "parts must be a list of distributions"),
        ({"law": "mixture", "parts": [{"law": "fixed", "mean": 3}], "weights": [1, 2]}, "a list of 1 numbers"),
    ],
)
def test_figures_that_no_distribution_has_are_refused(parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Distribution(**parameters)
