"""One setting moved while the others stay as tuned: chunk size, P:D, most sequences; and P:D against prefix hits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from experiments.guide.axes import Value
from experiments.guide.families import Family
from experiments.guide.runs import Runs
from experiments.guide.samples import Floats, Samples
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

    def settings(self, runs: Runs, moves: Iterable[tuple[float, str, Sequence[str]]]) -> tuple[Setting, ...]:
        """The settings that could be searched, of moves by value, label and arguments."""
        own = self.family.arguments(self.overrides)
        found = (
            (value, label, self.samples.searched(runs, (*own, *arguments), self.start_rps))
            for value, label, arguments in moves
        )
        return tuple(
            Setting(value, label, one.values, one.is_settled, one.tpot_ms)
            for value, label, one in found
            if one is not None
        )


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
    family = around.family
    points = values_around(runs, family, around.best)
    moves = ((value, _label(point, value), point.overrides) for value, point in points)
    return Knob(family, family.knob, family.knob_label, around.settings(runs, moves))


def of_batch(runs: Runs, around: Around) -> Knob:
    """The most sequences on an instance; for disaggregated families on decode instances, because prefill
    instances seldom have many.
    """
    best = around.best.overrides
    moves = ((batch, f"{batch:,}", (*best, f"engine.max_batch={batch}")) for batch in BATCHES)
    return Knob(around.family, "engine.max_batch", "sequences of an instance at most", around.settings(runs, moves))


def against_hits(runs: Runs, around: Around, values: Sequence[Value]) -> list[tuple[Value, Knob]]:
    """The family's knob at each share of cached prompts."""
    return [
        (value, of_space(runs, replace(around, overrides=(*around.overrides, *value.overrides)))) for value in values
    ]


def _label(point: Point, value: float) -> str:
    if "cluster.prefill" in point.settings:
        return f"{point.settings['cluster.prefill']}:{point.settings['cluster.decode']}"
    return f"{value:,.0f}"
