"""Ticks of a run in which nothing happens for long: the rule that both engines share."""

from __future__ import annotations

import math

from framework.compiler.decorators import inner
from framework.errors import MOST_S, require_number

LEAST_TICK_S = 1e-5
MOST_QUIET_TICKS = 1000  # in a row that are asked though nothing can come of the time but an arrival


def require_tick(policy: str, tick_s: float) -> None:
    """Raise InputError unless ticks come at a period that a run can end with."""
    require_number(f"policy {policy}: tick_s", tick_s, LEAST_TICK_S, MOST_S)


@inner
def first_tick(time_s: float, tick_s: float) -> int:
    """The number of the first tick that is not before `time_s`."""
    number = max(math.ceil(time_s / tick_s), 1)
    while number > 1 and (number - 1) * tick_s >= time_s:
        number -= 1
    while number * tick_s < time_s:
        number += 1
    return number
