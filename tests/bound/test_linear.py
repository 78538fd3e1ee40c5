"""Linear programs against scipy's, which calls a solver of the same name in another version."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from framework.bound.linear import minimised


def test_random_programs_have_the_optimum_and_the_prices_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        n, m = rng.integers(2, 40), rng.integers(1, 20)
        rows, limits = rng.normal(size=(m, n)) * (rng.random((m, n)) < 0.5), 5 * rng.random(m)
        objective = rng.normal(size=n)
        bounds = np.column_stack([np.zeros(n), rng.choice([1.0, 5.0], n)])
        theirs = linprog(objective, rows, limits, bounds=bounds, method="highs")
        ours = minimised(objective, rows, limits, bounds)
        assert ours is not None
        assert objective @ ours.values == pytest.approx(theirs.fun, abs=1e-9)
        assert ours.marginals == pytest.approx(theirs.ineqlin.marginals, abs=1e-9)


def test_without_a_least_value_there_is_no_solution_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    rows = np.zeros((1, 1))
    assert minimised(np.array([-1.0]), rows, np.array([1.0]), np.array([[0.0, np.inf]])) is None
    assert minimised(np.array([1.0]), rows, np.array([-1.0]), np.array([[0.0, 1.0]])) is None  # nothing is allowed
    assert capfd.readouterr() == ("", "")
