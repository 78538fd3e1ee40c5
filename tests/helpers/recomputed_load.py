"""Whether a run kept up with its load, computed a second time by docs/clock.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tests.helpers.reported import Row


class Sent(NamedTuple):
    """A request that was sent, not turned away, and counts."""

    at_s: float
    in_system_s: float
    waited_s: float


class Part(NamedTuple):
    """A twentieth of the window with arrivals: its begin, how many, and the means of these."""

    at_s: float
    arrivals: int
    in_system_s: float
    waited_s: float


class Load(NamedTuple):
    """`load_state` and `latency_growth`; `is_at_end`: it is overloaded at the end of its window alone."""

    name: str | None
    growth: float | None
    is_at_end: bool = False


def load(rows: Sequence[Row], end_s: Sequence[float], window: tuple[float, float], is_short: bool) -> Load:
    """Of counted rows of requests.parquet, which ended then, and the window's ends; where these are infinite the end of
    the run decides.
    """
    if not math.isfinite(window[1]):
        return Load(None, None)
    sent = [
        Sent(
            row["arrival_s"],
            end - row["arrival_s"],
            end - row["arrival_s"] if row["queue_s"] is None else row["queue_s"],
        )
        for row, end in zip(rows, end_s, strict=True)
        if row["arrival_s"] is not None and window[0] <= row["arrival_s"] <= window[1] and row["state"] != "rejected"
    ]
    parts = _parts(sent, *window)
    if len(sent) < 100 or len(parts) < 10:
        return Load(None, None)
    length_s = window[1] - window[0]
    in_system = [(part.at_s, part.in_system_s) for part in parts]
    waits = [(part.at_s, part.waited_s) for part in parts]
    for points in [waits] if is_short else [in_system, waits]:
        if _has_trend(points, length_s):
            return Load("overloaded", _slope(points))
    if (growth := _growth_at_end(parts, length_s)) is not None:
        return Load("overloaded", growth, is_at_end=True)
    backlogged = any(part.waited_s > part.in_system_s - part.waited_s for part in parts)
    return Load("backlogged" if backlogged else "stable", _slope(in_system))


def _parts(sent: Sequence[Sent], from_s: float, to_s: float) -> list[Part]:
    found, width_s = [], (to_s - from_s) / 20
    for k in range(20):
        own = [one for one in sent if min(int((one.at_s - from_s) / width_s), 19) == k]
        if own:
            means = (statistics.fmean(one.in_system_s for one in own), statistics.fmean(one.waited_s for one in own))
            found.append(Part(k * width_s, len(own), *means))
    return found


def _slope(points: Sequence[tuple[float, float]]) -> float:
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _has_trend(points: Sequence[tuple[float, float]], length_s: float) -> bool:
    at_s, times_s = zip(*points, strict=True)
    slope, intercept = statistics.linear_regression(at_s, times_s)
    unexplained = sum((time_s - slope * x - intercept) ** 2 for x, time_s in points)
    spread = len(at_s) * statistics.pvariance(at_s)
    standard_error = math.sqrt(unexplained / (len(at_s) - 2) / spread)
    if slope - 2.1 * standard_error <= 0.01 or slope * length_s <= min(times_s):
        return False
    return _slope(points[len(points) // 2 :]) > 0.01


def _growth_at_end(parts: Sequence[Part], length_s: float) -> float | None:
    """None where the wait does not begin to grow there, or a burst explains it."""
    before, (first, second, third) = parts[:-3], parts[-3:]
    if not max(part.waited_s for part in before) < first.waited_s < second.waited_s < third.waited_s:
        return None
    usual_s = sum(part.arrivals * part.waited_s for part in before) / sum(part.arrivals for part in before)
    if third.waited_s <= 2 * usual_s or third.waited_s - usual_s <= 0.01 * length_s:
        return None
    growth = (third.waited_s - first.waited_s) / (third.at_s - first.at_s)
    rate = statistics.fmean(part.arrivals for part in parts)
    return growth if statistics.fmean(part.arrivals for part in parts[-3:]) < (1 + growth) * rate else None
