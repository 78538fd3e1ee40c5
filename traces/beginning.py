"""Whether the first requests of a trace represent the whole trace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST_CHANGE = 0.10  # largest relative change of a mean or the rate
LARGEST_POINTS = 0.05  # largest change of the share of repeated prompt blocks
ERRORS = 3.0  # standard errors by which random requests would differ


@dataclass(frozen=True)
class Rows:
    """Requests in order of arrival, arrays of one length. `repeated`: share of hash blocks that came before, or NaN."""

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    repeated: float = math.nan


def unlike(kept: Rows, whole: Rows) -> str:
    """How the first requests, `kept`, differ from all, `whole`; empty if they do not.

    They differ if a mean or a rate is off by more than LARGEST_CHANGE, and by more than chance, or a share of repeated
    blocks by more than LARGEST_POINTS.
    """
    found = []
    for kind, column in (("prompts", "input_tokens"), ("outputs", "output_tokens")):
        values, every = getattr(kept, column), getattr(whole, column)
        error = float(every.std()) / math.sqrt(len(values))
        if _differ(float(values.mean()), float(every.mean()), error):
            found.append(f"{kind} of {values.mean():,.0f} tokens on average (all: {every.mean():,.0f})")
    rate, mean_rate = _rate_rps(kept), _rate_rps(whole)
    if math.isfinite(rate) and _differ(rate, mean_rate, mean_rate / math.sqrt(len(kept.arrival_s))):
        found.append(f"recorded at {rate:.3g} requests/s (all: {mean_rate:.3g})")
    if abs(kept.repeated - whole.repeated) > LARGEST_POINTS:
        found.append(f"{100 * kept.repeated:.0f} % of hash blocks came before (all: {100 * whole.repeated:.0f} %)")
    if not found:
        return ""
    count, total = len(kept.arrival_s), len(whole.arrival_s)
    return f"the first {count:,} of {total:,} requests are unlike the rest: {', '.join(found)}"


def _differ(value: float, reference: float, error: float) -> bool:
    return abs(value - reference) > max(LARGEST_CHANGE * reference, ERRORS * error)


def _rate_rps(rows: Rows) -> float:
    span = float(rows.arrival_s[-1] - rows.arrival_s[0])
    return (len(rows.arrival_s) - 1) / span if span > 0 else math.inf
