"""Pictures of a study: its course, what mattered, each dimension, the two that mattered most, the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.plot.frame import finish, panels
from experiments.plot.style import WIDTH_IN, legible, save, series_style, styled
from experiments.tune.result import Findings, Row
from experiments.tune.space import Dimension

_BLUE, _RED = (series_style(index)["color"] for index in range(2))
_POINT: dict[str, Any] = {"s": 16, "linewidths": 0, "alpha": 0.5}
_BEST: dict[str, Any] = {"s": 60, "marker": "*", "color": _RED, "zorder": 4}
_DPI = 150
_FAR = 30.0  # highest / lowest, from which the axis of another goal is logarithmic


def draw(found: Findings, folder: Path) -> list[Path]:
    """Draw a study with at least one completed trial; return the pictures' paths."""
    pictures: dict[str, Callable[[Findings], Any]] = {"history": _history, "slices": _slices}
    if found.importances:
        pictures["importances"] = _importances
    if len(_grids(found)) >= 2:
        pictures["heatmap"] = _heatmap
    if len(found.goals) > 1:
        pictures["pareto"] = _pareto
    with styled():
        return [path for name, make in pictures.items() for path in save(make(found), folder, name, ("png",), _DPI)]


def _history(found: Findings) -> Any:
    figure, (axes,) = panels(WIDTH_IN, 1)
    goal = found.goals[0]
    run = [row for row in found.rows if row.outcome == "complete"]
    numbers, values = [row.number for row in run], [row.values[0] for row in run]
    best = np.maximum.accumulate(values) if goal.maximize else np.minimum.accumulate(values)
    axes.scatter(numbers, values, label="trial", color=_BLUE, **_POINT)
    axes.step(numbers, best, where="post", color=_RED, label="best so far")
    for outcome, marker in (("pruned", "|"), ("infeasible", "x")):
        at = [row.number for row in found.rows if row.outcome == outcome]
        if at:
            floor = [min(values)] * len(at)
            axes.scatter(at, floor, s=20, marker=marker, linewidths=1, color="0.5", label=outcome)
    axes.set(xlabel="trial", ylabel=goal.key)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _explained(figure, axes)


def _importances(found: Findings) -> Any:
    names, shares = list(found.importances), [100 * share for share in found.importances.values()]
    figure = Figure(figsize=(WIDTH_IN, 0.6 + 0.3 * len(names)))
    axes = figure.subplots()
    axes.barh(names, shares, color=_BLUE, height=0.6)
    for line, share in enumerate(shares):
        axes.text(share, line, f" {share:.0f} %", va="center")
    axes.invert_yaxis()
    axes.set(xlabel="importance (%)", xlim=(0, max(shares) * 1.15))
    return figure


def _slices(found: Findings) -> Any:
    dimensions = found.space.dimensions
    figure, every = panels(WIDTH_IN, len(dimensions))
    for axes, dimension in zip(every, dimensions, strict=True):
        _slice(axes, found, dimension)
        axes.sharey(every[0])
        axes.set_ylabel(found.goals[0].key)
    return figure


def _slice(axes: Axes, found: Findings, dimension: Dimension) -> None:
    """Values over one dimension, later trials darker; the best is a star."""
    places = [_place(dimension, row) for row in found.ranked]
    values = [row.values[0] for row in found.ranked]
    rng = np.random.default_rng(0)
    spread = 0.0 if dimension.all() is None else 0.12
    shifted = np.asarray(places, float) + rng.uniform(-spread, spread, len(places))
    numbers = [row.number for row in found.ranked]
    axes.scatter(shifted, values, c=numbers, cmap="Blues", vmin=-len(values) / 2, **_POINT)
    axes.scatter(places[:1], values[:1], **_BEST)
    _ticks(axes.xaxis, axes, dimension, "x")
    axes.set_xlabel(dimension.name)


def _heatmap(found: Findings) -> Any:
    """The best value found in each cell of the two most important dimensions."""
    across, down = _grids(found)[:2]
    cells: dict[tuple[int, int], float] = {}
    for row in reversed(found.ranked):
        cells[int(_place(down, row)), int(_place(across, row))] = row.values[0]
    shape = (len(down.all() or ()), len(across.all() or ()))
    values = np.full(shape, np.nan)
    for cell, value in cells.items():
        values[cell] = value
    figure = Figure(figsize=(1.6 + 0.75 * shape[1], 1.3 + 0.5 * shape[0]))
    axes = figure.subplots()
    axes.grid(visible=False)
    image = axes.imshow(values, cmap="viridis", aspect="auto", origin="lower")
    threshold = (np.nanmin(values) + np.nanmax(values)) / 2
    for (line, column), value in cells.items():
        colour = "black" if value > threshold else "white"
        axes.text(column, line, f"{value:.3g}", ha="center", va="center", color=colour)
    _ticks(axes.xaxis, axes, across, "x")
    _ticks(axes.yaxis, axes, down, "y")
    axes.set(xlabel=across.name, ylabel=down.name)
    figure.colorbar(image, ax=axes, label=f"{'highest' if found.goals[0].maximize else 'lowest'} {found.goals[0].key}")
    return figure


def _pareto(found: Findings) -> Any:
    """Every other goal over the first one: all trials, and the front of all goals."""
    others = found.goals[1:]
    figure, every = panels(WIDTH_IN, len(others))
    for number, (axes, goal) in enumerate(zip(every, others, strict=True), start=1):
        axes.scatter(*_pairs(found.ranked, number), label="trial", color=_BLUE, **_POINT)
        front = sorted(found.front, key=lambda row: row.values[0])
        axes.plot(*_pairs(front, number), "o" if len(others) > 1 else "o-", color=_RED, label="Pareto front")
        axes.set(xlabel=found.goals[0].key, ylabel=goal.key)
        spread = [row.values[number] for row in found.ranked]
        if min(spread) > 0 and max(spread) > _FAR * min(spread):
            axes.set_yscale("log")
    return _explained(figure, every[0])


def _explained(figure: Figure, axes: Axes) -> Figure:
    """The figure with the legend of these axes below."""
    return finish(figure, axes.get_legend_handles_labels()[0], "")


def _pairs(rows: Sequence[Row], number: int) -> tuple[list[float], list[float]]:
    return [row.values[0] for row in rows], [row.values[number] for row in rows]


def _grids(found: Findings) -> list[Dimension]:
    """Dimensions of few values, the most important first."""
    order = list(found.importances) or [dimension.name for dimension in found.space.dimensions]
    few = [one for one in found.space.dimensions if one.all() is not None and len(one.all() or ()) <= 16]
    return sorted(few, key=lambda one: order.index(one.name) if one.name in order else len(order))


def _place(dimension: Dimension, row: Row) -> float:
    """The place of a trial on an axis: its index among the possible values, or its value in a continuum."""
    drawn = row.point.drawn[dimension.label]
    everything = dimension.all()
    return float(drawn) if everything is None else float(list(everything).index(drawn))


def _ticks(axis: Any, axes: Axes, dimension: Dimension, which: str) -> None:
    everything = dimension.all()
    if everything is None:
        axes.set(**{f"{which}scale": "log" if dimension.is_logarithmic else "linear"})
        return
    labels = [legible(str(dimension.value(drawn))) for drawn in everything]
    step = math.ceil(len(labels) / 16)
    axis.set_ticks(range(0, len(labels), step), labels[::step])
    if which == "x" and max(map(len, labels)) > 4 and len(labels) > 2:
        axis.set_tick_params(rotation=30)
