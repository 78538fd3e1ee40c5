"""The figures of a table: means, differences from a baseline, and the best cells."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.table.metrics import figure_of
from experiments.table.replicates import sampling
from experiments.table.select import Label, Place, Selection, nearest, shown, value_of
from framework.errors import InputError
from framework.metrics.figure import Metric
from framework.metrics.statistics import LEVEL, Comparison, Estimate, Floats, compare, estimate, holm, least_p
from framework.run.store import Record

_SETTINGS_OF_LOAD = ("trace.", "trace_source", "load.", "slo.")
_SAME = 1e-12  # relative: means that differ only by rounding


@dataclass(frozen=True)
class Difference:
    """A cell against its baseline, replicate by replicate.

    `change`: the mean relative change in %, NaN if undefined. `p`: adjusted for the number of comparisons of the
    metric, NaN if it is not tested. `can_tell`: whether there are enough pairs for that many comparisons.
    """

    baseline: Place
    comparison: Comparison
    change: float
    p: float
    can_tell: bool

    @property
    def is_significant(self) -> bool:
        return self.p <= LEVEL

    @property
    def is_doubtful(self) -> bool:
        """Whether its interval excludes 0 but cannot be trusted; only for tested ones."""
        return not math.isnan(self.p) and self.comparison.is_doubtful


@dataclass(frozen=True)
class Cell:
    """One metric of the runs of a cell: `values`, one for each replicate, NaN if undefined.

    The mean is NaN if a value is; the interval is NaN without two values that differ. `is_best`: among the runs on the
    same requests; `is_near_best`: not the best, but not distinguished from it either.
    """

    values: Mapping[Any, float]
    level: Estimate
    difference: Difference | None
    is_best: bool
    is_near_best: bool

    @property
    def undefined(self) -> int:
        return sum(math.isnan(value) for value in self.values.values())


@dataclass(frozen=True)
class Baseline:
    """The baseline: the row, or with `in_columns` the column, with `fixed` values at these places."""

    word: str
    in_columns: bool
    fixed: Mapping[int, Any]

    def of(self, place: Place) -> Place:
        """The place with which this one is compared; a place of the baseline is compared with itself."""
        row, column = place
        return (row, self._fix(column)) if self.in_columns else (self._fix(row), column)

    def _fix(self, one: Label) -> Label:
        return tuple(self.fixed.get(place, value) for place, value in enumerate(one))


@dataclass(frozen=True)
class Figures:
    """`cells[metric key][row, column]` of a selection.

    `in_columns`: cells are compared along a row.
    """

    selection: Selection
    metrics: Sequence[Metric]
    baseline: Baseline | None
    in_columns: bool
    cells: Mapping[str, Mapping[Place, Cell]]


def read_baseline(text: str, selection: Selection) -> Baseline:
    """The baseline that `text` names: values of some keys of the rows, or else of the columns, as in "chunked".

    Raises InputError if there are none.
    """
    texts = text.split(",")
    for in_columns, axis in ((False, selection.rows), (True, selection.columns)):
        fixed: dict[int, Any] = {}
        for word in texts:
            for place in range(len(axis.keys)):
                found = [one[place] for one in axis.labels if shown(one[place]) == word]
                if found and place not in fixed:
                    fixed[place] = found[0]
                    break
        if len(fixed) == len(texts):
            return Baseline(text, in_columns, fixed)
    known = {shown(value) for axis in (selection.rows, selection.columns) for one in axis.labels for value in one}
    raise InputError(
        f"baseline={text}: neither a row nor a column; {nearest(text, known)}there are {', '.join(sorted(known))}"
    )


def figures(selection: Selection, metrics: Sequence[Metric], baseline: Baseline | None) -> Figures:
    """All cells. Raises InputError for a baseline with which runs cannot be paired."""
    groups = {in_columns: _comparable(selection, in_columns=in_columns) for in_columns in (False, True)}
    if baseline is not None:
        _require_pairs(selection, baseline)
        in_columns = baseline.in_columns
    else:
        in_columns = all(len(group) == 1 for group in groups[False])
    cells = {metric.key: _cells(selection, metric, baseline, groups[in_columns]) for metric in metrics}
    return Figures(selection, metrics, baseline, in_columns, cells)


def pairs_needed(comparisons: int) -> int:
    """The fewest replicates with which one of that many comparisons could be significant."""
    return next(pairs for pairs in range(2, 100) if least_p(pairs) * comparisons <= LEVEL)


def _cells(
    selection: Selection, metric: Metric, baseline: Baseline | None, groups: Sequence[Sequence[Place]]
) -> dict[Place, Cell]:
    values = {place: _values(runs, metric) for place, runs in selection.cells.items()}
    levels = {place: _level(own) for place, own in values.items()}
    sampled = {place for place, runs in selection.cells.items() if sampling(runs)}
    baselines = {} if baseline is None else {place: baseline.of(place) for place in values}
    differences = _differences(values, baselines, sampled)
    best, near = set[Place](), set[Place]()
    for group in groups if metric.better else ():
        defined = [place for place in group if not math.isnan(levels[place].mean)]
        found = _best(defined, levels, metric.better)
        if len(found) < len(defined):
            best |= set(found)
            against = _differences(values, dict.fromkeys(defined, found[0]), sampled)
            near |= {place for place, one in against.items() if _is_near(one)} - best
    return {
        place: Cell(own, levels[place], differences.get(place), place in best, place in near)
        for place, own in values.items()
    }


def _values(runs: Mapping[Any, Record], metric: Metric) -> dict[Any, float]:
    found = ((replicate, figure_of(record.summary, metric.key)) for replicate, record in runs.items())
    return {replicate: math.nan if value is None else float(value) for replicate, value in found}


def _level(values: Mapping[Any, float]) -> Estimate:
    own = np.fromiter(values.values(), np.float64)
    found = estimate(own)
    return found if len(set(own)) > 1 else Estimate(found.mean, math.nan)


def _differences(
    values: Mapping[Place, Mapping[Any, float]], baselines: Mapping[Place, Place], sampled: Collection[Place]
) -> dict[Place, Difference]:
    """Each place compared with its baseline, if there is one and they share replicates; tested if these are samples."""
    found: dict[Place, tuple[Place, Floats, Floats]] = {}
    for place, other in baselines.items():
        own = values[place]
        shared = [replicate for replicate in own if replicate in values.get(other, {})]
        if other == place or not shared:
            continue
        ours, theirs = (np.asarray([one[replicate] for replicate in shared]) for one in (own, values[other]))
        if not (np.isnan(ours) | np.isnan(theirs)).any():
            found[place] = (other, ours, theirs)
    compared = {place: compare(ours - theirs) for place, (_, ours, theirs) in found.items()}
    compared |= {place: replace(one, p=math.nan) for place, one in compared.items() if place not in sampled}
    adjusted = dict(zip(compared, holm([one.p for one in compared.values()]), strict=True))
    tests = sum(not math.isnan(p) for p in adjusted.values())
    return {
        place: Difference(
            other, compared[place], _change(ours, theirs), adjusted[place], tests * least_p(len(ours)) <= LEVEL
        )
        for place, (other, ours, theirs) in found.items()
    }


def _change(ours: Floats, theirs: Floats) -> float:
    return float(100 * (ours / theirs - 1).mean()) if theirs.all() else math.nan


# --- the best ---------------------------------------------------------------------------------------------------------


def _comparable(selection: Selection, *, in_columns: bool) -> list[list[Place]]:
    """Places along each row, or column, whose runs had the same requests, load and SLO."""
    groups: dict[tuple[Any, ...], list[Place]] = {}
    for place, runs in selection.cells.items():
        load = [_load(record, selection.replicate) for record in list(runs.values())[:1]]
        groups.setdefault((place[0] if in_columns else place[1], *load), []).append(place)
    return list(groups.values())


def _load(record: Record, replicate: str) -> tuple[Any, ...]:
    own = value_of(record, replicate)
    settings = (
        (key, value_of(record, key))
        for key in sorted(record.config)
        if key.startswith(_SETTINGS_OF_LOAD) and key != replicate
    )
    kept = tuple((key, value) for key, value in settings if key != "trace.seed" or value != own)
    return (record.summary.get("trace"), record.summary.get("trace_source"), *kept)


def _best(places: Sequence[Place], levels: Mapping[Place, Estimate], better: int) -> list[Place]:
    """The place with the best mean, and those with the same one."""
    highest = max((better * levels[place].mean for place in places), default=math.nan)
    return [place for place in places if better * levels[place].mean >= highest - _SAME * abs(highest)]


def _is_near(difference: Difference) -> bool:
    """Whether a test that could have distinguished the cell from the best did not."""
    return difference.can_tell and not math.isnan(difference.p) and not difference.is_significant


def _require_pairs(selection: Selection, baseline: Baseline) -> None:
    """Raise InputError if a cell and its baseline had other requests, load or SLO, unless an axis states that."""
    axes = {*selection.rows.keys, *selection.columns.keys}
    for place, runs in selection.cells.items():
        others = selection.cells.get(baseline.of(place), {})
        for replicate in [one for one in runs if one in others][:1]:
            one, other = runs[replicate], others[replicate]
            differing = [
                f"{key} ({shown(value_of(one, key))}, {shown(value_of(other, key))})"
                for key in (*sorted({*one.config, *other.config}), "trace_source")
                if key.startswith(_SETTINGS_OF_LOAD) and not {key, key.split(".")[0]} & (axes - {"trace"})
                if value_of(one, key) != value_of(other, key)
            ]
            if differing:
                name = ", ".join(shown(value) for label in place for value in label)
                raise InputError(
                    f"baseline={baseline.word}: {name} and its baseline differ in {differing[0]}, which leaves nothing"
                    " to pair; choose runs that agree, or another baseline"
                )
