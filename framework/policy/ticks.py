"""The periods of ticks, and the number of useless ticks in a row. Both engines follow it."""

from __future__ import annotations

from framework.checks import MOST_S, require_number

LEAST_TICK_S = 1e-5
MOST_QUIET_TICKS = 1000  # most ticks in a row with nothing to follow but an arrival or the end of a copy


def require_tick(policy: str, tick_s: float) -> None:
    """Raise InputError unless ticks come at a period with which a run can end."""
    require_number(f"policy {policy}: tick_s", tick_s, LEAST_TICK_S, MOST_S)
