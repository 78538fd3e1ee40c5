"""The tightest SLO that each family holds at a given rate: limits on TTFT and TPOT that 90 % of requests keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.guide.families import Family
from experiments.guide.runs import Runs, at_price
from experiments.guide.samples import Samples
from experiments.guide.tuning import Task, tuned
from framework.metrics.statistics import Estimate, estimate
from framework.run.store import Record

SHARE = 0.5  # share of the highest rate of the best


@dataclass(frozen=True)
class Hold:
    """One configuration: the limits, ms, each of which 90 % of the requests keep.

    `scale`: the least factor on the limits of the SLO with which 90 % still keep both.
    """

    settings: Mapping[str, Any]
    ttft_ms: float
    tpot_ms: float
    scale: float


@dataclass(frozen=True)
class Front:
    """The configurations of a family that keep the SLO and that no other one of it beats in both limits, by TTFT.

    `again`: TTFT and TPOT, ms, and scale of the tightest of them on fresh samples; empty if there is none.
    """

    family: Family
    holds: tuple[Hold, ...]
    again: tuple[Estimate, ...] = ()

    @property
    def tightest(self) -> Hold | None:
        """The one with the least factor on both limits."""
        return min(self.holds, key=lambda hold: hold.scale, default=None)


def fronts(runs: Runs, families: Sequence[Family], rate_rps: float, trials: int, samples: Samples) -> list[Front]:
    """Every family at that rate, tuned equally for the least factor on both limits, on the sample of the searches."""
    limits_s = (runs.base.settings["slo.ttft_s"], runs.base.settings["slo.tpot_s"])
    overrides = ("objective=goodput", f"trace.rate={rate_rps:.6g}")
    task = Task(overrides, lambda record, _: -_scale(record, limits_s), trials, samples.seed)
    found = []
    for family in families:
        done = tuned(runs, family, task)
        holds = [
            Hold(trial.point.settings, *_latencies_ms(trial.record), _scale(trial.record, limits_s))
            for trial in done.trials
            if trial.record is not None and _scale(trial.record, limits_s) <= 1
        ]
        kept = [one for one in holds if not any(_beats(other, one) for other in holds)]
        again: list[Record] = []
        if kept and done.best is not None:
            point = done.best.point
            own = at_price(family.arguments(overrides), runs.rate_worth(family, point))
            again = samples.records(runs, (*own, *point.overrides)) or []
        figures = [(*_latencies_ms(record), _scale(record, limits_s)) for record in again]
        estimates = tuple(estimate(np.array(values)) for values in zip(*figures, strict=True))
        found.append(Front(family, tuple(sorted(kept, key=lambda hold: (hold.ttft_ms, hold.tpot_ms))), estimates))
    return found


def _latencies_ms(record: Record) -> tuple[float, float]:
    """TTFT and TPOT at P90, inf if undefined."""
    found = (record.summary.get(name) for name in ("p90_ttft_ms", "p90_tpot_ms"))
    ttft_ms, tpot_ms = (float("inf") if one is None else float(one) for one in found)
    return ttft_ms, tpot_ms


def _scale(record: Record, limits_s: tuple[float | None, float | None]) -> float:
    pairs = zip(_latencies_ms(record), limits_s, strict=True)
    return max((found / (1e3 * limit) for found, limit in pairs if limit is not None), default=0.0)


def _beats(one: Hold, other: Hold) -> bool:
    """Whether `one` is at least as tight in both limits and tighter in one."""
    pairs = (one.ttft_ms, other.ttft_ms), (one.tpot_ms, other.tpot_ms)
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
