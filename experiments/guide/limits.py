"""The tightest SLO that each family holds at a given rate: limits on TTFT and TPOT that 90 % of requests keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.guide.families import Family
from experiments.guide.runs import Runs
from experiments.guide.tuning import Task, tuned
from experiments.tune.goals import Goal

GOALS = (Goal("p90_ttft_ms", False), Goal("p90_tpot_ms", False))
SHARE = 0.5  # of the highest rate of the best


@dataclass(frozen=True)
class Hold:
    """One configuration: the limits, ms, each of which 90 % of the requests keep."""

    settings: Mapping[str, Any]
    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True)
class Front:
    """The configurations of a family that no other one of it beats in both limits, by TTFT."""

    family: Family
    holds: tuple[Hold, ...]


def fronts(runs: Runs, families: Sequence[Family], rate_rps: float, trials: int, seed: int) -> list[Front]:
    """Every family at that rate, tuned equally for both limits at once; of what it tried, what keeps the SLO."""
    limits_s = (runs.base.settings["slo.ttft_s"], runs.base.settings["slo.tpot_s"])
    limits_ms = [math.inf if limit is None else 1e3 * limit for limit in limits_s]
    task = Task(("objective=goodput", f"trace.rate={rate_rps:.6g}"), GOALS, trials, seed)
    found = []
    for family in families:
        one = tuned(runs, family, task)
        rows = [] if one.found is None else one.found.front
        holds = [Hold(row.point.settings, *row.values) for row in rows]
        kept = (hold for hold in holds if hold.ttft_ms <= limits_ms[0] and hold.tpot_ms <= limits_ms[1])
        found.append(Front(family, tuple(sorted(kept, key=lambda hold: hold.ttft_ms))))
    return found
