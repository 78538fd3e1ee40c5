"""Pictures of a curve: latency against throughput, goodput against load, and both by length of prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.curve.axis import RATE
from experiments.curve.figures import ALL, Curve, Floats, Line, saturation
from experiments.curve.table import headline
from experiments.plot.frame import Entry, finish, hollow_mark, legend_of, legible_note, panels
from experiments.plot.point_labels import PointLabel, place_labels
from experiments.plot.style import (
    GREY,
    PLAIN,
    RING,
    SMALL_PT,
    WIDE_RANGE,
    WIDTH_IN,
    band,
    fit_axis,
    hollow,
    save,
    series_style,
    styled,
)
from framework.metrics.figures import HEADLINE, metric

_ROW_IN = 1.9
_FAR = 2.5  # times the highest value
_WIDE_LOAD = 20.0  # largest / smallest from which the axis of the load is logarithmic


@dataclass(frozen=True)
class Quantity:
    """A metric on an axis, times `factor`; `limit_key`: of its SLO in the configuration, in seconds."""

    metric: str
    label: str
    factor: float = 1.0
    limit_key: str = ""

    @property
    def limit_factor(self) -> float:
        """The factor from the seconds of a limit to the metric, which is in ms."""
        return 1e3 * self.factor

    def of(self, line: Line) -> Floats:
        """Its means, shape (points,)."""
        return self.factor * line.mean(self.metric)

    def half_width(self, line: Line) -> Floats:
        """Half the widths of their intervals, shape (points,)."""
        return self.factor * line.half_width(self.metric)


def _of_summary(key: str, limit_key: str = "") -> Quantity:
    known = metric(key)
    return Quantity(key, known.on_page if known.is_latency else known.on_axis, known.scale, limit_key)


_TTFT = _of_summary("p99_ttft_ms", "slo.ttft_s")
_TPOT = _of_summary("p99_tpot_ms", "slo.tpot_s")
_SERVED = _of_summary("request_throughput")
_SERVED_OF_ALL = replace(_SERVED, label=_SERVED.label.replace(" (", " of all ("))
_TOKENS = _of_summary("output_throughput")
_GOODPUT = _of_summary(HEADLINE)
_OFFERED = Quantity("offered_rps", "offered load (requests/s)")
_BOUND = _of_summary("goodput_bound")
_CLIENTS = Quantity("concurrency", "clients")
_MET = _of_summary("slo_attainment")


def draw(curve: Curve, directory: Path) -> list[Path]:
    """Write latency, goodput and, if there are several, buckets, each as .png, .pdf and .svg; return the paths."""
    makers = {"latency": _latency, "goodput": _goodput}
    if len(curve.buckets) > 2:
        makers["buckets"] = _buckets
    with styled():
        return [path for name, make in makers.items() for path in save(make(curve), directory, name)]


# --- pictures ---------------------------------------------------------------------------------------------------------


def _latency(curve: Curve) -> Figure:
    figure, every = panels(WIDTH_IN, 2)
    axes_of = zip(every, (_SERVED, _TOKENS), (_TTFT, _TPOT), strict=True)
    labels = [_against_throughput(axes, curve, ALL, x, y) for axes, x, y in axes_of]
    _finish(figure, curve, _overloaded(curve), f"points: {'offered req/s' if curve.axis is RATE else 'clients'}")
    for axes, own in zip(every, labels, strict=True):
        place_labels(figure, axes, own)
    return figure


def _goodput(curve: Curve) -> Figure:
    figure, (left, right) = panels(WIDTH_IN, 2)
    explained = _against_load(left, curve, ALL)
    load = _load(curve)
    for index, line in enumerate(curve.lines()):
        band(right, load.of(line), _MET.of(line), _MET.half_width(line), series_style(index))
        _ring(right, curve, line.label, load.of(line), _MET.of(line))
    right.axhline(100 * curve.attainment, color=GREY, linewidth=0.8, linestyle=":")
    right.set(xlabel=load.label, ylabel=_MET.label, ylim=(-3, 103))
    _scale_load(right, curve)
    _finish(figure, curve, explained)
    return figure


def _buckets(curve: Curve) -> Figure:
    """A column for each bucket; throughput is that of all requests, goodput and its load are the bucket's own."""
    buckets = [bucket for bucket in curve.buckets if bucket != ALL]
    figure = Figure(figsize=(max(WIDTH_IN, 2.2 * len(buckets)), 3 * _ROW_IN))
    rows = figure.subplots(3, len(buckets), squeeze=False)
    for first, *others in rows[:2]:  # goodput differs too much from bucket to bucket
        for axes in others:
            axes.sharey(first)
    explained: list[Line2D] = []
    for column, bucket in enumerate(buckets):
        ttft, tpot, goodput = rows[:, column]
        ttft.set_title(f"prompts {bucket} tokens".replace(">=", "≥"))
        _against_throughput(ttft, curve, bucket, _SERVED_OF_ALL, _TTFT)
        _against_throughput(tpot, curve, bucket, _SERVED_OF_ALL, _TPOT)
        explained = _against_load(goodput, curve, bucket)
    for row in rows:
        for axes in row[1:]:
            axes.set_ylabel("")
    if curve.axis is RATE:
        for axes in rows[2]:
            axes.set_xlabel(axes.get_xlabel().replace("load", "load of these"))
    figure.align_ylabels(rows[:, 0])
    _finish(figure, curve, [*explained, *_overloaded(curve)])
    return figure


# --- panels -----------------------------------------------------------------------------------------------------------


def _against_throughput(axes: Axes, curve: Curve, bucket: str, x: Quantity, y: Quantity) -> list[PointLabel]:
    """Draw latency in a bucket against the throughput of all; return the possible labels of points."""
    x = _comparable(curve, x)
    labels = []
    for index, label in enumerate(curve.labels):
        line, whole = curve.line(label, bucket), curve.line(label)
        xs, ys = x.of(whole), y.of(line)
        style = series_style(index)
        band(axes, xs, ys, y.half_width(line), style)
        hollow(axes, xs, ys, whole.is_overloaded, style)
        _ring(axes, curve, label, xs, ys)
        mark = saturation(whole, curve.attainment)
        ends = (0, len(xs) - 1, mark)
        labels += [
            PointLabel(xs[point], ys[point], f"{value:g}", style["color"], 0 if point in ends else 1)
            for point, value in enumerate(whole.values)
            if np.isfinite(ys[point])
        ]
    shown = [y.of(line) for other in _side_by_side(curve, bucket) for line in curve.lines(other)]
    _draw_limit(axes, curve, y, float(np.nanmax(np.concatenate(shown), initial=0)))
    axes.set(xlabel=x.label, ylabel=y.label)
    fit_axis(axes, "x", *(x.of(curve.line(label)) for label in curve.labels), far=np.inf)
    fit_axis(axes, "y", *shown)
    return labels


def _draw_limit(axes: Axes, curve: Curve, y: Quantity, highest: float) -> None:
    """Draw the SLO, unless it differs or lies far above the shown values."""
    limit_s = curve.agreed(y.limit_key)
    if limit_s is None or limit_s * y.limit_factor > _FAR * highest:
        return
    limit = limit_s * y.limit_factor
    axes.axhline(limit, color=GREY, linewidth=0.8, linestyle=":")
    axes.annotate(
        "SLO", (0, limit), xycoords=("axes fraction", "data"), color=GREY, fontsize=SMALL_PT,
        xytext=(3, 1.5), textcoords="offset points", ha="left", va="bottom",
    )  # fmt: skip


def _against_load(axes: Axes, curve: Curve, bucket: str) -> list[Line2D]:
    """Draw goodput in a bucket against its offered load, or against clients; return the entries of the legend."""
    load, goodput, served = _load(curve), _comparable(curve, _GOODPUT), _comparable(curve, _SERVED)
    lines = curve.lines(bucket)
    for index, line in enumerate(lines):
        style = series_style(index)
        band(axes, load.of(line), goodput.of(line), goodput.half_width(line), style)
        _ring(axes, curve, line.label, load.of(line), (goodput if curve.axis is RATE else served).of(line))
        if curve.axis is not RATE:
            axes.plot(load.of(line), served.of(line), color=style["color"], linewidth=0.8, linestyle=":")
    axes.set(xlabel=load.label, ylabel=goodput.label)
    explained = _references(axes, curve, lines)
    is_log = _scale_load(axes, curve)
    shown, far = (goodput, WIDE_RANGE if is_log else np.inf) if curve.axis is RATE else (served, np.inf)
    fit_axis(axes, "y", *(shown.of(line) for line in lines), far=far)
    return explained


def _references(axes: Axes, curve: Curve, lines: Sequence[Line]) -> list[Line2D]:
    """Draw the references of goodput: the offered or served rate, and the bound if it is known."""
    if curve.axis is not RATE:
        return [Line2D([], [], color="black", linewidth=0.8, linestyle=":", label="throughput")]
    load = _load(curve)
    every = np.concatenate([load.of(line) for line in lines])
    ends = [every.min(), every.max()]
    explained = axes.plot(ends, ends, color=GREY, linewidth=0.8, label="goodput = offered", zorder=1)
    bounds = {}
    for index, line in enumerate(lines):
        values = _comparable(curve, _BOUND).of(line)
        if np.isfinite(values).any():
            bounds[values.tobytes()] = (load.of(line), values, series_style(index)["color"])
    style: dict[str, Any] = {"linewidth": 1.0, "linestyle": (0, (1, 1))}
    for xs, values, colour in bounds.values():
        axes.plot(xs, values, color="black" if len(bounds) == 1 else colour, zorder=2, **style)
    if bounds:
        explained.append(Line2D([], [], color="black", label="upper bound", **style))
    return explained


# --- shared parts
# -------------------------------------------------------------------------------------------------------


def _side_by_side(curve: Curve, bucket: str) -> list[str]:
    """The buckets that are shown on the same scale as this one."""
    return [ALL] if bucket == ALL else [other for other in curve.buckets if other != ALL]


def _load(curve: Curve) -> Quantity:
    return _comparable(curve, _OFFERED) if curve.axis is RATE else _CLIENTS


def _comparable(curve: Curve, quantity: Quantity) -> Quantity:
    """The quantity per GPU, if series have different numbers of GPUs."""
    if curve.agreed("gpus") is not None:
        return quantity
    label = quantity.label.replace("/s)", "/s per GPU)")
    return replace(quantity, metric=f"{quantity.metric}_per_gpu", label=label)


def _scale_load(axes: Axes, curve: Curve) -> bool:
    """Set the scale of the load axis; whether it is logarithmic."""
    points = np.concatenate([line.values for line in curve.lines()])
    if points.max() < _WIDE_LOAD * points.min():
        axes.set_xlim(left=0)
        return False
    if curve.axis is RATE:
        fit_axis(axes, "x", points)
    else:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(PLAIN)
    return True


def _ring(axes: Axes, curve: Curve, label: str, xs: Floats, ys: Floats) -> None:
    """Mark the point where a series saturates."""
    point = saturation(curve.line(label), curve.attainment)
    if point is not None:
        axes.plot(
            xs[point : point + 1], ys[point : point + 1], **RING, color=series_style(curve.labels.index(label))["color"]
        )


def _overloaded(curve: Curve) -> list[Line2D]:
    """The meaning of hollow marks, if there are any."""
    return hollow_mark() if any(line.is_overloaded.any() for line in curve.lines()) else []


def _finish(figure: Figure, curve: Curve, explained: Sequence[Line2D], more: str = "") -> None:
    """Put the legend below and, in small type, the description of the runs above."""
    lines = legend_of([Entry(label, series_style(index)) for index, label in enumerate(curve.labels)])
    text = (
        f"{100 * curve.attainment:g} % within SLO up to here" if curve.axis is RATE else "near its highest throughput"
    )
    ring = Line2D([], [], label=text, **RING, color="black")
    text = "  ".join(part for part in (headline(curve).plain.split("\n")[0], more) if part)
    finish(figure, [*lines, *explained, ring], legible_note(text))
