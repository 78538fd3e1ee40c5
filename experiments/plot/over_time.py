"""Runs over time: a panel for each column of series.parquet, a line for each run, or for each pool of a single run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from numpy.typing import NDArray

from experiments.plot.arguments import Request
from experiments.plot.frame import Entry, Looks, Picture, finish, legend_of, note_of, stacked
from experiments.plot.quantities import COLUMNS, Column, known
from experiments.plot.source import Source, groups
from experiments.plot.style import PLAIN, scale_evenly, variant_style
from experiments.table.select import shown as worded
from experiments.table.select import value_of
from framework.errors import InputError
from framework.run.store import Record

Floats = NDArray[np.float64]
_HOW = "run it with output.series_s=10 (in a sweep with force=true)"
_MARKS = 8  # marks of a line
_NEEDED = ("start_s", "window_s", "pool")
_UNITS = ((10_000.0, 3600.0, "h"), (600.0, 60.0, "min"), (0.0, 1.0, "s"))  # least seconds, length in seconds, name


@dataclass(frozen=True)
class _Line:
    """A line of every panel that has it; `pool`: its rows, None for the whole cluster."""

    label: str
    table: pl.DataFrame
    pool: str | None
    look: dict[str, Any]

    def values(self, column: Column) -> Floats | None:
        """Its values, None if the run does not know them."""
        rows = self._rows()
        values = rows[column.name].cast(pl.Float64).to_numpy() * column.factor
        if column.is_rate:
            lengths_s = rows["window_s"].to_numpy()
            values = np.divide(values, lengths_s, out=np.full(len(values), np.nan), where=lengths_s > 0)
        return values if np.isfinite(values).any() else None

    def edges_s(self) -> Floats:
        """The starts of its windows, and the end of the last, since the first arrival."""
        rows = self._rows()
        start_s = rows["start_s"].to_numpy()
        return np.append(start_s, start_s[-1] + rows["window_s"][-1]) - start_s[0]

    def _rows(self) -> pl.DataFrame:
        return self.table.filter(pl.col("pool").is_null() if self.pool is None else pl.col("pool") == self.pool)


def series(source: Source, records: Sequence[Record], request: Request, looks: Looks) -> Picture:
    """The picture. Raises InputError for runs without series.parquet, and for unknown columns."""
    known(request.metrics, COLUMNS)
    shown = groups(records, request.own["replicate"], (), request.filters)
    needed = [*_NEEDED, *request.metrics]
    tables = [(one, source.table(one, "series.parquet", needed, _HOW)) for group in shown for one in group.records]
    labels = [
        _label(group.label, one, request.own["replicate"], len(group.records))
        for group in shown
        for one in group.records
    ]
    styles = [
        variant_style(looks.policies.index(group.policy), number, len(same))
        for group in shown
        for number, same in _numbered(group, shown)
    ]
    whole = [_Line(label, table, None, style) for label, (_, table), style in zip(labels, tables, styles, strict=True)]
    pools = list(_pools(whole[0], looks.policies.index(shown[0].policy))) if len(whole) == 1 else []
    figure, every = stacked(request.width_in, len(request.metrics))
    last_s = max(line.edges_s()[-1] for line in whole)
    length_s, unit = next((length, name) for least, length, name in _UNITS if last_s >= least)
    for axes, name in zip(every, request.metrics, strict=True):
        column = COLUMNS[name]
        lines = pools if pools and column.by_pool else whole
        _panel(axes, lines, column, length_s)
    every[-1].set_xlabel(f"time since the first arrival ({unit})")
    figure.align_ylabels(every)
    entries = _entries(whole, pools, [COLUMNS[name] for name in request.metrics])
    window = ", ".join(dict.fromkeys(f"{table['window_s'][0]:g}" for _, table in tables))
    note = note_of(shown, request.own["replicate"], f"means of windows of {window} s")
    note = _without_interval(note)
    return Picture(finish(figure, legend_of(entries), request.above(note)), note)


def _label(label: str, record: Record, replicate: str, runs: int) -> str:
    return label if runs == 1 else f"{label}, {replicate} {worded(value_of(record, replicate))}"


def _numbered(group: Any, every: Sequence[Any]) -> Iterator[tuple[int, Sequence[Record]]]:
    """For each run of a group: its position among all runs of its policy, and these runs."""
    same = [record for other in every if other.policy == group.policy for record in other.records]
    return ((same.index(record), same) for record in group.records)


def _without_interval(note: str) -> str:
    """The note without intervals: each run has its own line here."""
    return "; ".join(part for part in note.split("; ") if "interval (Student's t)" not in part)


def _pools(line: _Line, index: int) -> Iterator[_Line]:
    """A line for each pool of a run, if there are several."""
    names = [name for name in line.table["pool"].unique(maintain_order=True).to_list() if name is not None]
    if len(names) > 1:
        for number, name in enumerate(names):
            yield _Line(f"{line.label}: {name} pool", line.table, name, variant_style(index, number, len(names)))


def _entries(whole: Sequence[_Line], pools: Sequence[_Line], columns: Sequence[Column]) -> list[Entry]:
    by_pool = bool(pools) and any(column.by_pool for column in columns)
    lines = [
        *(whole if not by_pool or any(not column.by_pool for column in columns) else []),
        *(pools if by_pool else []),
    ]
    return [Entry(line.label, line.look) for line in lines]


def _panel(axes: Axes, lines: Sequence[_Line], column: Column, length_s: float) -> None:
    drawn = [(line, values) for line in lines if (values := line.values(column)) is not None]
    if not drawn:
        raise InputError(f"metric={column.name}: these runs do not know it; it needs engine.log=full")
    for line, values in drawn:
        edges = line.edges_s() / length_s
        every = max(1, len(values) // _MARKS)
        axes.plot(
            edges[:-1], values, drawstyle="steps-post", markevery=(every // 2, every), **{**line.look, "linewidth": 1.0}
        )
    highest = max(float(np.nanmax(values)) for _, values in drawn)
    is_share = column.title.endswith("(%)") and highest <= 100
    axes.set_ylabel(column.title.replace(" (", "\n("))
    axes.set_xlim(left=0)
    scale_evenly(axes, "y", (0.0, 104.0 if is_share else 1.08 * highest if highest > 0 else 1.0))
    axes.xaxis.set_major_formatter(PLAIN)
