"""The unit in which times make sense: by their year, and by the rate."""

from __future__ import annotations

import math

from traces.parsing.how import TICKS_PER_S

FASTEST_RPS, SLOWEST_RPS = 1000.0, 0.01  # plausible rates of a recording; another rate more likely means a wrong unit
ENOUGH, FEW = 100, 3  # least requests from which a high and a low rate say something
LONGEST_S = 1e8  # three years
KNOWN_YEARS = (2010.0, 2040.0)  # years in which requests to language models were recorded
LAST_YEAR = 2100.0
YEAR_S = 365.2425 * 86400.0


def likely_unit(first: float, span: float, requests: int, but: str = "") -> str | None:
    """The unit, not `but`, in which nothing is absurd about times that begin at `first` and end `span` later."""
    return next((unit for unit in TICKS_PER_S if unit != but and is_plausible(first, span, requests, unit)), None)


def is_plausible(first: float, span: float, requests: int, unit: str) -> bool:
    """Whether nothing is absurd about these times as ticks of `unit`."""
    if (epochs := epoch_units(first)) and unit not in epochs:
        return False
    span_s = span / TICKS_PER_S[unit]
    rate = (requests - 1) / span_s if span_s > 0 else math.inf
    is_fast = requests >= ENOUGH and rate >= FASTEST_RPS
    is_slow = requests >= FEW and rate < SLOWEST_RPS
    return not is_fast and not is_slow and span_s <= LONGEST_S and year(first / TICKS_PER_S[unit]) <= LAST_YEAR


def epoch_units(first: float) -> list[str]:
    """The units in which a time would be one since 1970 in a possible year."""
    return [unit for unit, per_s in TICKS_PER_S.items() if KNOWN_YEARS[0] <= year(first / per_s) <= KNOWN_YEARS[1]]


def year(since_1970_s: float) -> float:
    """The year of a time."""
    return math.floor(1970.0 + since_1970_s / YEAR_S)
