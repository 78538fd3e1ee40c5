"""Limits of each request, by its class: shared by policies that are told the SLO."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from framework.checks import require_positive
from framework.errors import InputError

Limits = Callable[[NDArray[np.int64]], NDArray[np.float64]]


def limits_s(setting: str, of_all_s: float | None, of_classes_s: Sequence[float | None] | None) -> Limits:
    """What makes classes to limits in seconds: `of_all_s`, or those of `setting` in the order of the classes' names.

    None is no limit. Raises InputError for a limit that is not a positive number, and later for a class without one.
    """
    given = [of_all_s] if of_classes_s is None else list(of_classes_s)
    for limit in given:
        if limit is not None:
            require_positive(setting, limit)
    values = np.array([np.inf if limit is None else float(limit) for limit in given])

    def of(classes: NDArray[np.int64]) -> NDArray[np.float64]:
        if of_classes_s is None:
            return np.full(len(classes), values[0])
        count = int(classes.max(initial=0)) + 1
        if len(values) < count:
            raise InputError(f"{setting} has {len(values)} limits; the trace has {count} classes")
        return np.asarray(values[classes])

    return of
