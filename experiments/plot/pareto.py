"""A figure of runs against their cost, and the runs that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.lines import Line2D
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
from experiments.plot.point_labels import PointLabel, place_labels
from experiments.plot.quantities import figure_metrics, level
from experiments.plot.source import Group, Source, groups
from experiments.plot.style import GREY, fit_axis, legible, series_style
from experiments.table.select import value_of
from framework.errors import InputError
from framework.metrics.figures import direction
from framework.metrics.statistics import Estimate
from framework.report.page.sweep_page import frontier
from framework.run.store import Record

Floats = NDArray[np.float64]
_FAR = 30.0  # highest / lowest from which an axis is logarithmic
_REACH = (1.0, 2.5, 4.5)  # distances of labels
_OF_LOAD = ("trace.", "trace_source", "load.", "slo.")


@dataclass(frozen=True)
class _Point:
    group: Group
    x: Estimate
    y: Estimate


def pareto(source: Source, records: Sequence[Record], request: Request, looks: Looks) -> Picture:
    """The picture. Raises InputError for unknown figures, and for runs of different requests, load or SLO."""
    replicate, x = request.own["replicate"], request.own["x"]
    if len(request.metrics) != 1:
        raise InputError("plot pareto shows one metric against x=; give one")
    _require_comparable(records, replicate)
    metric = figure_metrics(request.metrics, records)[0]
    better = direction(metric.key, f"metric={metric.key}", "choose another one")
    cost = figure_metrics([x], records)[0]
    found = groups(records, replicate, (), request.filters)
    points = [_Point(group, level(group.records, cost), level(group.records, metric)) for group in found]
    points = [one for one in points if np.isfinite(one.x.mean + one.y.mean)]
    if not points:
        raise InputError(f"x={x}: undefined in all of these runs; choose another, such as x=gpus")
    figure, (axes,) = panels(request.width_in, 1)
    xs, ys = (np.array([one.mean for one in own]) for own in ([p.x for p in points], [p.y for p in points]))
    front = frontier(np.round(xs, 9), better * ys)
    fit_axis(axes, "x", xs, xs + [_bar(p.x) for p in points], far=_FAR)
    fit_axis(axes, "y", ys, ys + [_bar(p.y) for p in points], far=_FAR)
    axes.plot(xs[front], ys[front], color=GREY, linewidth=0.9, drawstyle="steps-post", zorder=1)
    for one in points:
        look = series_style(looks.policies.index(one.group.policy))
        axes.errorbar(
            one.x.mean, one.y.mean, _bar(one.y), _bar(one.x), color=look["color"], marker=look["marker"],
            markersize=4.5, elinewidth=0.7, capsize=1.5, linestyle="", zorder=3,
            markerfacecolor="white" if is_hollow(one.group.records, metric) else look["color"],
        )  # fmt: skip
    axes.set_xlabel(cost.on_axis)
    name_y(axes, metric.on_axis)
    policies = list(dict.fromkeys(one.group.policy for one in points))
    entries = [Entry(name, series_style(looks.policies.index(name))) for name in policies]
    line = Line2D([], [], color=GREY, linewidth=0.9, label=f"none is cheaper and {better.name.lower()}")
    note = note_of(found, replicate, slos_of(found))
    explained = [*legend_of(entries, linestyle=""), line, *explained_hollow(found, [metric])]
    picture = Picture(finish(figure, explained, request.above(note)), note)
    colours = [str(series_style(looks.policies.index(one.group.policy))["color"]) for one in points]
    labels = [
        PointLabel(one.x.mean, one.y.mean, _short(one.group) if at in front else "", colour, 0 if at in front else 1)
        for at, (one, colour) in enumerate(zip(points, colours, strict=True))
    ]
    place_labels(figure, axes, labels, _REACH)
    return picture


def _bar(value: Estimate) -> float:
    return value.half_width if np.isfinite(value.half_width) else 0.0


def _short(group: Group) -> str:
    """What distinguishes a group from others of its policy, which its colour shows."""
    _, comma, rest = group.label.partition(", ")
    return legible(rest if comma else group.policy)


def _require_comparable(records: Sequence[Record], replicate: str) -> None:
    """Raise InputError if requests, load or SLO differ between runs: they cannot be compared then."""
    for key in sorted({key for one in records for key in one.config if key.startswith(_OF_LOAD)} | {"trace"}):
        follows = all(value_of(one, key) == value_of(one, replicate) for one in records)
        values = sorted({str(value_of(one, key)) for one in records})
        if key != replicate and not follows and len(values) > 1:
            listed = ", ".join(values[:6])
            raise InputError(
                f"plot pareto compares runs on the same requests; these differ in {key} ({listed}): choose one"
            )
