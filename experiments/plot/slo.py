"""Attainment, or another figure, against the scale of the SLO or against a setting, such as the rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from numpy.typing import NDArray

from experiments.plot.arguments import Request
from experiments.plot.frame import (
    Entry,
    Looks,
    Picture,
    explained_hollow,
    finish,
    is_hollow,
    legend_of,
    name_y,
    note_of,
    panels,
    slos_of,
)
from experiments.plot.quantities import figure_metrics, level, setting_title
from experiments.plot.source import Group, Source, groups
from experiments.plot.style import GREY, PLAIN, SMALL_PT, band, fit_axis, hollow, scale_evenly
from experiments.table.select import keys_of, nearest, value_of
from framework.errors import InputError
from framework.metrics.figure import Metric
from framework.metrics.figures import HEADLINE
from framework.metrics.statistics import estimate
from framework.run.store import Record

Floats = NDArray[np.float64]
SCALES = np.geomspace(0.25, 4.0, 33)
_MARK_EVERY = 8
_SCALED = {"slo_attainment", HEADLINE}
_SHARES = {"slo_attainment", "share_of_bound"}
_COLUMNS = {  # limit -> column of requests.parquet
    "ttft_s": "ttft_s", "tpot_s": "tpot_s", "tbt_p99_s": "tbt_p99_s", "reader_wait_s": "reader_wait_s",
}  # fmt: skip
_NO_LIMITS = {"reading_tokens_s"}
_HOW = "every run leaves it; in a sweep add force=true"


def slo(source: Source, records: Sequence[Record], request: Request, looks: Looks) -> Picture:
    """The picture. Raises InputError for unknown figures and settings, and for limits that cannot be scaled."""
    x = request.own["x"] or ("scale" if source.places else "trace.rate")
    metrics = figure_metrics(request.metrics, records)
    figure, every = panels(request.width_in, len(metrics))
    replicate = request.own["replicate"]
    if x == "scale":
        found = groups(records, replicate, (), request.filters)
        _against_scale(every, source, found, metrics, looks)
    else:
        _require_numbers(records, x)
        found = groups(records, replicate, (x,), request.filters)
        _against_setting(every, found, metrics, x, looks)
    entries = [Entry(group.label, look) for group, look in zip(found, looks.of(found), strict=True)]
    note = note_of(found, replicate, slos_of(found))
    return Picture(finish(figure, [*legend_of(entries), *explained_hollow(found, metrics)], request.above(note)), note)


# --- against a setting ------------------------------------------------------------------------------------------------


def _require_numbers(records: Sequence[Record], x: str) -> None:
    if x not in keys_of(records):
        raise InputError(f"x={x}: no run has it; {nearest(x, keys_of(records))}x=scale scales the limits of the SLO")
    values = {value_of(one, x) for one in records}
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        other = next(str(value) for value in values if not isinstance(value, (int, float)))
        raise InputError(f"x={x}: must be a number in all runs, but is {other} in some; choose runs with KEY=VALUE")


def _against_setting(
    every: Sequence[Axes], found: Sequence[Group], metrics: Sequence[Metric], x: str, looks: Looks
) -> None:
    for axes, metric in zip(every, metrics, strict=True):
        highest = 0.0
        for group, look in zip(found, looks.of(found), strict=True):
            xs = np.array([at[0] for at in group.cells], np.float64)
            levels = [level(own, metric) for own in group.cells.values()]
            ys, halves = np.array([one.mean for one in levels]), np.array([one.half_width for one in levels])
            band(axes, xs, ys, halves, look)
            hollow(axes, xs, ys, np.array([is_hollow(own, metric) for own in group.cells.values()]), look)
            highest = max(highest, float(np.nanmax(ys + np.nan_to_num(halves), initial=0)))
        fit_axis(axes, "x", np.array([at[0] for group in found for at in group.cells], np.float64))
        _frame(axes, metric, highest)
        axes.set_xlabel(setting_title(x))


def _frame(axes: Axes, metric: Metric, highest: float) -> None:
    name_y(axes, metric.on_axis)
    scale_evenly(axes, "y", (0.0, 102.0 if metric.key in _SHARES else 1.06 * highest or 1.0))


# --- against the scale ------------------------------------------------------------------------------------------------


def _against_scale(
    every: Sequence[Axes], source: Source, found: Sequence[Group], metrics: Sequence[Metric], looks: Looks
) -> None:
    if other := [metric.key for metric in metrics if metric.key not in _SCALED]:
        raise InputError(f"metric={other[0]}: with x=scale it is one of {', '.join(sorted(_SCALED))}")
    shares = [[attained(source, record) for record in group.records] for group in found]
    for axes, metric in zip(every, metrics, strict=True):
        highest = 0.0
        for group, own, look in zip(found, shares, looks.of(found), strict=True):
            rates = [_per_share(record, metric) for record in group.records]
            values = np.array([share * rate for share, rate in zip(own, rates, strict=True)])
            half = np.full(len(SCALES), np.nan)
            if len(values) > 1:
                half = np.array([estimate(column).half_width for column in values.T])
            band(axes, SCALES, values.mean(axis=0), half, {**look, "markevery": _MARK_EVERY})
            highest = max(highest, float((values.mean(axis=0) + np.nan_to_num(half)).max()))
        axes.axvline(1.0, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
        axes.annotate(
            "SLO of the runs", (1, 0), xycoords=("data", "axes fraction"), xytext=(3, 2), textcoords="offset points",
            fontsize=SMALL_PT, color=GREY,
        )  # fmt: skip
        _frame(axes, metric, highest)
        axes.set_xscale("log", base=2)
        axes.set(xlim=(SCALES[0], SCALES[-1]), xlabel="limits of the SLO, times")
        axes.xaxis.set_major_formatter(PLAIN)


def _per_share(record: Record, metric: Metric) -> float:
    """The value of `metric` if all requests kept the SLO."""
    if metric.key == "slo_attainment":
        return metric.scale
    return float(record.summary["offered"]) / float(record.summary["window_s"])


def attained(source: Source, record: Record) -> Floats:
    """The share of the requests of a run that keep all limits times each of SCALES, (scales,).

    Raises InputError for a limit in force that requests.parquet lacks.
    """
    limits = _limits(record)
    columns = [*{_COLUMNS[name] for own in limits.values() for name in own}, "state", "ttft_s"]
    columns += ["slo_class"] if len(limits) > 1 else []
    table = source.table(record, "requests.parquet", columns, _HOW)
    worst = np.zeros(len(table))  # factor by which all limits would have to be larger
    for name in _COLUMNS:
        limit = _limit_of_each(table, limits, name)
        if np.isfinite(limit).any():
            values = table[_COLUMNS[name]].cast(pl.Float64).fill_null(np.nan).to_numpy()
            worst = np.fmax(worst, np.nan_to_num(values) / limit)
    worst[table["state"].to_numpy() != "finished"] = np.inf
    return np.array([float((worst <= scale * (1 + 1e-12)).mean()) for scale in SCALES])


def _limits(record: Record) -> dict[str, dict[str, float]]:
    """The limits in force (seconds) of all requests, "", and of classes; inf: a class without a limit."""
    found: dict[str, dict[str, float]] = {"": {}}
    for key, value in record.config.items():
        if not key.startswith("slo.") or key.endswith("_target_"):
            continue
        own, _, name = key.removeprefix("slo.").removeprefix("classes.").rpartition(".")
        if name in _NO_LIMITS:
            continue
        if own.startswith("slowdown") or (name not in _COLUMNS and isinstance(value, (int, float))):
            raise InputError(f"x=scale: {key} is in force, and requests.parquet does not tell of it; sweep it instead")
        if name in _COLUMNS:
            limit = float(value) if isinstance(value, (int, float)) else np.inf
            if own or np.isfinite(limit):
                found.setdefault(own, {})[name] = limit
    return found


def _limit_of_each(table: pl.DataFrame, limits: dict[str, dict[str, float]], name: str) -> Floats:
    found = np.full(len(table), limits[""].get(name, np.inf))
    for own, values in limits.items():
        if own and name in values:
            found[table["slo_class"].to_numpy() == own] = values[name]
    return found
