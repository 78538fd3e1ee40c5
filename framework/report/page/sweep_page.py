"""The page of a sweep: curves over swept settings, maps of two settings, and goodput against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.metrics.figure import Metric
from framework.metrics.figures import HEADLINE, metric
from framework.metrics.load_state import OVERLOADED
from framework.report.load_words import MEANS, SHORT, SHORT_MEANS, has_short_window, is_overloaded, load_state
from framework.report.page.chart import Chart
from framework.report.page.heat_map import heat_map
from framework.report.page.markup import Cell, Chapter, Legend, Sheet, figure, grid, page, text
from framework.report.page.scale import fitting, from_zero
from framework.report.sweep_groups import mean_of

Floats = NDArray[np.float64]
_LINES = 8  # lines of a picture, one colour each
_MOST_ROWS = 500
_MAPS = 4
CURVES = (HEADLINE, "slo_attainment", "p99_ttft_ms", "p99_tpot_ms")  # keys of the summary
_COLUMNS = (*CURVES, "gpus", "usd_per_million_good_tokens")


@dataclass(frozen=True)
class Point:
    """A run of a sweep: its own `settings`, by name, and its summary."""

    settings: Mapping[str, str]
    summary: Mapping[str, Any]


def sweep_page(points: Sequence[Point], title: str, unfinished: int) -> str:
    """The page as HTML; `unfinished`: how many runs of the sweep left no summary.

    Runs that differ only in their seeds count as one, with the means of their figures.
    """
    merged = _over_seeds(points)
    axes = _axes(merged)
    numeric = [axis for axis in axes if _is_numeric(merged, axis)]
    chapters = [
        Chapter(
            "curves", "Curves", _curves(merged, axes, numeric) or None, "each line the runs that differ in this alone"
        ),
        Chapter(
            "maps", "Maps of goodput", _maps(merged, axes, numeric) or None, "the best run of each pair of settings"
        ),
        Chapter("pareto", "Goodput against cost", _pareto(merged, axes)),
        Chapter("runs", "All runs", _table(merged, axes), "the highest goodput first"),
    ]
    counts = f"{len(points):,} runs" + (f", {len(merged):,} but for their seeds" if len(merged) < len(points) else "")
    said = [f"{counts}; swept: {', '.join(axes) or 'nothing but seeds'}"]
    said += [f"{unfinished:,} of its runs left no summary"] if unfinished else []
    lines = "".join(f'<p class="sub">{text(line)}</p>' for line in said)
    rows = [{"words": dict(one.settings), "goodput": one.summary[HEADLINE]} for one in merged]
    return page(title, f"<h1>{text(title)}</h1>{lines}", chapters, ("runs", rows))


def _over_seeds(points: Sequence[Point]) -> list[Point]:
    alike: dict[tuple[tuple[str, str], ...], list[Point]] = {}
    for one in points:
        kept = tuple((name, value) for name, value in one.settings.items() if name.split(".")[-1] != "seed")
        alike.setdefault(kept, []).append(one)
    return [Point(dict(settings), mean_of([one.summary for one in own])) for settings, own in alike.items()]


def _axes(points: Sequence[Point]) -> list[str]:
    """The settings in which runs differ, in the order of their first settings."""
    names = dict.fromkeys(name for one in points for name in one.settings)
    return [name for name in names if len({one.settings.get(name) for one in points}) > 1]


def _is_numeric(points: Sequence[Point], axis: str) -> bool:
    """Whether its values are numbers, at least three of them."""
    values = {_number(one.settings.get(axis)) for one in points}
    return None not in values and len(values) >= 3


def _number(word: str | None) -> float | None:
    try:
        value = float(word) if word is not None else float("nan")
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _label(one: Point, axes: Sequence[str]) -> str:
    """The values of these settings in a run; names of policies stand alone."""
    settings = [one.settings[axis] if axis == "policy" else f"{axis.split('.')[-1]}={one.settings[axis]}"
             for axis in axes if axis in one.settings]  # fmt: skip
    return " ".join(settings) or "all"


# --- curves -----------------------------------------------------------------------------------------------------------


def _curves(points: Sequence[Point], axes: Sequence[str], numeric: Sequence[str]) -> str:
    drawn = []
    for axis in numeric:
        others = [one for one in axes if one != axis]
        lines: dict[str, list[Point]] = {}
        for one in points:
            lines.setdefault(_label(one, others), []).append(one)
        long = {name: own for name, own in lines.items() if len(own) > 1}
        best = sorted(long, key=lambda name: -max(one.summary[HEADLINE] for one in long[name]))[:_LINES]
        chosen = {name: long[name] for name in lines if name in best}
        if chosen:
            left = len(long) - len(chosen)
            drawn += [_curve(axis, chosen, metric(key), left) for key in CURVES]
    return grid(drawn) if drawn else ""


def _curve(axis: str, lines: Mapping[str, list[Point]], shown: Metric, left: int) -> str:
    name = f"{shown.short[:1].upper()}{shown.short[1:]}"
    places = sorted({_number(one.settings[axis]) or 0.0 for own in lines.values() for one in own})
    at = {place: column for column, place in enumerate(places)}
    values, overloaded = np.full((len(lines), len(places)), np.nan), np.zeros((len(lines), len(places)), np.bool_)
    for row, own in enumerate(lines.values()):
        for one in own:
            value = shown.of(one.summary)
            values[row, at[_number(one.settings[axis]) or 0.0]] = np.nan if value is None else value
            overloaded[row, at[_number(one.settings[axis]) or 0.0]] = shown.is_latency and is_overloaded([one.summary])
    xs = np.array(places)
    y = fitting(values.ravel()) if shown.is_latency else from_zero(values.ravel())
    chart = Chart(f"{name} over {axis}", fitting(xs) if xs.min() > 0 else from_zero(xs), y, axis, shown.on_page)
    for number, (row_values, hollow) in enumerate(zip(values, overloaded, strict=True)):
        known = np.isfinite(row_values)
        chart.line(xs[known], row_values[known], f"s{number}")
        chart.rings(xs[known & hollow], row_values[known & hollow], f"s{number}")
    note = f"over {axis}" + (f"; {left:,} more lines of lower goodput are left out" if left else "")
    rows: list[list[Cell]] = [
        [place, *(None if np.isnan(value) else float(value) for value in values[:, column])]
        for column, place in enumerate(places)
    ]
    explained = [(MEANS[OVERLOADED], "ring")] if overloaded.any() else []
    legend = Legend([*((line, f"s{number}") for number, line in enumerate(lines)), *explained])
    return figure(
        name, note, chart.html(), legend, Sheet([axis, *(f"{line}: {shown.on_page}" for line in lines)], rows)
    )


# --- maps -------------------------------------------------------------------------------------------------------------


def _maps(points: Sequence[Point], axes: Sequence[str], numeric: Sequence[str]) -> str:
    """Maps of the best goodput at each pair of values, for pairs of settings of which one is a number."""
    pairs = [(one, other) for at, one in enumerate(axes) for other in axes[at + 1 :] if {one, other} & set(numeric)]
    return grid(_map(points, *pair, numeric) for pair in pairs[:_MAPS]) if pairs else ""


def _map(points: Sequence[Point], down: str, across: str, numeric: Sequence[str]) -> str:
    names = [_ordered(points, axis, numeric) for axis in (down, across)]
    best = np.full((len(names[0]), len(names[1])), np.nan)
    for one in points:
        row, column = (own.index(one.settings.get(axis, "–")) for own, axis in zip(names, (down, across), strict=True))
        best[row, column] = np.fmax(best[row, column], one.summary[HEADLINE])
    return heat_map(f"{down} and {across}", metric(HEADLINE).on_page, (down, across), (names[0], names[1]), best)


def _ordered(points: Sequence[Point], axis: str, numeric: Sequence[str]) -> list[str]:
    values = list(dict.fromkeys(one.settings.get(axis, "–") for one in points))
    return sorted(values, key=lambda word: _number(word) or 0.0) if axis in numeric else values


# --- cost -------------------------------------------------------------------------------------------------------------


def frontier(costs: Floats, goodputs: Floats) -> NDArray[np.int64]:
    """Indices of the points without a better one at most as expensive, the cheapest first."""
    order = np.lexsort((-goodputs, costs))
    best = np.maximum.accumulate(np.append(-np.inf, goodputs[order]))[:-1]
    return order[goodputs[order] > best].astype(np.int64)


def _pareto(points: Sequence[Point], axes: Sequence[str]) -> str | None:
    known = [one for one in points if one.summary.get("usd_per_hour")]
    costs = np.array([one.summary["usd_per_hour"] for one in known])
    if len(set(np.round(costs, 6))) < 2:
        return None
    goodputs = np.array([one.summary[HEADLINE] for one in known])
    chosen = frontier(np.round(costs, 6), goodputs)
    x, y = metric("usd_per_hour").on_page, metric(HEADLINE).on_page
    chart = Chart("Goodput against the price of the GPUs", from_zero(costs), from_zero(goodputs), x, y)
    chart.dots(costs, goodputs, "kept")
    chart.line(costs[chosen], goodputs[chosen], "s1")
    rows: list[list[Cell]] = [[_label(known[i], axes), float(costs[i]), float(goodputs[i])] for i in chosen]
    legend = Legend((("a run", "kept"), ("none is cheaper and better", "s1")))
    sheet = Sheet(["none is cheaper and better", x, y], rows)
    drawn = figure("Cost", "of the GPUs, while they are on", chart.html(), legend, sheet)
    return grid([drawn, f"<div>{sheet.html()}</div>"])


def _table(points: Sequence[Point], axes: Sequence[str]) -> str:
    ordered = sorted(points, key=lambda one: -one.summary[HEADLINE])
    rows: list[list[Cell]] = []
    for one in ordered[:_MOST_ROWS]:
        values = (metric(key).of(one.summary) for key in _COLUMNS)
        sign = f" {SHORT}" if has_short_window([one.summary]) else ""
        state = f"{load_state([one.summary]) or '–'}{sign}"
        rows.append([*(one.settings.get(axis, "–") for axis in axes), *values, state])
    more = len(ordered) - len(rows)
    said = [f"{SHORT}: {SHORT_MEANS}."] if has_short_window(one.summary for one in ordered) else []
    said += [f"{more:,} more runs of lower goodput are left out."] if more > 0 else []
    after = "".join(f'<p class="note">{line}</p>' for line in said)
    columns = [*axes, *(metric(key).on_page for key in (*_COLUMNS, "load_state"))]
    return Sheet(columns, rows).html() + after
