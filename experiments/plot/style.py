"""The look of pictures: in print, in grey, for colour-blind readers, and equal to the byte."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from framework.cli.files import write_whole
from framework.cli.safe_text import printable

Floats = NDArray[np.float64]
COLUMN_IN = {"single": 3.3, "double": 7.0}  # widths of a picture in a paper of two columns
WIDTH_IN = COLUMN_IN["double"]
SMALL_PT = 6.5
GREY = "0.45"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")  # Okabe and Ito
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.2)))
HATCHES = ("", "///", "..", "xx", "--", "++", "oo")
_FONT = "DejaVu Sans"  # the font that comes with matplotlib, for the same letters everywhere
_LEGEND_PT = 7.5
_HANDLE = 3.2  # length of a line in the legend, in font sizes
_BETWEEN = 1.6  # distance of the legend's columns, in font sizes
_STYLE: Any = {
    "font.family": _FONT,
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
    "pdf.fonttype": 42,
    "svg.hashsalt": "servelab",  # names within a picture follow from its content
    "text.parse_math": False,  # names of traces and policies are text, even with special characters
    "hatch.linewidth": 0.5,
}
_NO_DATES: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}
RING: dict[str, Any] = {"marker": "o", "markersize": 8.5, "fillstyle": "none", "markeredgewidth": 0.9, "linestyle": ""}
HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "linestyle": ""}  # marks of overloaded runs
PLAIN = FuncFormatter(lambda value, _: f"{value:,.10g}")  # 0.5 and 20, not powers of ten
WIDE_RANGE = 8.0  # largest / smallest, from which an axis is logarithmic
_FEW_DECADES = 2.3  # decades up to which an axis has three ticks a decade
_LONGEST = 48  # letters of a name
FORMATS = tuple(_NO_DATES)
DPI = 300.0


@contextmanager
def styled() -> Iterator[None]:
    """A context in which figures are made, and saved, with the look described here."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def series_style(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of series number `index`: no two of the first 28 share all three."""
    kind, turn = index % len(_COLOURS), index // len(_COLOURS)
    dashes = _DASHES[(kind + turn) % len(_DASHES)]
    return {"color": _COLOURS[kind], "marker": _MARKERS[(kind + 3 * turn) % len(_MARKERS)], "linestyle": dashes}


def variant_style(index: int, variant: int, variants: int) -> dict[str, Any]:
    """The look of one of several series that share the colour of series number `index`: its shade, marker, dashes."""
    own = series_style(index)
    if variants == 1:
        return own
    share = variant / (variants - 1)  # 0 is darker than the colour itself, 1 lighter
    rgb = np.asarray(to_rgb(own["color"]))
    mixed = rgb * (0.65 + 0.35 * min(1.0, 2 * share)) + (1 - rgb) * max(0.0, 0.8 * share - 0.4)
    marker = _MARKERS[(_MARKERS.index(own["marker"]) + variant) % len(_MARKERS)]
    dashes = _DASHES[(_DASHES.index(own["linestyle"]) + variant) % len(_DASHES)]
    return {"color": to_hex(tuple(np.clip(mixed, 0, 1).tolist())), "marker": marker, "linestyle": dashes}


def legible(text: str) -> str:
    """A name that a picture can show: no control characters, no letters that its font lacks, not too long.

    Legends leave out names that begin with an underscore, so a blank precedes it.
    """
    known = _letters()
    shown = "".join(one if ord(one) in known else one.encode("unicode_escape").decode() for one in printable(text))
    if len(shown) > _LONGEST:
        shown = f"{shown[: _LONGEST - 16]}…{shown[-15:]}"
    return f" {shown}" if shown.startswith("_") else shown


@functools.cache
def _letters() -> frozenset[int]:
    return frozenset(get_font(findfont(_FONT)).get_charmap())


def width_pt(text: str, size_pt: float) -> float:
    """The width of a line of text, in points."""
    return _width_em(text) * size_pt


@functools.lru_cache(maxsize=4096)
def _width_em(text: str) -> float:
    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), text, size=100, prop=FontProperties(_FONT)).get_extents().x1) / 100


def save(figure: Figure, directory: Path, name: str, formats: Sequence[str] = FORMATS, dpi: float = DPI) -> list[Path]:
    """Write NAME.png, NAME.pdf and NAME.svg; the same figure gives the same bytes."""
    paths = []
    for kind in formats:
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata=_NO_DATES[kind], dpi=dpi)
        paths.append(directory / f"{name}.{kind}")
        write_whole(paths[-1], content.getvalue())
    return paths


def band(axes: Axes, xs: Floats, ys: Floats, half_width: Floats, style: Mapping[str, Any]) -> None:
    """A line of points and, if there are intervals, a band around it."""
    axes.plot(xs, ys, **style)
    if np.isfinite(half_width).any():
        axes.fill_between(xs, ys - half_width, ys + half_width, color=style["color"], alpha=0.18, linewidth=0)


def hollow(axes: Axes, xs: Floats, ys: Floats, chosen: NDArray[np.bool_], style: Mapping[str, Any]) -> None:
    """Draw the marks of the chosen points hollow, over a line that `band` drew."""
    if chosen.any():
        axes.plot(xs[chosen], ys[chosen], **{**style, **HOLLOW})


def lay_out(figure: Figure) -> None:
    """Fix the layout: later additions move nothing."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def legend_below(figure: Figure, entries: Sequence[Artist]) -> int:
    """Draw a legend below all axes, in as many columns as fit; return its rows."""
    handles = list(entries)
    for one in handles:
        one.set_label(_shortened(str(one.get_label()), 72 * figure.get_figwidth() - (_HANDLE + 3.8) * _LEGEND_PT))
    widths = [width_pt(str(one.get_label()), _LEGEND_PT) + (_HANDLE + 0.8) * _LEGEND_PT for one in handles]
    room = 72 * figure.get_figwidth() - 2 * _LEGEND_PT
    columns = next((count for count in range(len(handles), 1, -1) if _legend_width(widths, count) <= room), 1)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, handlelength=_HANDLE, columnspacing=_BETWEEN
    )
    return math.ceil(len(handles) / columns)


def _shortened(label: str, room_pt: float) -> str:
    """The part of a label that fits there, including its end."""
    while width_pt(label, _LEGEND_PT) > room_pt:
        middle = len(label) * 2 // 3
        label = f"{label[: middle - 2].removesuffix('…')}…{label[middle:].removeprefix('…')}"
    return label


def _legend_width(widths: Sequence[float], columns: int) -> float:
    """The width of a legend whose entries go down the columns; the first columns may have one more."""
    parts = np.array_split(np.asarray(widths), columns)
    return float(sum(part.max() for part in parts)) + (columns - 1) * _BETWEEN * _LEGEND_PT


def fit_axis(axes: Axes, which: str, *values: Floats, far: float = WIDE_RANGE) -> None:
    """Let the axis `which`, "x" or "y", begin at 0, or be logarithmic if the largest value is `far` times the least.

    It has room for all drawn elements, including bands and reference lines."""
    every = np.concatenate(values)
    every = every[np.isfinite(every)]
    low, high = float(every.min(initial=np.inf)), float(every.max(initial=0.0)) or 1.0
    wide = low > 0 and high >= far * low
    drawn = float((axes.dataLim.intervalx if which == "x" else axes.dataLim.intervaly)[1])
    high = max(high, drawn) if np.isfinite(drawn) else high
    if wide:
        scale_by_decades(axes, which, (low / 1.15, high * 1.15))
    else:
        scale_evenly(axes, which, (0.0, 1.06 * high))


def is_wide(low: float, high: float) -> bool:
    """Whether a range needs a logarithmic axis."""
    return low > 0 and high >= WIDE_RANGE * low


def scale_evenly(axes: Axes, which: str, ends: tuple[float, float]) -> None:
    """Set the ends of the axis `which`, "x" or "y", with readable ticks at equal distances."""
    _scale(axes, which, ends, MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def scale_by_decades(axes: Axes, which: str, ends: tuple[float, float]) -> None:
    """Make the axis `which`, "x" or "y", logarithmic, with readable ticks, and set its ends."""
    axes.set(**{f"{which}scale": "log"})
    subs = (1.0, 2.0, 5.0) if np.log10(ends[1] / ends[0]) < _FEW_DECADES else (1.0,)
    _axis(axes, which).set_minor_formatter(NullFormatter())
    _scale(axes, which, ends, LogLocator(subs=subs))


def _scale(axes: Axes, which: str, ends: tuple[float, float], locator: Locator) -> None:
    axis = _axis(axes, which)
    axis.set_major_locator(locator)
    axis.set_major_formatter(PLAIN)
    axes.set(**{f"{which}lim": ends})


def _axis(axes: Axes, which: str) -> Any:
    return axes.xaxis if which == "x" else axes.yaxis
