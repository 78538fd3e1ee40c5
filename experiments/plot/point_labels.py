"""Texts beside points, where there is room and nobody takes them for those of other points."""

from __future__ import annotations

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
_BESIDE = ((-1, 1), (1, -1), (1, 1), (-1, -1), (0, 1), (0, -1))  # (right, up): off a rising line if there is room
_GAP_PT = 3.5  # between a point and its label
_RADIUS_PT = 2.4  # of a marker
_ONE_PT = 5.0  # points that are no farther apart are read as one


@dataclass(frozen=True)
class PointLabel:
    """A text for the point (x, y) of some axes, in the colour of its line; `rank`: the lowest are placed first."""

    x: float
    y: float
    text: str
    colour: str
    rank: int


def place_labels(figure: Figure, axes: Axes, labels: Sequence[PointLabel]) -> None:
    """Write those labels that find room beside their points, in a picture that is laid out.

    A label without a text is a point that others keep off. Points that lie on each other and have the same text share
    one, in grey. No label is nearer to another point than to its own.
    """
    scale = figure.dpi / 72
    every = _places(axes, labels)
    radius = _RADIUS_PT * scale
    taken = [(x - radius, y - radius, x + radius, y + radius) for x, y in every]
    taken += [(box.x0, box.y0, box.x1, box.y1) for box in (one.get_window_extent() for one in axes.texts)]
    frame = axes.get_window_extent().padded(-scale)
    texts = np.array([label.text for label in labels])
    shared = _shared([label for label in labels if label.text], every[texts != ""], _ONE_PT * scale)
    points = _places(axes, shared)
    for index in sorted(range(len(shared)), key=lambda one: (shared[one].rank, one)):
        label, own = shared[index], points[index]
        for right, up in _BESIDE:
            box = _box(own, label.text, right, up, scale)
            inside = frame.x0 <= box[0] and box[2] <= frame.x1 and frame.y0 <= box[1] and box[3] <= frame.y1
            if not inside or any(_overlap(box, other) for other in taken):
                continue
            others = every[(texts != label.text) | (np.hypot(*(every - own).T) >= _ONE_PT * scale)]
            if _nearest(box, others) < _nearest(box, own[None]) + 1.5 * _GAP_PT * scale:
                continue
            taken.append(box)
            _write(axes, label, right, up)
            break


def _places(axes: Axes, labels: Sequence[PointLabel]) -> Floats:
    """In pixels, shape (labels, 2)."""
    if not labels:
        return np.zeros((0, 2))
    return np.asarray(axes.transData.transform([(label.x, label.y) for label in labels]), np.float64)


def _shared(labels: Sequence[PointLabel], points: Floats, reach: float) -> list[PointLabel]:
    """The labels without those of points that lie on another one of the same text."""
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


def _box(point: Floats, text: str, right: int, up: int, scale: float) -> Box:
    width, height = width_pt(text, SMALL_PT) * scale, 1.05 * SMALL_PT * scale
    left = point[0] + {1: _GAP_PT * scale, 0: -width / 2, -1: -_GAP_PT * scale - width}[right]
    gap = _gap_pt(right) * scale
    low = point[1] + gap if up > 0 else point[1] - gap - height
    return (float(left), float(low), float(left + width), float(low + height))


def _gap_pt(right: int) -> float:
    return 0.5 * _GAP_PT if right else 1.2 * _GAP_PT


def _write(axes: Axes, label: PointLabel, right: int, up: int) -> None:
    text = axes.annotate(
        label.text,
        (label.x, label.y),
        xytext=(right * _GAP_PT, up * _gap_pt(right)),
        textcoords="offset points",
        ha={1: "left", 0: "center", -1: "right"}[right],
        va="bottom" if up > 0 else "top",
        fontsize=SMALL_PT,
        color=label.colour,
    )
    text.set_path_effects([patheffects.withStroke(linewidth=1.5, foreground="white")])
    text.set_in_layout(False)


def _nearest(box: Box, points: Floats) -> float:
    """How far the nearest of these points is from a box; inf without any."""
    if len(points) == 0:
        return np.inf
    across = np.maximum(np.maximum(box[0] - points[:, 0], points[:, 0] - box[2]), 0)
    along = np.maximum(np.maximum(box[1] - points[:, 1], points[:, 1] - box[3]), 0)
    return float(np.hypot(across, along).min())


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
