"""Linear programs, by HiGHS.

Its own package `highspy` is imported in a twentieth of the time that `scipy.optimize.linprog` takes, which calls the
same solver; that time would be a sixth of a whole run's.
"""

from __future__ import annotations

from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Solution(NamedTuple):
    """The best values (n,), and by how much the objective would change for each unit more of a limit (m,): 0 or less,
    as more room makes it no larger.
    """

    values: Floats
    marginals: Floats


def minimised(objective: Floats, rows: Floats, limits: Floats, bounds: Floats) -> Solution | None:
    """The x (n,) of least `objective @ x` with `rows @ x <= limits` and `bounds[:, 0] <= x <= bounds[:, 1]`; None where
    the solver finds none.

    `objective` (n,), `rows` (m, n), `limits` (m,), `bounds` (n, 2); inf and -inf are no bound.
    """
    count, free = len(limits), np.full(len(limits), -np.inf)
    at, columns = np.nonzero(rows)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(objective), count
    program.col_cost_, program.col_lower_, program.col_upper_ = objective, bounds[:, 0], bounds[:, 1]
    program.row_lower_, program.row_upper_ = free, limits
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=count))])
    program.a_matrix_.index_ = columns
    program.a_matrix_.value_ = rows[at, columns]
    solver = highspy.Highs()
    solver.silent()
    solver.passModel(program)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    found = solver.getSolution()
    return Solution(np.array(found.col_value, np.float64), np.array(found.row_dual, np.float64))
