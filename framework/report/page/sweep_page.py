"""The page of a sweep: curves over swept settings, maps of two settings, and goodput against cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from framework.metrics.figures import HEADLINE, metric
from framework.metrics.statistics import estimate
from framework.report.load_words import SHORT, SHORT_MEANS, has_short_window, load_state
from framework.report.numbers import percent
from framework.report.page.bars import BEST, Bar, ranking, varies
from framework.report.page.chart import Chart
from framework.report.page.heat_map import heat_map
from framework.report.page.markup import Cell, Chapter, Legend, Links, Sheet, figure, grid, page, text
from framework.report.page.scale import from_zero
from framework.report.page.sweep_curves import (
    CURVES,
    Point,
    axes_of,
    curves,
    is_numeric,
    label_of,
    number_of,
    over_seeds,
)
from framework.report.page.words import axis_words
from framework.report.sweep_groups import OF_A_GROUP

Floats = NDArray[np.float64]
_MOST_ROWS = 500
_MAPS = 4
_MOST_BARS = 20
_ONE_SEED = "one run each, so without an interval: seed=0,1,2 adds one"
_COLUMNS = (*CURVES, "gpus", "usd_per_million_good_tokens")


def sweep_page(points: Sequence[Point], title: str, unfinished: int, setup: str = "") -> str:
    """The page as HTML; `unfinished`: how many runs of the sweep left no summary; `setup`: model, GPUs and server.

    Runs that differ only in their seeds count as one, with the means of their figures.
    """
    merged = over_seeds(points)
    axes = axes_of(merged)
    numeric = [axis for axis in axes if is_numeric(merged, axis)]
    chapters = [
        Chapter("ranking", "The best", *_ranking(merged, axes)),
        Chapter(
            "curves", "Curves", curves(merged, axes, numeric) or None, "each line the runs that differ in this alone"
        ),
        Chapter(
            "maps", "Maps of goodput", _maps(merged, axes, numeric) or None, "the best run of each pair of settings"
        ),
        Chapter("pareto", "Goodput against cost", _pareto(merged, axes)),
        Chapter("runs", "All runs", _table(merged, axes), "the highest goodput first"),
    ]
    counts = f"{len(points):,} runs" + (f", {len(merged):,} but for their seeds" if len(merged) < len(points) else "")
    policies = ", ".join(dict.fromkeys(str(one.summary["policy"]) for one in points))
    traces = ", ".join(dict.fromkeys(str(one.summary["trace"]) for one in points))
    said = [f"{policies} on {traces}", setup] if points else []
    said += [f"{counts}; swept: {', '.join(axes) or 'nothing but seeds'}"]
    said += [f"{unfinished:,} of its runs left no summary"] if unfinished else []
    lines = "".join(f'<p class="sub">{text(line)}</p>' for line in said if line)
    rows = [{"words": dict(one.settings), "goodput": one.summary[HEADLINE]} for one in merged]
    return page(title, f"<h1>{text(title)}</h1>{lines}", chapters, ("points", rows))


# --- ranking ----------------------------------------------------------------------------------------------------------


def _ranking(points: Sequence[Point], axes: Sequence[str]) -> tuple[str | None, str]:
    """Bars of the best runs and what their intervals are; those that can be compared stand together."""
    if len(points) < 2:
        return None, ""
    ordered = sorted(points, key=lambda one: -one.summary[HEADLINE])
    groups = list(dict.fromkeys(map(_group, ordered)))
    shown = sorted(ordered, key=lambda one: groups.index(_group(one)))[:_MOST_BARS]
    best = _best(points)
    bars = [
        Bar(
            *(label_of(one, axes), one.summary[HEADLINE], _half_width(one)),
            words=f"{percent(one.summary['slo_attainment'])} kept the SLO",
            is_best=any(one is other for other in best),
        )
        for one in shown
    ]
    seeds = max(len(one.runs) for one in points)
    said = f"the mean over {seeds} seeds, ± half of its 95 % interval" if seeds > 1 else _ONE_SEED
    more = f"; {len(points) - len(shown):,} more runs are below" if len(points) > len(shown) else ""
    return ranking("Goodput", bars), f"goodput, {said}{more}"


def _half_width(one: Point) -> float:
    return estimate(np.array([run.summary[HEADLINE] for run in one.runs], np.float64)).half_width


def _group(one: Point) -> tuple[tuple[str, str], ...]:
    """The settings that runs must share to be comparable."""
    return tuple((name, value) for name, value in one.settings.items() if name.startswith(OF_A_GROUP))


def _best(points: Sequence[Point]) -> list[Point]:
    """The runs of the highest goodput among those that they can be compared with."""
    most: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for one in points:
        most.setdefault(_group(one), []).append(one.summary[HEADLINE])
    return [one for one in points if len(most[_group(one)]) > 1 and 0 < one.summary[HEADLINE] == max(most[_group(one)])]


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
    words = axis_words(down), axis_words(across)
    return heat_map(" and ".join(words), metric(HEADLINE).on_page, words, (names[0], names[1]), best)


def _ordered(points: Sequence[Point], axis: str, numeric: Sequence[str]) -> list[str]:
    values = list(dict.fromkeys(one.settings.get(axis, "–") for one in points))
    return sorted(values, key=lambda word: number_of(word) or 0.0) if axis in numeric else values


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
    labels = [label_of(one, axes) for one in known]
    chart.dots(costs, goodputs, "kept", labels)
    chart.line(costs[chosen], goodputs[chosen], "s1", [labels[i] for i in chosen])
    rows: list[list[Cell]] = [[labels[i], float(costs[i]), float(goodputs[i])] for i in chosen]
    legend = Legend((("a run", "kept"), ("none is cheaper and better", "s1")))
    sheet = Sheet(["none is cheaper and better", x, y], rows)
    drawn = figure("Cost", "of the GPUs, while they are on", chart.html(), legend, sheet)
    return grid([drawn, f"<div>{sheet.html()}</div>"])


def _table(points: Sequence[Point], axes: Sequence[str]) -> str:
    ordered = sorted(points, key=lambda one: -one.summary[HEADLINE])
    numeric = [axis for axis in axes if is_numeric(points, axis)]
    linked = any(run.place for one in points for run in one.runs)
    best, wide = _best(points), any(varies(_half_width(one), one.summary[HEADLINE]) for one in points)
    rows: list[list[Cell]] = []
    for one in ordered[:_MOST_ROWS]:
        values: list[Cell] = [metric(key).of(one.summary) for key in _COLUMNS]
        if wide:
            half_width = _half_width(one)
            values.insert(1, half_width if varies(half_width, one.summary[HEADLINE]) else None)
        sign = f" {SHORT}" if has_short_window([one.summary]) else ""
        state = f"{load_state([one.summary]) or '–'}{sign}"
        runs = Links([(run.name, run.place) for run in one.runs])
        first: list[Cell] = [BEST if any(one is other for other in best) else "", *([runs] if linked else [])]
        rows.append([*first, *(_setting(one, axis, numeric) for axis in axes), *values, state])
    more = len(ordered) - len(rows)
    said = [f"{SHORT}: {SHORT_MEANS}."] if has_short_window(one.summary for one in ordered) else []
    said += [f"{more:,} more runs of lower goodput are left out."] if more > 0 else []
    after = "".join(f'<p class="note">{line}</p>' for line in said)
    named = [metric(key).on_page for key in (*_COLUMNS, "load_state")]
    columns = [*map(axis_words, axes), named[0], *(["± (95 %)"] if wide else []), *named[1:]]
    return Sheet(["best", *(["runs"] if linked else []), *columns], rows).html() + after


def _setting(one: Point, axis: str, numeric: Sequence[str]) -> Cell:
    value = one.settings.get(axis, "–")
    return number_of(value) if axis in numeric else value
