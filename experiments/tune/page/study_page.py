"""The page of a study: its course, what mattered, each setting, the Pareto front, all trials; under the pointer each
trial says its settings.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.tune.goals import Goal
from experiments.tune.result import Findings, Row
from experiments.tune.space import override_text
from framework.checks import is_numeric
from framework.metrics.figures import metric
from framework.report.page.chart import Chart
from framework.report.page.markup import Cell, Chapter, Legend, Sheet, figure, grid, page, text
from framework.report.page.scale import Scale, fitting, from_zero
from framework.report.page.words import axis_words
from framework.report.table_words import named

Floats = NDArray[np.float64]
_MOST_ROWS = 1_000


def study_page(found: Findings, commands: Sequence[str]) -> str:
    """The page as HTML, for a study with a trial that was run; `commands` repeat the best one."""
    chapters = [
        Chapter("course", "Course", grid([_course(found)])),
        Chapter(
            "front", "Pareto front", _fronts(found), "the trials that no other equals in all goals and beats in one"
        ),
        Chapter(
            "importance", "What mattered", _importances(found), "the share of the variance that each explains alone"
        ),
        Chapter("settings", "Settings", _settings(found), f"{_label(found.goals[0])} of all trials over each setting"),
        Chapter("trials", "All trials", _trials(found), "the best first, then those that were not run to their end"),
    ]
    best = found.ranked[0]
    values = ", ".join(named(goal.key, value) for goal, value in zip(found.goals, best.values, strict=True))
    counts = [f"{found.count('complete'):,} trials"]
    counts += [f"{found.count(one):,} {one}" for one in ("pruned", "infeasible") if found.count(one)]
    size = "" if found.feasible is None else f", {found.feasible:,} configurations that fit"
    lines = [f"{', '.join(counts)}; space {found.space.name}{size}", f"best: {values}, with {_words(best)}"]
    head = "".join(f'<p class="sub">{text(line)}</p>' for line in lines)
    head += "".join(f"<pre><code>{text(command)}</code></pre>" for command in commands)
    rows = [{"trial": row.number, "outcome": row.outcome, "values": [*row.values]} for row in found.rows]
    return page(found.name, f"<h1>Study {text(found.name)}</h1>{head}", chapters, ("trials_data", rows))


# --- pictures ---------------------------------------------------------------------------------------------------------


def _course(found: Findings) -> str:
    goal = found.goals[0]
    run = [row for row in found.rows if row.outcome == "complete"]
    numbers, values = np.array([float(row.number) for row in run]), _values(run, found, 0)
    best = np.maximum.accumulate(values) if goal.maximize else np.minimum.accumulate(values)
    chart = Chart("Results in the order of the trials", from_zero(numbers), _axis(values), "trial", _label(goal))
    chart.dots(numbers, values, "kept", [_said(row, found) for row in run])
    chart.line(numbers, best, "s1")
    legend = Legend((("trial", "kept"), ("best so far", "s1")))
    rows: list[list[Cell]] = [[row.number, float(value)] for row, value in zip(run, values, strict=True)]
    return figure("Course", "in the order of the trials", chart.html(), legend, Sheet(["trial", _label(goal)], rows))


def _fronts(found: Findings) -> str | None:
    """Every other goal over the first one."""
    if len(found.goals) == 1:
        return None
    return grid(_front(found, place) for place in range(1, len(found.goals)))


def _front(found: Findings, place: int) -> str:
    x, y = _values(found.ranked, found, 0), _values(found.ranked, found, place)
    label, other = (_label(found.goals[one]) for one in (0, place))
    chart = Chart(f"{other} over {label}", _axis(x), fitting(y), label, other)
    chart.dots(x, y, "kept", [_said(row, found) for row in found.ranked])
    front = sorted(found.front, key=lambda row: row.values[0])
    ends = _values(front, found, 0), _values(front, found, place)
    chart.line(*ends, "s1", [_said(row, found) for row in front])
    rows: list[list[Cell]] = [[_words(row), float(at), float(up)] for row, at, up in zip(front, *ends, strict=True)]
    legend = Legend((("trial", "kept"), ("Pareto front", "s1")))
    return figure(other, f"over {label}", chart.html(), legend, Sheet(["front", label, other], rows))


def _importances(found: Findings) -> str | None:
    if not found.importances:
        return None
    rows: list[list[Cell]] = [[name, 100 * share] for name, share in found.importances.items()]
    return Sheet(["setting", "importance (%)"], rows).html()


def _settings(found: Findings) -> str | None:
    names = dict.fromkeys(name for row in found.ranked for name in row.point.settings)
    order = list(found.importances)
    varying = [name for name in names if len({repr(row.point.settings.get(name)) for row in found.ranked}) > 1]
    varying.sort(key=lambda name: order.index(name) if name in order else len(order))
    return grid(_setting(found, name) for name in varying) if varying else None


def _setting(found: Findings, name: str) -> str:
    """The first goal over a setting: a picture if its values are numbers, and the best of each value as a table."""
    label = _label(found.goals[0])
    own = [row for row in found.ranked if name in row.point.settings]
    given = [row.point.settings[name] for row in own]
    values = _values(own, found, 0)
    words = list(dict.fromkeys(override_text(value) for value in given))  # the best comes first
    first = {word: next(i for i, value in enumerate(given) if override_text(value) == word) for word in words}
    counts = [sum(override_text(value) == word for value in given) for word in words]
    rows: list[list[Cell]] = [
        [word, count, float(values[first[word]])] for word, count in zip(words, counts, strict=True)
    ]
    sheet = Sheet([name, "trials", f"best {label}"], rows)
    if not all(is_numeric(value) for value in given):
        return f"<div><h3>{text(name)}</h3>{sheet.html()}</div>"
    places = np.array([float(value) for value in given])
    chart = Chart(f"{label} over {name}", fitting(places), _axis(values), axis_words(name), label)
    chart.dots(places, values, "kept", [_said(row, found) for row in own])
    return figure(name, "each dot a trial", chart.html(), Legend(()), sheet)


# --- the table --------------------------------------------------------------------------------------------------------


def _trials(found: Findings) -> str:
    ranked = {row.number: place for place, row in enumerate(found.ranked)}
    ordered = sorted(found.rows, key=lambda row: (ranked.get(row.number, len(ranked)), row.number))[:_MOST_ROWS]
    names = list(dict.fromkeys(name for row in ordered for name in row.point.settings))
    rows: list[list[Cell]] = []
    for row in ordered:
        values: list[Cell] = [
            float(row.values[place] * metric(goal.key).scale) if row.values else None
            for place, goal in enumerate(found.goals)
        ]
        settings = [_cell(row.point.settings[name]) if name in row.point.settings else "–" for name in names]
        rows.append([row.number, row.outcome, *values, *settings, row.refusal or "–"])
    more = len(found.rows) - len(rows)
    after = f'<p class="note">{more:,} more trials are in trials.csv.</p>' if more else ""
    columns = ["trial", "outcome", *map(_label, found.goals), *map(axis_words, names), "why not"]
    return Sheet(columns, rows).html() + after


def _cell(value: object) -> Cell:
    return value if is_numeric(value) else override_text(value)


# --- words ------------------------------------------------------------------------------------------------------------


def _label(goal: Goal) -> str:
    return metric(goal.key).on_page


def _values(rows: Sequence[Row], found: Findings, place: int) -> Floats:
    scale = metric(found.goals[place].key).scale
    return np.array([row.values[place] * scale for row in rows], np.float64)


def _axis(values: Floats) -> Scale:
    """From zero, or below it if a value is."""
    lowest = float(values.min(initial=0.0))
    return from_zero(values) if lowest >= 0 else Scale(1.04 * lowest, max(1.04 * float(values.max()), 0.0))


def _words(row: Row) -> str:
    """`cluster.prefill=4, cluster.prefill_tp=2`."""
    return ", ".join(f"{name}={override_text(value)}" for name, value in row.point.settings.items())


def _said(row: Row, found: Findings) -> str:
    values = ", ".join(named(goal.key, value) for goal, value in zip(found.goals, row.values, strict=True))
    return f"trial {row.number}: {values}; {_words(row)}"
