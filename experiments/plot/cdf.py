"""The distribution of requests' latencies: one line for each run, or for each group of runs that differ in
their seeds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from numpy.typing import NDArray

from experiments.plot.arguments import Request
from experiments.plot.frame import (
    Entry,
    Looks,
    Picture,
    finish,
    keep_apart,
    legend_of,
    limits_of,
    note_of,
    panels,
    upright_limits,
)
from experiments.plot.quantities import LATENCIES, Latency, known
from experiments.plot.source import Group, Source, groups
from experiments.plot.style import is_wide, scale_by_decades, scale_evenly
from framework.errors import InputError
from framework.metrics.load_state import OVERLOADED
from framework.metrics.statistics import estimate
from framework.report.load_words import is_overloaded
from framework.run.store import Record

Floats = NDArray[np.float64]
_POINTS = 160  # points of a line
_MARKED = (0.5, 0.9, 0.99)
_ENDS = (0.002, 0.998)  # quantiles at which the axis ends
_FAR = 20.0  # times the end: limits beyond are left out
_HOW = "every run leaves it; in a sweep add force=true"
_HOW_GAPS = "run it with output.gaps=true, or take metric=tbt_p99"


def cdf(source: Source, records: Sequence[Record], request: Request, looks: Looks) -> Picture:
    """The picture. Raises InputError for runs without the needed table, and for unknown latencies."""
    known(request.metrics, LATENCIES)
    shown = groups(records, request.own["replicate"], (), request.filters)
    latencies = [LATENCIES[name] for name in request.metrics]
    found = [
        [[_distribution(source, one, latency) for one in group.records] for group in shown] for latency in latencies
    ]
    figure, every = panels(request.width_in, len(latencies))
    styles = looks.of(shown)
    for axes, latency, own in zip(every, latencies, found, strict=True):
        limits = _limits(shown, latency)
        _panel(axes, own, styles, latency, limits)
        upright_limits(axes, limits)
    note = note_of(shown, request.own["replicate"], "marks at P50, P90 and P99")
    entries = [Entry(_named(group), look) for group, look in zip(shown, styles, strict=True)]
    picture = Picture(finish(figure, legend_of(entries), request.above(note)), note)
    keep_apart(figure)
    return picture


def _named(group: Group) -> str:
    """Its label; for an overloaded run the distribution depends on its length, and the label says so."""
    return f"{group.label} ({OVERLOADED})" if is_overloaded(one.summary for one in group.records) else group.label


class _Distribution(NamedTuple):
    """Values in order, in the unit of the axis, and the share of all up to each; missing values count in the total
    only.
    """

    values: Floats
    shares: Floats

    def upto(self, xs: Floats) -> Floats:
        """In %, shape (xs,)."""
        places = np.searchsorted(self.values, xs, side="right")
        return 100 * np.append(0.0, self.shares)[places]

    def quantiles(self, shares: Sequence[float]) -> Floats:
        """The quantiles of the values that exist."""
        last = len(self.values) - 1
        at = np.searchsorted(self.shares, self.shares[-1] * np.asarray(shares))
        return self.values[np.minimum(at, last)]


def _distribution(source: Source, record: Record, latency: Latency) -> _Distribution:
    """The distribution of a run's requests with such a latency (requests of one token have no TPOT); or of its gaps."""
    if latency.counts_gaps:
        table = source.table(record, "gaps.parquet", ("gap_s", "share"), _HOW_GAPS)
        return _Distribution(table["gap_s"].to_numpy() * latency.factor, table["share"].to_numpy())
    table = source.table(record, "requests.parquet", ("state", latency.column), _HOW)
    values = table[latency.column].cast(pl.Float64).fill_null(np.nan).to_numpy() * latency.factor
    came = ~np.isnan(values)
    unserved = int(((table["state"].to_numpy() != "finished") & ~came).sum())
    ordered = np.sort(values[came])
    return _Distribution(ordered, np.arange(1, len(ordered) + 1) / max(1, len(ordered) + unserved))


def _panel(
    axes: Axes,
    found: Sequence[Sequence[_Distribution]],
    styles: Sequence[dict[str, Any]],
    what: Latency,
    limits: Collection[float],
) -> None:
    ends_of = [one.quantiles(_ENDS) for own in found for one in own if len(one.values)]
    if not ends_of:
        raise InputError(f"no request of these runs has a {what.text}")
    low, high = float(min(one[0] for one in ends_of)), float(max(one[1] for one in ends_of))
    low, high = max(low, high * 1e-6), max([high, *(1.1 * limit for limit in limits if limit <= _FAR * high)])
    wide = is_wide(low, high)
    ends = (low, high) if wide else (0.0, high)
    xs = np.geomspace(*ends, _POINTS) if wide else np.linspace(*ends, _POINTS)
    (scale_by_decades if wide else scale_evenly)(axes, "x", ends)
    for own, style in zip(found, styles, strict=True):
        shares = np.array([one.upto(xs) for one in own])
        mean = shares.mean(axis=0)
        marks = [100 * share for share in _MARKED if mean[0] < 100 * share <= mean[-1]]
        axes.plot(xs, mean, **{**style, "marker": ""})
        axes.plot(np.interp(marks, mean, xs), marks, **{**style, "linestyle": ""})
        if len(own) > 1:
            half = np.array([estimate(column).half_width for column in shares.T])
            low_side, high_side = np.clip(mean - half, 0, 100), np.clip(mean + half, 0, 100)
            axes.fill_between(xs, low_side, high_side, color=style["color"], alpha=0.18, linewidth=0)
    axes.set(xlabel=what.title, ylabel="gaps (%)" if what.counts_gaps else "requests (%)", ylim=(0, 101), xlim=ends)


def _limits(shown: Sequence[Group], latency: Latency) -> dict[float, str]:
    """Each limit in force in some run, as it is shown."""
    if not latency.limit:
        return {}
    found = dict(limits_of([record for group in shown for record in group.records], latency.limit))
    return {
        value * latency.factor: f"{label} {value * latency.factor:g} {latency.unit}" for value, label in found.items()
    }
