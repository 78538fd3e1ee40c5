"""Texts next to points, placed if there is room and they cannot be taken for those of other points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.plot.style import GREY, SMALL_PT, width_pt

Floats = NDArray[np.float64]
Box = tuple[float, float, float, float]
_OFFSETS = ((-1, 1), (1, -1), (1, 1), (-1, -1), (0, 1), (0, -1))  # (right, up): off a rising line if there is room
_GAP_PT = 3.5  # between a point and its label
_RADIUS_PT = 2.4  # radius of a marker
_ONE_PT = 5.0  # points at most this far apart read as one


@dataclass(frozen=True)
class PointLabel:
    """A text for the point (x, y) of some axes, in the colour of its line; the lowest `rank` is placed first."""

    x: float
    y: float
    text: str
    colour: str
    rank: int


def place_labels(figure: Figure, axes: Axes, labels: Sequence[PointLabel], reach: Sequence[float] = (1.0,)) -> None:
    """Write the labels that find room next to their points, after the layout.

    A label without a text is a point that others keep off. Points in one place with the same text share one label, in
    grey. No label is nearer to another point than to its own, unless a line leads to it. Places off the lines of the
    axes are taken first. `reach`: distances to try, times the usual one; a line leads to labels at distances above 1.
    """
    scale = figure.dpi / 72
    every, texts = _places(axes, labels), np.array([label.text for label in labels])
    radius = _RADIUS_PT * scale
    taken = [(x - radius, y - radius, x + radius, y + radius) for x, y in every]
    taken += [(box.x0, box.y0, box.x1, box.y1) for box in (one.get_window_extent() for one in axes.texts)]
    frame = axes.get_window_extent().padded(-scale)
    shared = _shared([label for label in labels if label.text], every[texts != ""], _ONE_PT * scale)
    points, drawn = _places(axes, shared), _along(axes, scale)
    for index in sorted(range(len(shared)), key=lambda one: (shared[one].rank, one)):
        label, own = shared[index], points[index]
        others = every[(texts != label.text) | (np.hypot(*(every - own).T) >= _ONE_PT * scale)]

        def fits(box: Box, far: float, own: Floats = own, others: Floats = others) -> bool:
            inside = frame.x0 <= box[0] and box[2] <= frame.x1 and frame.y0 <= box[1] and box[3] <= frame.y1
            if not inside or any(_overlap(box, other) for other in taken):
                return False
            return far > 1 or _nearest(box, others) >= _nearest(box, own[None]) + 1.5 * _GAP_PT * scale

        tried = [(right, up, far) for far in reach for right, up in _OFFSETS]
        free = [(one, box) for one in tried if fits(box := _box(own, label.text, *one, scale), one[2])]
        if free:
            (right, up, far), box = min(free, key=lambda found: _nearest(found[1], drawn) == 0)
            taken.append(box)
            _write(axes, label, right, up, far)


def _along(axes: Axes, scale: float) -> Floats:
    """Points along all lines of the axes, in pixels, close enough to see what a label would cover."""
    found = [np.zeros((0, 2))]
    for line in axes.lines:
        ends = line.get_transform().transform(np.column_stack([np.asarray(one, np.float64) for one in line.get_data()]))
        ends = ends[np.isfinite(ends).all(axis=1)]
        for one, other in itertools.pairwise(ends):
            parts = min(400, int(np.hypot(*(other - one)) / (2 * scale)) + 2)
            found.append(np.linspace(one, other, parts))
    return np.concatenate(found)


def _places(axes: Axes, labels: Sequence[PointLabel]) -> Floats:
    """The places of labels in pixels, shape (labels, 2)."""
    if not labels:
        return np.zeros((0, 2))
    return np.asarray(axes.transData.transform([(label.x, label.y) for label in labels]), np.float64)


def _shared(labels: Sequence[PointLabel], points: Floats, reach: float) -> list[PointLabel]:
    """The labels, without those of points that lie on another one with the same text."""
    kept: list[int] = []
    grey: set[int] = set()
    for index, label in enumerate(labels):
        near = np.hypot(*(points[kept] - points[index]).T) < reach if kept else ()
        same = [one for one, is_near in zip(kept, near, strict=True) if is_near and labels[one].text == label.text]
        if not same:
            kept.append(index)
        elif labels[same[0]].colour != label.colour:
            grey.add(same[0])
    return [replace(labels[one], colour=GREY) if one in grey else labels[one] for one in kept]


def _box(point: Floats, text: str, right: int, up: int, far: float, scale: float) -> Box:
    width, height = width_pt(text, SMALL_PT) * scale, 1.05 * SMALL_PT * scale
    gap_x, gap_y = (gap * scale for gap in _gaps_pt(right, far))
    left = point[0] + {1: gap_x, 0: -width / 2, -1: -gap_x - width}[right]
    low = point[1] + gap_y if up > 0 else point[1] - gap_y - height
    return (float(left), float(low), float(left + width), float(low + height))


def _gaps_pt(right: int, far: float) -> tuple[float, float]:
    """The gap between a point and its label, across and up."""
    return _GAP_PT * far, (0.5 * _GAP_PT if right else 1.2 * _GAP_PT) * far


def _write(axes: Axes, label: PointLabel, right: int, up: int, far: float) -> None:
    gap_x, gap_y = _gaps_pt(right, far)
    text = axes.annotate(
        label.text,
        (label.x, label.y),
        xytext=(right * gap_x, up * gap_y),
        textcoords="offset points",
        ha={1: "left", 0: "center", -1: "right"}[right],
        va="bottom" if up > 0 else "top",
        fontsize=SMALL_PT,
        color=label.colour,
        arrowprops={"arrowstyle": "-", "color": label.colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
        if far > 1
        else None,
    )
    text.set_path_effects([patheffects.withStroke(linewidth=1.5, foreground="white")])
    text.set_in_layout(False)


def _nearest(box: Box, points: Floats) -> float:
    """The distance of the nearest of these points from a box; inf without any."""
    if len(points) == 0:
        return np.inf
    across = np.maximum(np.maximum(box[0] - points[:, 0], points[:, 0] - box[2]), 0)
    along = np.maximum(np.maximum(box[1] - points[:, 1], points[:, 1] - box[3]), 0)
    return float(np.hypot(across, along).min())


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
