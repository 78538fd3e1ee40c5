"""Intervals and tests: by hand on small samples, against resampling written out, and how often they err."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from framework.metrics import statistics
from framework.metrics.statistics import Floats, compare, estimate, holm, least_p


def test_the_interval_is_students_t() -> None:
    found = estimate(np.asarray([1.0, 2.0, 3.0, 4.0]))
    assert found.mean == 2.5
    assert found.half_width == pytest.approx(3.182446 * np.sqrt(5 / 3) / 2, rel=1e-6)  # t(0.975, 3) of any table
    assert np.isnan(estimate(np.asarray([7.0])).half_width)
    assert estimate(np.asarray([7.0, 9.0])).half_width == pytest.approx(12.7062, abs=1e-4)  # tan(0.95 pi / 2)
    assert not estimate(np.asarray([7.0])).is_significant


def test_intervals_cover_as_often_as_they_say() -> None:
    samples = np.random.default_rng(1).normal(5.0, 2.0, (4000, 10))
    found = [estimate(row) for row in samples]
    assert np.mean([abs(one.mean - 5.0) <= one.half_width for one in found]) == pytest.approx(0.95, abs=0.012)


# --- paired differences -----------------------------------------------------------------------------------------------


def test_two_and_three_differences_by_hand() -> None:
    two = compare(np.asarray([1.0, 3.0]))  # half of the resamples have one value twice, the others t = 0
    assert (two.mean, two.bootstrap_half_width, two.pairs) == (2.0, math.inf, 2)
    assert two.p == pytest.approx(0.5)
    three = compare(np.asarray([1.0, 2.0, 3.0]))  # t = 3.46; (1, 1, 2) has 2, (1, 1, 3) 0.5, (1, 1, 1) infinity
    assert three.p == pytest.approx(3 / 27)
    assert three.bootstrap_half_width == compare(np.asarray([0.1, 0.2, 0.3])).bootstrap_half_width == math.inf
    nearly_the_mean = np.asarray([0.87, 1.33, 1.100000000253])  # (0.87, 0.87, 0.87) varies by rounding alone
    assert compare(nearly_the_mean).bootstrap_half_width == math.inf
    skewed = compare(np.asarray([0.0, 0.0, 3.0]))  # t = 1, as (0, 3, 3) has; (0, 0, 3) has 0, those of one infinity
    assert skewed.p == pytest.approx((6 + 8 + 1) / 27)


def every_resample(values: Floats) -> Floats:
    """|t| of all resamples in all orders."""
    samples = np.asarray(list(itertools.product(values - values.mean(), repeat=len(values))))
    means, errors = samples.mean(axis=1), samples.std(axis=1, ddof=1) / math.sqrt(len(values))
    return np.asarray([abs(m) / e if e > 1e-9 else math.inf for m, e in zip(means, errors, strict=True)])


@pytest.mark.parametrize("count", [4, 5])
def test_the_test_counts_every_resample(count: int) -> None:
    rng = np.random.default_rng(count)
    for _ in range(5):
        values = rng.exponential(size=count) + rng.normal()
        sizes = every_resample(values)
        error = values.std(ddof=1) / math.sqrt(count)
        found = compare(values)
        assert found.p == pytest.approx(np.mean(sizes >= abs(values.mean()) / error - 1e-9))
        # the smallest |t| that no more than 5 % of the resamples exceed
        limit = min(size for size in sizes if np.mean(sizes > size * (1 + 1e-9)) <= 0.05)
        assert found.bootstrap_half_width == pytest.approx(limit * error)


def test_more_differences_are_resampled_at_random_but_always_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(5).normal(0.6, 1.0, 10)
    sampled = compare(values)
    assert compare(values) == sampled
    monkeypatch.setattr(statistics, "_ENUMERATED", 10)
    statistics._resamples.cache_clear()
    counted = compare(values)
    statistics._resamples.cache_clear()
    assert sampled.p != counted.p
    assert sampled.p == pytest.approx(counted.p, abs=0.01)
    assert sampled.bootstrap_half_width == pytest.approx(counted.bootstrap_half_width, rel=0.05)


def test_interval_and_test_agree() -> None:
    rng = np.random.default_rng(2)
    decided = 0
    for count in (3, 4, 5, 7, 12):
        for _ in range(60):
            found = compare(rng.normal(rng.uniform(0, 2), 1.0, count))
            assert (found.p <= 0.05) == (abs(found.mean) > found.bootstrap_half_width)
            decided += found.p <= 0.05
    assert 50 < decided < 250


def test_five_replicates_have_the_interval_of_a_paired_t_test() -> None:
    """Three that are nearly equal made the bootstrap's interval ten times as wide."""
    found = compare(np.asarray([0.0, 1.0, 2.0, 1500.0, 1700.0]))
    assert found.half_width == pytest.approx(2.776445 * np.std([0, 1, 2, 1500, 1700], ddof=1) / np.sqrt(5), rel=1e-6)
    assert found.bootstrap_half_width > 5 * found.half_width
    assert not found.is_doubtful


def test_an_interval_that_the_test_does_not_confirm_is_doubtful() -> None:
    three = compare(np.asarray([1.0, 1.1, 1.2]))
    assert abs(three.mean) > three.half_width
    assert three.is_doubtful
    assert not compare(np.asarray([1.0, 1.1, 1.2, 0.9, 1.05])).is_doubtful
    assert not compare(np.asarray([1.0, -1.1, 1.2])).is_doubtful


def test_the_sign_and_the_unit_change_nothing() -> None:
    values = np.random.default_rng(3).exponential(size=6)
    found, turned = compare(values), compare(-1000 * values)
    assert turned.p == pytest.approx(found.p)
    assert turned.half_width == pytest.approx(1000 * found.half_width)


@pytest.mark.parametrize("values", [[2.0], [0.0, 0.0, 0.0], [0.3, 0.3, 0.3], [0.1 + 0.2, 0.3, 0.3]])
def test_differences_that_do_not_vary_are_not_tested(values: list[float]) -> None:
    found = compare(np.asarray(values))
    assert found.mean == pytest.approx(values[0])
    assert math.isnan(found.p)
    assert math.isnan(found.half_width)


@pytest.mark.parametrize("count", [3, 4, 6, 9])
def test_the_least_p_is_that_of_differences_far_from_zero(count: int) -> None:
    found = compare(1e6 + np.random.default_rng(count).normal(size=count))
    assert found.p == pytest.approx(least_p(count)) == pytest.approx(count ** (1.0 - count))


def test_the_least_p_of_a_sampled_test_is_not_zero() -> None:
    assert (
        compare(1e6 + np.random.default_rng(0).normal(size=12)).p == pytest.approx(least_p(12)) == pytest.approx(1e-4)
    )


def test_few_skewed_differences_are_found_where_there_are_none_less_often_than_by_students_t() -> None:
    samples = np.random.default_rng(4).exponential(size=(2000, 6)) - 1
    found = np.mean([compare(row).p <= 0.05 for row in samples])
    by_t = np.mean([estimate(row).is_significant for row in samples])
    assert found == pytest.approx(0.070, abs=0.02)  # the docstring's figures
    assert by_t == pytest.approx(0.115, abs=0.02)


# --- many at once -----------------------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_holm_leaves_out_what_was_not_tested() -> None:
    adjusted = holm([math.nan, 0.01, 0.02])
    assert math.isnan(adjusted[0])
    assert adjusted[1:] == pytest.approx([0.02, 0.02])


def test_holm_keeps_the_level_of_all_tests_together() -> None:
    p_values = np.random.default_rng(6).uniform(size=(4000, 5))
    assert np.mean([min(holm(row)) <= 0.05 for row in p_values.tolist()]) == pytest.approx(0.05, abs=0.012)
