"""The layout of a table for any format: headings, sections of marked cells, notes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from experiments.table.cells import Figures
from experiments.table.notes import (
    DIFFERS,
    DOUBTFUL,
    MISSING,
    NEAR,
    OVERLOAD,
    UNDEFINED,
    best_note,
    notes,
)
from experiments.table.select import Axis, Label, Place, Selection, shown
from framework.metrics.figure import Metric
from framework.report.load_words import SHORT, has_short_window, is_overloaded

FITTED = "(fitted)"
_OF_A_FILE = re.compile(r"^.*\.py:(?=\w+$)")


@dataclass(frozen=True)
class Text:
    """A cell for a reader. `marks` are raised behind it."""

    text: str
    is_bold: bool = False
    marks: str = ""


@dataclass(frozen=True)
class Section:
    """Rows, below a heading unless it is empty: the labels of each, and its cells."""

    heading: str
    rows: tuple[tuple[tuple[str, ...], tuple[Text, ...]], ...]


@dataclass(frozen=True)
class Sheet:
    """`row_headings` are above the labels, `columns` above the cells. `is_fitted`: every run is on a fitted trace.

    `best` names the figures in bold; empty: none."""

    title: str
    row_headings: tuple[str, ...]
    columns: tuple[str, ...]
    sections: tuple[Section, ...]
    best: str
    notes: tuple[str, ...]
    is_fitted: bool


@dataclass(frozen=True)
class _Block:
    """One section before it becomes text: the cell of each row at each of `across`."""

    heading: str
    metrics: Sequence[Metric]
    columns: Sequence[Label]

    @property
    def across(self) -> list[tuple[Metric, Label]]:
        return [(metric, column) for metric in self.metrics for column in self.columns]


def lay_out(figures: Figures, filters: Mapping[str, str]) -> Sheet:
    """The layout: columns across and a section for each metric; with a single column, metrics across."""
    selection = figures.selection
    metrics = [_in_readable_unit(metric, figures) for metric in figures.metrics]
    fitted_places = _fitted_places(selection)
    columns = [_column_label(selection.columns, one, fitted_places.columns) for one in selection.columns.labels]
    if len(columns) == 1:
        title = f"{columns[0] or 'figures'} by {_named(selection.rows)}"
        headings = [metric.in_table for metric in metrics]
        blocks = [_Block("", metrics, selection.columns.labels)]
    else:
        title, headings = f"{_named(selection.rows)} by {_named(selection.columns)}", columns
        blocks = [_Block(metric.in_table, [metric], selection.columns.labels) for metric in metrics]
        if len(metrics) == 1:
            title, blocks = metrics[0].in_table, [_Block("", metrics, selection.columns.labels)]
    return Sheet(
        title=title,
        row_headings=tuple(_short(selection.rows.keys)),
        columns=tuple(headings),
        sections=tuple(chain.from_iterable(_sections(figures, block, fitted_places) for block in blocks)),
        best=best_note(figures),
        notes=tuple(notes(figures, filters)),
        is_fitted=fitted_places.are_all,
    )


def _sections(figures: Figures, block: _Block, fitted_places: _FittedPlaces) -> Iterator[Section]:
    rows = figures.selection.rows.labels
    labels = {row: _row_label(figures.selection.rows, row, fitted_places.rows) for row in rows}
    yield Section(
        block.heading,
        tuple(
            (
                labels[row],
                tuple(_level(figures, metric, (row, column), fitted_places) for metric, column in block.across),
            )
            for row in rows
        ),
    )
    if figures.baseline is not None:
        lines = {
            row: tuple(_difference(figures, metric, (row, column)) for metric, column in block.across) for row in rows
        }
        yield Section(
            f"{block.heading}, minus {figures.baseline.word}".removeprefix(", "),
            tuple((labels[row], line) for row, line in lines.items() if any(cell.text for cell in line)),
        )


# --- cells ------------------------------------------------------------------------------------------------------------


def _level(figures: Figures, metric: Metric, place: Place, fitted_places: _FittedPlaces) -> Text:
    cell = figures.cells[metric.key].get(place)
    if cell is None:
        return Text(MISSING)
    if cell.undefined:
        return Text(UNDEFINED)
    differs = cell.difference is not None and cell.difference.is_significant
    text = with_interval(cell.level.mean * metric.scale, cell.level.half_width * metric.scale)
    marks = (NEAR if cell.is_near_best else "") + (DIFFERS if differs else "")
    summaries = [record.summary for record in figures.selection.cells[place].values()]
    marks += (OVERLOAD if is_overloaded(summaries) else "") + (SHORT if has_short_window(summaries) else "")
    return Text(f"{text} {FITTED}" if place in fitted_places.places else text, cell.is_best, marks)


def _difference(figures: Figures, metric: Metric, place: Place) -> Text:
    """The difference from the baseline, which has none itself."""
    assert figures.baseline is not None
    if figures.baseline.of(place) == place:
        return Text("")
    cell = figures.cells[metric.key].get(place)
    if cell is None or cell.difference is None:
        return Text(MISSING)
    found = cell.difference
    text = with_interval(found.comparison.mean * metric.scale, found.comparison.half_width * metric.scale, "+")
    if not math.isnan(found.change) and found.comparison.mean:
        text += f" ({per_cent(found.change)})"
    return Text(text, marks=DIFFERS if found.is_significant else DOUBTFUL if found.is_doubtful else "")


def with_interval(mean: float, half_width: float, sign: str = "") -> str:
    """A mean ± half its interval, if there is one, with significant digits only."""
    has_interval = math.isfinite(half_width) and half_width > 0
    size, significant = (half_width, 2) if has_interval else (mean, 3 if sign else 4)
    digits = 0 if size == 0 else max(0, min(6, significant - 1 - math.floor(math.log10(abs(size)))))
    text = _minus(f"{mean:{sign},.{digits}f}") if mean else "0"
    return f"{text} ± {half_width:,.{digits}f}" if has_interval else text


def per_cent(change: float) -> str:
    """A change in %, with its sign."""
    rounded = round(change, 0 if abs(change) >= 9.95 else 1)
    return _minus(f"{rounded:+,.{0 if abs(change) >= 9.95 else 1}f} %") if rounded else "0.0 %"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _in_readable_unit(metric: Metric, figures: Figures) -> Metric:
    means = [cell.level.mean for cell in figures.cells[metric.key].values() if not cell.undefined]
    return metric.readable(min(means, default=0.0))


# --- labels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FittedPlaces:
    """The places that name fitted traces: the title, whole columns or rows, and remaining cells."""

    are_all: bool
    columns: frozenset[Label]
    rows: frozenset[Label]
    places: frozenset[Place]


def _fitted_places(selection: Selection) -> _FittedPlaces:
    is_fitted = {
        place: any(record.summary.get("trace_source") == "twin" for record in runs.values())
        for place, runs in selection.cells.items()
    }
    if all(is_fitted.values()):
        return _FittedPlaces(True, frozenset(), frozenset(), frozenset())
    fitted_places = {place for place, fitted in is_fitted.items() if fitted}
    others = is_fitted.keys() - fitted_places
    rows, columns = (frozenset(place[k] for place in fitted_places) - {place[k] for place in others} for k in (0, 1))
    if all(column in columns for _, column in fitted_places):
        rows = frozenset()
    elif all(row in rows for row, _ in fitted_places):
        columns = frozenset()
    return _FittedPlaces(
        False, columns, rows, frozenset(one for one in fitted_places if one[0] not in rows and one[1] not in columns)
    )


def _row_label(axis: Axis, row: Label, fitted: Collection[Label]) -> tuple[str, ...]:
    parts = _spoken(axis, row)
    return (*parts[:-1], f"{parts[-1]} {FITTED}") if row in fitted else tuple(parts)


def _column_label(axis: Axis, column: Label, fitted: Collection[Label]) -> str:
    """A label: an option speaks for itself, a number needs the name of its key."""
    named = zip(axis.keys, _short(axis.keys), _spoken(axis, column), strict=True)
    parts = [f"{short} {value}" if "." in key or key == "seed" else value for key, short, value in named]
    return " ".join([", ".join(parts), *([FITTED] if column in fitted else [])])


def _spoken(axis: Axis, one: Label) -> list[str]:
    """The values as text; a class of a file (`mine.py:Mine`) by its name alone, if that is no other label's."""
    parts = []
    for place, value in enumerate(one):
        names = [_OF_A_FILE.sub("", shown(other)) for other in {label[place] for label in axis.labels}]
        short = _OF_A_FILE.sub("", shown(value))
        parts.append(short if names.count(short) == 1 else shown(value))
    return parts


def _named(axis: Axis) -> str:
    return ", ".join(_short(axis.keys))


def _short(keys: Sequence[str]) -> list[str]:
    """The last part of each key, as far as that distinguishes them."""
    last = [key.split(".")[-1] for key in keys]
    return [short if last.count(short) == 1 else key for key, short in zip(keys, last, strict=True)]
