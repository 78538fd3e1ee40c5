"""One setting moved while the others stay as tuned: chunk size, P:D, most sequences; and P:D against prefix hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.guide.axes import Value
from experiments.guide.families import Family
from experiments.guide.runs import Runs
from experiments.guide.samples import Floats, Sampled, Samples
from experiments.tune.space import Point
from framework.metrics.statistics import Estimate, compare, estimate

BATCHES = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Setting:
    """One value of a knob: its rates on each sample, (replicates,), and the other fields of
    `experiments.guide.samples`.
    """

    value: float
    label: str
    rates: Floats
    is_settled: bool = True
    tpot_ms: float = float("nan")

    @property
    def estimate(self) -> Estimate:
        return estimate(self.rates)


@dataclass(frozen=True)
class Knob:
    """A setting of a family at several values, in order."""

    family: Family
    name: str
    label: str
    settings: tuple[Setting, ...]

    @property
    def best(self) -> Setting:
        return max(self.settings, key=lambda one: float(one.rates.mean()))

    @property
    def as_good(self) -> tuple[Setting, ...]:
        """The best setting, and those that paired differences do not distinguish from it."""
        return tuple(one for one in self.settings if not self._is_worse(one))

    def _is_worse(self, one: Setting) -> bool:
        difference = compare(self.best.rates - one.rates)
        return difference.mean > 0 and not difference.mean <= difference.half_width  # NaN: they do not vary


@dataclass(frozen=True)
class Around:
    """The centre of the moves: the best of a family; `overrides` make the load, searches begin at `start_rps`."""

    family: Family
    best: Point
    overrides: tuple[str, ...]
    start_rps: float
    samples: Samples

    def sampled(self, runs: Runs, arguments: Sequence[str]) -> Sampled | None:
        return self.samples.searched(runs, (*self.family.arguments(self.overrides), *arguments), self.start_rps)


def values_around(runs: Runs, family: Family, best: Point) -> list[tuple[float, Point]]:
    """The points of the family's space that differ from `best` in its knob alone, by the knob's value."""
    space = runs.space(family)
    knob = next(one for one in space.dimensions if one.name == family.knob)
    others = {label: drawn for label, drawn in best.drawn.items() if label != knob.label}
    found: dict[tuple[str, ...], tuple[float, Point]] = {}
    for point in runs.feasible(family).pool or ():
        if {label: drawn for label, drawn in point.drawn.items() if label != knob.label} == others:
            found[point.overrides] = (float(knob.value(point.drawn[knob.label])), point)
    return sorted(found.values(), key=lambda one: one[0])


def of_space(runs: Runs, around: Around) -> Knob:
    """The family's own knob, at each of its values."""
    family, settings = around.family, []
    for value, point in values_around(runs, family, around.best):
        found = around.sampled(runs, point.overrides)
        if found is not None:
            settings.append(_setting(value, _label(point, value), found))
    return Knob(family, family.knob, family.knob_label, tuple(settings))


def of_batch(runs: Runs, around: Around) -> Knob:
    """The most sequences on an instance; for disaggregated families on decode instances, because prefill
    instances seldom have many.
    """
    settings = []
    for batch in BATCHES:
        found = around.sampled(runs, (*around.best.overrides, f"engine.max_batch={batch}"))
        if found is not None:
            settings.append(_setting(batch, f"{batch:,}", found))
    return Knob(around.family, "engine.max_batch", "sequences of an instance at most", tuple(settings))


def against_hits(runs: Runs, around: Around, values: Sequence[Value]) -> list[tuple[Value, Knob]]:
    """The family's knob at each share of cached prompts."""
    return [
        (value, of_space(runs, replace(around, overrides=(*around.overrides, *value.overrides)))) for value in values
    ]


def _setting(value: float, label: str, found: Sampled) -> Setting:
    return Setting(value, label, found.values, found.is_settled, found.tpot_ms)


def _label(point: Point, value: float) -> str:
    if "cluster.prefill" in point.settings:
        return f"{point.settings['cluster.prefill']}:{point.settings['cluster.decode']}"
    return f"{value:,.0f}"
