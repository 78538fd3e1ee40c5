"""Linear programs, by HiGHS.

It calls HiGHS through `highspy`, which is imported in a twentieth of the time of `scipy.optimize.linprog`, a caller of
the same solver; the difference would be a sixth of a whole run's time.
"""

from __future__ import annotations

from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Solution(NamedTuple):
    """The best values (n,), and the change of the objective for each unit added to a limit (m,): 0 or less, since a
    wider limit cannot make the objective larger.
    """

    values: Floats
    marginals: Floats


def minimised(objective: Floats, rows: Floats, limits: Floats, bounds: Floats) -> Solution | None:
    """The x (n,) with the least `objective @ x`, `rows @ x <= limits` and `bounds[:, 0] <= x <= bounds[:, 1]`; None if
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
