"""The runs of the guide: all through one sweep, whose store has earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from experiments.guide.families import Family
from experiments.guide.plan import Plan
from experiments.tune.base import Configuration
from experiments.tune.feasible import Feasibility
from experiments.tune.space import Point, Space
from experiments.tune.space_file import read_space
from framework.errors import InputError
from framework.run.store import Record
from framework.run.sweep import Outcome, Sweep

Progress = Callable[[int, int], None]


class Runs:
    """One sweep for every run, the feasible points of each family, and the progress of the work."""

    def __init__(self, plan: Plan, families: Sequence[Family], progress: Progress | None, expected: int) -> None:
        self.plan = plan
        self.sweep = Sweep(plan.shared, plan.out)
        self.base = Configuration(plan.shared)
        self._progress, self._expected, self._done = progress, expected, 0
        self._records: list[Record] = []
        self._decode_usd: dict[str, float] = {}  # per hour and GPU, of families whose decode GPUs are of another kind
        self.bandwidth_gain = math.nan  # memory bandwidth for a dollar on that kind, over the same on the first
        self._spaces = {family.name: self._space(family, plan.gpus) for family in families}

    def space(self, family: Family) -> Space:
        return self._spaces[family.name][0]

    def feasible(self, family: Family) -> Feasibility:
        """The feasible points in all cells together: no axis of the map changes them."""
        return self._spaces[family.name][1]

    def rate_worth(self, family: Family, point: Point) -> float:
        """What a request/s of a point counts: the price of the given GPUs over that of its own; 1 for one kind."""
        if family.name not in self._decode_usd:
            return 1.0
        price, gpus = float(self.base.settings["gpu.usd_per_hour"]), self.plan.gpus
        others = point.settings["cluster.decode"] * point.settings["cluster.decode_tp"]
        return gpus * price / ((gpus - others) * price + others * self._decode_usd[family.name])

    @property
    def first(self) -> Record:
        """The first run that was not refused, for what all have in common. Raises InputError if all were refused."""
        if not self._records:
            raise InputError("none of the runs could be made")
        return self._records[0]

    def run(self, jobs: Sequence[Sequence[str]]) -> list[Outcome]:
        """Run each job, or find it in the store."""
        outcomes = self.sweep.run(jobs)
        self._done += len(jobs)
        self._records += [one.record for one in outcomes[:1] if one.record is not None and not self._records]
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._expected))
        return outcomes

    def _space(self, family: Family, gpus: int) -> tuple[Space, Feasibility]:
        base = self.base.with_overrides(family.fixed)
        settings = {**base.choices, **base.settings}
        space = read_space(family.space, settings, family.given, {"gpus": str(gpus)})
        if (usd := base.settings.get("cluster.decode_gpu.usd_per_hour")) is not None:
            if min(usd, base.settings["gpu.usd_per_hour"]) <= 0:
                return space, _Unpriced(space, base)
            self._decode_usd[family.name] = float(usd)
            gain = base.settings["cluster.decode_gpu.bandwidth_bytes_s"] / base.settings["gpu.bandwidth_bytes_s"]
            self.bandwidth_gain = gain * base.settings["gpu.usd_per_hour"] / usd
        return space, Feasibility(space, base)


class _Unpriced(Feasibility):
    """That of a family which compares by price, where a kind of GPU has none: no point is feasible."""

    pool = ()  # type: ignore[assignment]

    def nearest_miss(self) -> str:
        return "compared by price; set usd_per_hour of both kinds of GPU (gpu.usd_per_hour, cluster.decode_gpu's)"


def at_price(overrides: Sequence[str], rate_worth: float) -> tuple[str, ...]:
    """The settings, with a `trace.rate` that counts as much as theirs where a request/s counts `rate_worth`."""
    if rate_worth == 1:
        return tuple(overrides)
    named = (word.partition("=") for word in overrides)
    return tuple(
        f"{name}={float(value) / rate_worth:.6g}" if name == "trace.rate" else f"{name}{sign}{value}"
        for name, sign, value in named
    )


def starting_at(rate_rps: float) -> str:
    """The setting that starts a search for the highest rate there: near the end it takes half as many runs."""
    return f"trace.rate={rate_rps:.4g}"


def first_step(ratio: float) -> str:
    """The setting that makes the second rate of a search `ratio` times the first."""
    return f"objective.first_step={ratio:g}"
