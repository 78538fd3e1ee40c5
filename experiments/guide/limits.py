"""The tightest SLO that each family holds at a given rate: limits on TTFT and TPOT that 90 % of requests keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.guide.families import Family
from experiments.guide.runs import Runs
from experiments.guide.tuning import Task, tuned
from framework.run.store import Record

SHARE = 0.5  # of the highest rate of the best


@dataclass(frozen=True)
class Hold:
    """One configuration: the limits, ms, each of which 90 % of the requests keep.

    `scale`: the least factor on the limits of the SLO with which both are still kept so.
    """

    settings: Mapping[str, Any]
    ttft_ms: float
    tpot_ms: float
    scale: float


@dataclass(frozen=True)
class Front:
    """The configurations of a family that keep the SLO and that no other one of it beats in both limits, by TTFT."""

    family: Family
    holds: tuple[Hold, ...]

    @property
    def tightest(self) -> Hold | None:
        """That with the least factor on both limits."""
        return min(self.holds, key=lambda hold: hold.scale, default=None)


def fronts(runs: Runs, families: Sequence[Family], rate_rps: float, trials: int, seed: int) -> list[Front]:
    """Every family at that rate, tuned equally for the least factor on both limits."""
    limits_s = (runs.base.settings["slo.ttft_s"], runs.base.settings["slo.tpot_s"])
    task = Task(
        ("objective=goodput", f"trace.rate={rate_rps:.6g}"), lambda record: -_scale(record, limits_s), trials, seed
    )
    found = []
    for family in families:
        records = [(trial.point.settings, trial.record) for trial in tuned(runs, family, task).trials]
        holds = [
            Hold(settings, *_latencies_ms(record), _scale(record, limits_s))
            for settings, record in records
            if record is not None and _scale(record, limits_s) <= 1
        ]
        kept = [one for one in holds if not any(_beats(other, one) for other in holds)]
        found.append(Front(family, tuple(sorted(kept, key=lambda hold: (hold.ttft_ms, hold.tpot_ms)))))
    return found


def _latencies_ms(record: Record) -> tuple[float, float]:
    """TTFT and TPOT at P90, inf where undefined."""
    found = (record.summary.get(name) for name in ("p90_ttft_ms", "p90_tpot_ms"))
    ttft_ms, tpot_ms = (float("inf") if one is None else float(one) for one in found)
    return ttft_ms, tpot_ms


def _scale(record: Record, limits_s: tuple[float | None, float | None]) -> float:
    pairs = zip(_latencies_ms(record), limits_s, strict=True)
    return max((found / (1e3 * limit) for found, limit in pairs if limit is not None), default=0.0)


def _beats(one: Hold, other: Hold) -> bool:
    """Whether `one` is as tight in both limits and tighter in one."""
    pairs = (one.ttft_ms, other.ttft_ms), (one.tpot_ms, other.tpot_ms)
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
