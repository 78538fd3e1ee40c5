"""How the pictures of a curve look: in print, in grey, to the colour-blind, and to the byte."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from framework.cli.files import write_whole

Floats = NDArray[np.float64]
WIDTH_IN = 7.0  # of a text block over two columns
SMALL_PT = 6.5
GREY = "0.45"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")  # Okabe and Ito
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.2)))
_LEGEND_PT = 7.5
_HANDLE = 3.2  # length of a line in the legend, in font sizes
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": _LEGEND_PT,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.8,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
}
_NO_DATES: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}
RING: dict[str, Any] = {"marker": "o", "markersize": 8.5, "fillstyle": "none", "markeredgewidth": 0.9, "linestyle": ""}
PLAIN = FuncFormatter(lambda value, _: f"{value:,.10g}")  # 0.5 and 20, not powers of ten
_WIDE_RANGE = 8.0  # largest / smallest, from which an axis is logarithmic
_MANY_DECADES = 3.0  # from which only powers of ten have ticks
_BESIDE = ((-1, 1), (1, -1), (1, 1), (-1, -1))  # (right, up): off a rising line if there is room
_GAP_PT = 3.5  # between a point and its label
_LETTER = 0.62  # width of a figure, in font sizes


@contextmanager
def styled() -> Iterator[None]:
    """Figures that are made, and saved, within look as described here."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def series_style(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of series number `index`: no two of the first 28 share all three."""
    kind = index % len(_COLOURS)
    dashes = _DASHES[(kind + index // len(_COLOURS)) % len(_DASHES)]
    return {"color": _COLOURS[kind], "marker": _MARKERS[kind], "linestyle": dashes}


def save(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.pdf; the same figure gives the same bytes."""
    paths = []
    for kind, metadata in _NO_DATES.items():
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata=metadata)
        paths.append(directory / f"{name}.{kind}")
        write_whole(paths[-1], content.getvalue())
    return paths


def band(axes: Axes, xs: Floats, ys: Floats, half_width: Floats, style: Mapping[str, Any]) -> None:
    """A line of points and, where there are intervals, a band around it."""
    axes.plot(xs, ys, **style)
    if np.isfinite(half_width).any():
        axes.fill_between(xs, ys - half_width, ys + half_width, color=style["color"], alpha=0.18, linewidth=0)


def scale_axis(axes: Axes, which: str, values: Sequence[Floats]) -> None:
    """Make the axis `which`, "x" or "y", logarithmic if what it is to show ranges far, else let it begin at 0."""
    every = np.concatenate(values)
    every = every[np.isfinite(every) & (every > 0)]
    axis = axes.xaxis if which == "x" else axes.yaxis
    if len(every) == 0 or every.max() < _WIDE_RANGE * every.min():
        axes.set(**{f"{which}lim": (0, None)})
        return
    axes.set(**{f"{which}scale": "log"})
    decades = np.log10(every.max() / every.min())
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < _MANY_DECADES else (1.0,)))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_formatter(NullFormatter())


def lay_out(figure: Figure) -> None:
    """Give everything its place, for good: what is added later moves nothing."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def legend_below(figure: Figure, entries: Sequence[Line2D]) -> None:
    """A legend below all axes, in as many columns as fit."""
    letters = max(len(str(entry.get_label())) for entry in entries) + _HANDLE / _LETTER + 4
    columns = int(72 * figure.get_figwidth() / (letters * _LETTER * _LEGEND_PT))
    handles = list(entries)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(max(1, columns), len(handles)), handlelength=_HANDLE
    )


@dataclass(frozen=True)
class PointLabel:
    """A text for the point (x, y) of some axes, in the colour of its line; `rank`: the lowest are placed first."""

    x: float
    y: float
    text: str
    colour: str
    rank: int


def place_labels(figure: Figure, axes: Axes, labels: Sequence[PointLabel]) -> None:
    """Write those labels that find room beside their points, in a picture that is laid out."""
    scale = figure.dpi / 72
    points = axes.transData.transform([(label.x, label.y) for label in labels]) if labels else np.zeros((0, 2))
    radius = 2.4 * scale
    taken = [(x - radius, y - radius, x + radius, y + radius) for x, y in points]
    frame = axes.get_window_extent().padded(-scale)
    for index in sorted(range(len(labels)), key=lambda one: (labels[one].rank, one)):
        label, (x, y) = labels[index], points[index]
        width, height = _LETTER * SMALL_PT * len(label.text) * scale, 0.8 * SMALL_PT * scale
        for right, up in _BESIDE:
            left = x + _GAP_PT * scale if right > 0 else x - _GAP_PT * scale - width
            low = y + 0.5 * _GAP_PT * scale if up > 0 else y - 0.5 * _GAP_PT * scale - height
            box = (left, low, left + width, low + height)
            inside = frame.x0 <= box[0] and box[2] <= frame.x1 and frame.y0 <= box[1] and box[3] <= frame.y1
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                text = axes.annotate(
                    label.text,
                    (label.x, label.y),
                    xytext=(right * _GAP_PT, 0.5 * up * _GAP_PT),
                    textcoords="offset points",
                    ha="left" if right > 0 else "right",
                    va="bottom" if up > 0 else "top",
                    fontsize=SMALL_PT,
                    color=label.colour,
                )
                text.set_path_effects([patheffects.withStroke(linewidth=1.5, foreground="white")])
                text.set_in_layout(False)
                break


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
