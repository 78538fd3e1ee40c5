"""How latencies of requests are distributed: one line a run, or a group of runs that differ in their seeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from numpy.typing import NDArray

from experiments.plot.frame import (
    Entry,
    Looks,
    Picture,
    finish,
    keep_apart,
    legend_of,
    limits_of,
    panels,
    told,
    upright_limits,
)
from experiments.plot.quantities import LATENCIES, Latency, known
from experiments.plot.source import Group, Source, groups
from experiments.plot.style import is_wide, scale_to
from experiments.plot.words import Request
from framework.errors import InputError
from framework.metrics.statistics import estimate
from framework.run.store import Record

Floats = NDArray[np.float64]
_POINTS = 160  # of a line
_MARKED = (0.5, 0.9, 0.99)
_ENDS = (0.002, 0.998)  # of what the axis shows
_FAR = 20.0  # times the end: limits beyond are left out
_HOW = "every run leaves it; in a sweep add force=true"


def cdf(source: Source, records: Sequence[Record], request: Request, looks: Looks) -> Picture:
    """The picture. Raises InputError for runs that left no requests.parquet, and for unknown latencies."""
    known(request.metrics, LATENCIES)
    shown = groups(records, request.own["replicate"], (), request.filters)
    latencies = [LATENCIES[name] for name in request.metrics]
    columns = ["state", *(one.column for one in latencies)]
    tables = [[source.table(one, "requests.parquet", columns, _HOW) for one in group.records] for group in shown]
    figure, every = panels(request.width_in, len(latencies))
    styles = looks.of(shown)
    for axes, latency in zip(every, latencies, strict=True):
        values = [[_values(table, latency) for table in own] for own in tables]
        limits = _limits(shown, latency)
        _panel(axes, values, styles, latency, limits)
        upright_limits(axes, limits)
    note = told(shown, request.own["replicate"], "marks at P50, P90 and P99")
    entries = [Entry(group.label, look) for group, look in zip(shown, styles, strict=True)]
    picture = finish(figure, legend_of(entries), note, request.is_noted)
    keep_apart(figure)
    return picture


def _values(table: pl.DataFrame, latency: Latency) -> Floats:
    """Sorted, inf for requests that did not finish; those that have none, as of one token, are left out."""
    values = table[latency.column].cast(pl.Float64).fill_null(np.nan).to_numpy() * latency.factor
    unserved = table["state"].to_numpy() != "finished"
    values = np.where(unserved & np.isnan(values), np.inf, values)
    return np.sort(values[~np.isnan(values)])


def _panel(
    axes: Axes,
    values: Sequence[Sequence[Floats]],
    styles: Sequence[dict[str, Any]],
    what: Latency,
    limits: Collection[float],
) -> None:
    finite = np.concatenate([one[np.isfinite(one)] for own in values for one in own])
    if len(finite) == 0:
        raise InputError(f"no request of these runs has a {what.words}")
    low, high = (float(end) for end in np.quantile(finite, _ENDS))
    low, high = max(low, high * 1e-6), max([high, *(1.1 * limit for limit in limits if limit <= _FAR * high)])
    wide = is_wide(low, high)
    ends = (low, high) if wide else (0.0, high)
    xs = np.geomspace(*ends, _POINTS) if wide else np.linspace(*ends, _POINTS)
    scale_to(axes, "x", ends, wide)
    for own, style in zip(values, styles, strict=True):
        shares = np.array([100 * np.searchsorted(one, xs, side="right") / max(1, len(one)) for one in own])
        mean = shares.mean(axis=0)
        marks = [int(np.searchsorted(mean, 100 * share)) for share in _MARKED]
        axes.plot(xs, mean, markevery=[at for at in marks if at < _POINTS], **style)
        if len(own) > 1:
            half = np.array([estimate(column).half_width for column in shares.T])
            low_side, high_side = np.clip(mean - half, 0, 100), np.clip(mean + half, 0, 100)
            axes.fill_between(xs, low_side, high_side, color=style["color"], alpha=0.18, linewidth=0)
    axes.set(xlabel=what.title, ylabel="requests (%)", ylim=(0, 101), xlim=ends)


def _limits(shown: Sequence[Group], latency: Latency) -> dict[float, str]:
    """Each limit that is in force in some run, as it is shown."""
    if not latency.limit:
        return {}
    found = dict(limits_of([record for group in shown for record in group.records], latency.limit))
    return {
        value * latency.factor: f"{label} {value * latency.factor:g} {latency.unit}" for value, label in found.items()
    }
