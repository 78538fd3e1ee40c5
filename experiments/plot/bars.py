"""Figures of runs as bars: one for each group of runs, in clusters by a setting, with intervals over replicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from experiments.plot.arguments import Request
from experiments.plot.frame import Looks, Picture, explained_hollow, finish, is_hollow, name_y, note_of, panels, slos_of
from experiments.plot.quantities import figure_metrics, level, setting_title
from experiments.plot.source import Group, Source, groups
from experiments.plot.style import HATCHES, SMALL_PT, fit_axis, legible, width_pt
from experiments.table.select import Label, shown
from framework.errors import InputError
from framework.metrics.figure import Metric
from framework.run.store import Record

_CLUSTER = 0.82  # share of the available width for a cluster of bars
_MOST = 60  # bars of a panel
_TICK_PT = 7.0


def bars(source: Source, records: Sequence[Record], request: Request, looks: Looks) -> Picture:
    """The picture. Raises InputError for unknown figures and settings, and for too many bars to distinguish."""
    axis = [request.own["columns"]] if request.own["columns"] else []
    metrics = figure_metrics(request.metrics, records)
    found = groups(records, request.own["replicate"], axis, request.filters)
    clusters = list(dict.fromkeys(at for group in found for at in group.cells))
    clusters = sorted(
        clusters, key=lambda at: [_place(value, request.filters.get(key)) for key, value in zip(axis, at, strict=True)]
    )
    if len(found) * len(clusters) > _MOST:
        raise InputError(
            f"{len(found)} bars of {len(clusters)} groups are too many for a picture; choose with KEY=VALUE,..."
        )
    figure, every = panels(request.width_in, len(metrics))
    styles = _styles(found, looks)
    for axes, metric in zip(every, metrics, strict=True):
        _panel(axes, found, clusters, metric, styles)
    _name_clusters(figure, every, clusters, axis)
    entries = [Patch(label=legible(group.label), **style) for group, style in zip(found, styles, strict=True)]
    note = note_of(found, request.own["replicate"], slos_of(found))
    return Picture(finish(figure, [*entries, *explained_hollow(found, metrics)], request.above(note)), note)


def _place(value: Any, order: str | None) -> tuple[Any, ...]:
    """The place in the order of the filter, if there is one, else in that of numbers or letters."""
    names = order.split(",") if order else []
    first = names.index(shown(value)) if shown(value) in names else len(names)
    return (first, *((0, value, "") if isinstance(value, (int, float)) else (1, 0, shown(value))))


def _styles(found: Sequence[Group], looks: Looks) -> list[dict[str, Any]]:
    """Colour and hatching of each group; groups of one policy differ in both."""
    styles = []
    for group, look in zip(found, looks.of(found), strict=True):
        same = [other for other in found if other.policy == group.policy]
        number = looks.policies.index(group.policy) + same.index(group)
        styles.append({"facecolor": look["color"], "hatch": HATCHES[number % len(HATCHES)], "edgecolor": "white"})
    return styles


def _hollow(style: dict[str, Any]) -> dict[str, Any]:
    return {**style, "facecolor": "white", "edgecolor": style["facecolor"], "linewidth": 1.0}


def _panel(
    axes: Axes, found: Sequence[Group], clusters: Sequence[Label], metric: Metric, styles: Sequence[dict[str, Any]]
) -> None:
    width = _CLUSTER / len(found)
    highest = 0.0
    for number, (group, style) in enumerate(zip(found, styles, strict=True)):
        for place, at in enumerate(clusters):
            if at not in group.cells:
                continue
            own = level(group.cells[at], metric)
            x = place + (number - (len(found) - 1) / 2) * width
            if not np.isfinite(own.mean):
                axes.annotate("n/a", (x, 0), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=SMALL_PT)
                continue
            drawn = _hollow(style) if is_hollow(group.cells[at], metric) else {**style, "linewidth": 0}
            axes.bar(x, own.mean, 0.92 * width, **drawn)
            highest = max(highest, own.mean)
            if np.isfinite(own.half_width) and own.half_width > 0:
                axes.errorbar(x, own.mean, own.half_width, color="black", linewidth=0.8, capsize=1.8, capthick=0.8)
                highest = max(highest, own.mean + own.half_width)
    name_y(axes, metric.on_axis)
    axes.set_xlim(-0.6, len(clusters) - 0.4)
    fit_axis(axes, "y", np.array([highest]))
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)


def _name_clusters(figure: Figure, every: Sequence[Axes], clusters: Sequence[Label], axis: Sequence[str]) -> None:
    names = [", ".join(legible(shown(value)) for value in at) for at in clusters]
    across = 72 * figure.get_figwidth() / (1 if figure.get_figwidth() < 4 else min(len(every), 3)) - 40
    turned = any(width_pt(name, _TICK_PT) > across / len(names) - 2 for name in names)
    for axes in every:
        axes.set_xticks(range(len(clusters)), names if axis else [""] * len(clusters))
        if turned:
            axes.tick_params(axis="x", rotation=30)
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
        if axis:
            axes.set_xlabel(setting_title(axis[0]))
