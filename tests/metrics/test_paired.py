"""Differences of two runs request by request, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from framework.metrics.paired import paired
from framework.metrics.statistics import estimate


def test_shares_and_means_are_of_the_pairs_that_have_both_values() -> None:
    found = paired(np.array([-1.0, 0.0, 0.0, 3.0, np.nan, np.inf, 8.0]))
    assert (found.pairs, found.mean, found.median) == (5, 2.0, 0.0)
    assert (found.below, found.above) == (0.2, 0.4)
    assert math.isnan(found.half_width)
    assert found.caveat == "no interval: 5 requests make fewer than 10 batches of 10"


def test_no_pair_at_all() -> None:
    found = paired(np.array([np.nan, np.inf]))
    assert found.pairs == 0
    assert all(math.isnan(value) for value in (found.mean, found.half_width, found.median, found.below, found.above))
    assert found.caveat == "no request has both values"


@pytest.mark.parametrize(("count", "batches"), [(99, 0), (100, 10), (250, 25), (300, 30), (900, 30)])
def test_the_interval_is_students_over_means_of_successive_requests(count: int, batches: int) -> None:
    """From 100 requests on, in batches of at least ten, thirty at most."""
    differences = np.random.default_rng(5).normal(1.0, 2.0, count)
    found = paired(differences)
    assert (found.caveat == "") == (batches > 0)
    if batches:
        means = np.array([batch.mean() for batch in np.array_split(differences, batches)])
        assert found.half_width == pytest.approx(estimate(means).half_width)


@pytest.mark.parametrize(
    ("step", "trusted"), [([3.0, 3.0, 3.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0], False), ([3.0, 1.0] * 5, True)]
)
@pytest.mark.parametrize("unit", [1.0, 2.0**-10])
def test_batches_that_are_correlated_are_reported(step: list[float], trusted: bool, unit: float) -> None:
    """About a mean of 2 each adjacent mean but one has the same sign: of ten squares of 1 that leaves (8 - 1) / 10."""
    found = paired(unit * np.repeat(step, 10))
    assert found.mean == 2.0 * unit
    assert (found.caveat == "") == trusted
    if not trusted:
        assert found.caveat == "too narrow: adjacent batches of requests go together (correlation 0.70)"


def test_differences_that_do_not_vary_have_an_interval_of_nothing() -> None:
    found = paired(np.full(100, 0.5))
    assert (found.mean, found.half_width, found.caveat) == (0.5, 0.0, "")
