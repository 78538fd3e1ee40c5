"""Curves of a sweep: a figure of its runs over each swept number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from framework.metrics.figure import Metric
from framework.metrics.figures import HEADLINE, metric
from framework.metrics.load_state import OVERLOADED
from framework.report.load_words import MEANS, is_overloaded
from framework.report.numbers import number
from framework.report.page.chart import MARKS, Chart, Trend
from framework.report.page.markup import Cell, Legend, Sheet, figure, grid
from framework.report.page.scale import fitting, from_zero
from framework.report.page.words import axis_words
from framework.report.sweep_groups import mean_of

CURVES = (HEADLINE, "slo_attainment", "p99_ttft_ms", "p99_tpot_ms")  # keys of the summary


@dataclass(frozen=True)
class Point:
    """A run of a sweep: its own `settings`, by name, its summary, the link to its page, and its name; or several that
    differ in their seeds, with the mean of their figures.
    """

    settings: Mapping[str, str]
    summary: Mapping[str, Any]
    place: str = ""
    name: str = ""
    members: tuple[Point, ...] = ()

    @property
    def runs(self) -> tuple[Point, ...]:
        """Itself, or those of which it is the mean."""
        return self.members or (self,)


def over_seeds(points: Sequence[Point]) -> list[Point]:
    """One point for all runs that differ in their seeds alone."""
    alike: dict[tuple[tuple[str, str], ...], list[Point]] = {}
    for one in points:
        kept = tuple((name, value) for name, value in one.settings.items() if name.split(".")[-1] != "seed")
        alike.setdefault(kept, []).append(one)
    return [
        Point(dict(settings), mean_of([one.summary for one in own]), members=tuple(own))
        for settings, own in alike.items()
    ]


def axes_of(points: Sequence[Point]) -> list[str]:
    """The settings in which runs differ, in the order of their first settings."""
    names = dict.fromkeys(name for one in points for name in one.settings)
    return [name for name in names if len({one.settings.get(name) for one in points}) > 1]


def is_numeric(points: Sequence[Point], axis: str) -> bool:
    """Whether its values are numbers, at least three of them."""
    values = {number_of(one.settings.get(axis)) for one in points}
    return None not in values and len(values) >= 3


def number_of(word: str | None) -> float | None:
    """The value of a setting as a number; None if it is none."""
    try:
        value = float(word) if word is not None else float("nan")
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def label_of(one: Point, axes: Sequence[str]) -> str:
    """The values of these settings in a run; names of policies stand alone."""
    settings = [one.settings[axis] if axis == "policy" else f"{axis.split('.')[-1]}={one.settings[axis]}"
             for axis in axes if axis in one.settings]  # fmt: skip
    return " ".join(settings) or "all"


def curves(points: Sequence[Point], axes: Sequence[str], numeric: Sequence[str]) -> str:
    """Pictures of each figure over each swept number, a line for runs that differ in this number alone."""
    drawn = []
    for axis in numeric:
        others = [one for one in axes if one != axis]
        lines: dict[str, list[Point]] = {}
        for one in points:
            lines.setdefault(label_of(one, others), []).append(one)
        long = {name: own for name, own in lines.items() if len(own) > 1}
        best = sorted(long, key=lambda name: -max(one.summary[HEADLINE] for one in long[name]))[: len(MARKS)]
        chosen = {name: sorted(long[name], key=lambda one: _place(one, axis)) for name in lines if name in best}
        if chosen:
            left = len(long) - len(chosen)
            drawn += [_curve(axis, chosen, metric(key), left) for key in CURVES]
    return grid(drawn) if drawn else ""


def _place(one: Point, axis: str) -> float:
    return number_of(one.settings[axis]) or 0.0


def _curve(axis: str, lines: Mapping[str, list[Point]], shown: Metric, left: int) -> str:
    trends = [_trend(axis, own, shown) for own in lines.values()]
    xs = np.unique(np.concatenate([one.xs for one in trends]))
    ys = np.concatenate([values for one in trends for values in (one.ys, one.low, one.high)])
    name, label = f"{shown.short[:1].upper()}{shown.short[1:]}", axis_words(axis)
    y = fitting(ys) if shown.is_latency else from_zero(ys)
    chart = Chart(f"{name} over {label}", fitting(xs) if xs.min() > 0 else from_zero(xs), y, label, shown.on_page)
    chart.trends(trends)
    seeds = max(len(one.runs) for own in lines.values() for one in own)
    notes = [f"over {label}", f"mean and range over {seeds} seeds" if seeds > 1 else ""]
    notes.append(f"{left:,} more lines of lower goodput are left out" if left else "")
    hollow = any(one.hollow.any() for one in trends)
    entries = [(line, f"s{number} m{number}") for number, line in enumerate(lines)]
    legend = Legend([*entries, *([(f"hollow: {MEANS[OVERLOADED]}", "ring")] if hollow else [])])
    sheet = _table(axis, dict(zip(lines, trends, strict=True)), shown)
    return figure(name, "; ".join(filter(None, notes)), chart.html(), legend, sheet)


def _trend(axis: str, own: Sequence[Point], shown: Metric) -> Trend:
    known = [one for one in own if shown.of(one.summary) is not None]
    every = [[value for run in one.runs if (value := shown.of(run.summary)) is not None] for one in known]
    return Trend(
        np.array([_place(one, axis) for one in known]),
        np.array([shown.of(one.summary) for one in known], np.float64),
        np.array([min(values) for values in every]),
        np.array([max(values) for values in every]),
        np.array([shown.is_latency and is_overloaded([one.summary]) for one in known], np.bool_),
        [_behind(one, values) for one, values in zip(known, every, strict=True)],
    )


def _behind(one: Point, values: Sequence[float]) -> str:
    """The runs of a point, and the range of their values."""
    numbers = [run.name for run in one.runs]
    runs = f"run{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}" if all(numbers) else ""
    spread = f"{number(min(values))} to {number(max(values))}" if min(values) < max(values) else ""
    return ", ".join(filter(None, (runs, spread)))


def _table(axis: str, lines: Mapping[str, Trend], shown: Metric) -> Sheet:
    """A row for each value of the axis: the mean of each line, and its range where there is one."""
    ranged = {name: bool((one.low < one.high).any()) for name, one in lines.items()}
    columns = [axis_words(axis)]
    for name in lines:
        columns += [f"{name}: {shown.on_page}", *(["lowest", "highest"] if ranged[name] else [])]
    rows: list[list[Cell]] = []
    for place in np.unique(np.concatenate([one.xs for one in lines.values()])):
        row: list[Cell] = [float(place)]
        for name, one in lines.items():
            at = np.flatnonzero(one.xs == place)
            cells = (one.ys, one.low, one.high) if ranged[name] else (one.ys,)
            row += [float(values[at[0]]) if len(at) else None for values in cells]
        rows.append(row)
    return Sheet(columns, rows)
