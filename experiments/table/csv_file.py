"""The figures of a table as CSV, one line for each cell and metric."""

from __future__ import annotations

import csv
import io
import math

from experiments.table.cells import Cell, Figures
from experiments.table.select import Place, shown
from framework.metrics.figure import Metric
from framework.report.load_words import has_short_window, load_state

_COLUMNS = (
    *("metric", "n", "mean", "half_width", "best", "near_best"),
    *("baseline", "pairs", "difference", "difference_half_width", "change_percent", "p", "p_holm"),
    *("load_state", "window_is_short"),
)
_PROVENANCE = ("trace", "trace_source")


def as_csv(figures: Figures) -> str:
    """They are in the units of summary.json, in long form; empty without a figure.

    A cell without a run has n = 0. `half_width`s are of 95 % intervals; `p` is of the difference, `p_holm` adjusted for
    the comparisons of the metric. `load_state` is the worst of its runs; `window_is_short`: that of one of them is.
    """
    selection = figures.selection
    keys = (*selection.rows.keys, *selection.columns.keys)
    text = io.StringIO()
    columns = (*keys, *_COLUMNS, *(name for name in _PROVENANCE if name not in keys))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for metric in figures.metrics:
        for row in selection.rows.labels:
            for column in selection.columns.labels:
                labels = zip(keys, map(shown, (*row, *column)), strict=True)
                writer.writerow(_line(figures, metric, (row, column)) | dict(labels))
    return text.getvalue()


def _line(figures: Figures, metric: Metric, place: Place) -> dict[str, object]:
    cell = figures.cells[metric.key].get(place)
    if cell is None:
        return {"metric": metric.key, "n": 0}
    summaries = [record.summary for record in figures.selection.cells[place].values()]
    return {
        "metric": metric.key,
        "n": len(cell.values),
        "mean": _number(cell.level.mean),
        "half_width": _number(cell.level.half_width),
        "best": str(cell.is_best).lower(),
        "near_best": str(cell.is_near_best).lower(),
        **_compared(cell),
        "load_state": load_state(summaries),
        "window_is_short": str(has_short_window(summaries)).lower(),
        **{name: summaries[0].get(name) for name in _PROVENANCE},
    }


def _compared(cell: Cell) -> dict[str, object]:
    if cell.difference is None:
        return {}
    found = cell.difference.comparison
    return {
        "baseline": "/".join(shown(value) for one in cell.difference.baseline for value in one),
        "pairs": found.pairs,
        "difference": _number(found.mean),
        "difference_half_width": _number(found.half_width),
        "change_percent": _number(cell.difference.change),
        "p": _number(found.p),
        "p_holm": _number(cell.difference.p),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
