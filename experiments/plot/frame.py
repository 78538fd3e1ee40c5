"""What all pictures share: panels of one size, one look for each policy, a legend below, and a description of the runs
above.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import blended_transform_factory

from experiments.plot.source import Group
from experiments.plot.style import GREY, HOLLOW, SMALL_PT, lay_out, legend_below, legible, variant_style, width_pt
from experiments.table.notes import slo_of
from experiments.table.replicates import sampling
from experiments.table.select import value_of
from framework.metrics.figure import Metric
from framework.report.load_words import IN_LEGEND, SHORT_MEANS, has_short_window, is_overloaded
from framework.run.store import Record

_PANEL_IN = {True: 1.85, False: 2.05}  # height of a panel in a picture of one column, and of two
_NARROW_IN = 4.0  # width below which a picture has one column
_LEGEND_ROW_IN, _NOTE_ROW_IN = 0.19, 0.13
_ACROSS = {1: 1, 2: 2, 3: 3, 4: 2}  # panels next to each other in a picture of two columns
_LETTER_EM = 0.56  # mean width of a letter


@dataclass(frozen=True)
class Looks:
    """The look of series: one colour for each policy, by its place among `policies`; shades of it for several
    series.
    """

    policies: Sequence[str]

    def of(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Colour, marker and dashes of each group."""
        found = []
        for number, group in enumerate(groups):
            same = [at for at, other in enumerate(groups) if other.policy == group.policy]
            found.append(variant_style(self.policies.index(group.policy), same.index(number), len(same)))
        return found


@dataclass(frozen=True)
class Entry:
    """A series in the legend."""

    label: str
    look: Mapping[str, Any]


def stacked(width_in: float, count: int) -> tuple[Figure, list[Axes]]:
    """A picture with `count` panels below each other, and one axis below them all."""
    height_in = 1.15 * count if count > 1 else _PANEL_IN[width_in < _NARROW_IN]
    figure = Figure(figsize=(width_in, height_in))
    return figure, [row[0] for row in figure.subplots(count, 1, squeeze=False, sharex=True)]


def panels(width_in: float, count: int) -> tuple[Figure, list[Axes]]:
    """A picture with `count` panels, next to each other as far as there is room."""
    single = width_in < _NARROW_IN
    across = 1 if single else _ACROSS.get(count, 3)
    down = -(-count // across)
    figure = Figure(figsize=(width_in, _PANEL_IN[single] * down))
    every = [axes for row in figure.subplots(down, across, squeeze=False) for axes in row]
    for axes in every[count:]:
        axes.set_visible(False)
    return figure, every[:count]


@dataclass(frozen=True)
class Picture:
    """A figure with its layout, and what a caption must tell its reader."""

    figure: Figure
    note: str


def finish(figure: Figure, entries: Sequence[Artist], note: str) -> Figure:
    """Add the legend and, in small type, the note, if there is one; the panels keep their size."""
    width_in, height_in = figure.get_size_inches()
    lines = textwrap.wrap(note, int(72 * width_in / (_LETTER_EM * SMALL_PT))) if note else []
    while any(width_pt(line, SMALL_PT) > 72 * width_in - 4 for line in lines):
        lines = textwrap.wrap(note, max(len(line) for line in lines) - 1)
    rows = legend_below(figure, entries) if entries else 0
    figure.set_size_inches(width_in, height_in + _LEGEND_ROW_IN * rows + _NOTE_ROW_IN * len(lines))
    if lines:
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=SMALL_PT, color=GREY)
    lay_out(figure)
    return figure


def name_y(axes: Axes, title: str) -> None:
    """Name the vertical axis, in two lines if one would be higher than the panel."""
    room_pt = 0.95 * axes.get_window_extent().height * 72 / axes.figure.dpi
    is_long = width_pt(title, matplotlib.rcParams["axes.labelsize"]) > room_pt
    axes.set_ylabel("\n".join(textwrap.wrap(title, max(12, len(title) // 2 + 3))) if is_long else title)


def legend_of(entries: Sequence[Entry], **more: Any) -> list[Line2D]:
    """A line for each series in the legend."""
    return [Line2D([], [], label=legible(one.label), **{**one.look, **more}) for one in entries]


def is_hollow(records: Sequence[Record], shown: Metric) -> bool:
    """Whether a drawing of these runs must show that it depends on their length."""
    return shown.is_latency and is_overloaded(record.summary for record in records)


def explained_hollow(groups: Sequence[Group], metrics: Sequence[Metric]) -> list[Line2D]:
    """Which series are hollow, for the legend; nothing if none is."""
    runs = [own for group in groups for own in group.cells.values()]
    return hollow_mark() if any(is_hollow(own, shown) for own in runs for shown in metrics) else []


def hollow_mark() -> list[Line2D]:
    """The meaning of hollow marks, for the legend."""
    return [Line2D([], [], label=f"hollow: {IN_LEGEND}", marker="o", color="black", **HOLLOW)]


def upright_limits(axes: Axes, limits: Mapping[float, str]) -> None:
    """Dotted lines at these values, in order, each with its label above the frame if there is room."""
    ends = axes.get_xlim()
    for value, label in sorted(limits.items()):
        if not ends[0] <= value <= ends[1]:
            continue
        axes.axvline(value, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
        above = axes.annotate(
            legible(label), (value, 1), xycoords=blended_transform_factory(axes.transData, axes.transAxes),
            xytext=(0, 1.5), textcoords="offset points", ha="center", va="bottom", fontsize=SMALL_PT, color=GREY,
        )  # fmt: skip
        above.set_in_layout(False)
    axes.set_title(" ", fontsize=SMALL_PT, pad=1.5)  # room for them, in every panel


def keep_apart(figure: Figure) -> None:
    """Move texts above a frame into the picture, and drop those that meet another, after the layout."""
    width = figure.bbox.width
    for axes in figure.axes:
        taken: list[tuple[float, float]] = []
        for text in sorted(axes.texts, key=lambda one: one.get_window_extent().x0):
            box = text.get_window_extent()
            shift = max(0.0, 2 - box.x0) + min(0.0, width - 2 - box.x1)
            if shift:
                x, y = text.get_position()
                text.set_position((x + shift * 72 / figure.dpi, y))
            ends = (box.x0 + shift, box.x1 + shift)
            if any(ends[0] < other[1] + 3 and other[0] < ends[1] + 3 for other in taken):
                text.remove()
            else:
                taken.append(ends)


# --- the note
# -------------------------------------------------------------------------------------------------------------


def note_of(groups: Sequence[Group], replicate: str, *more: str) -> str:
    """What a reader must know of the runs, in a line."""
    records = [record for group in groups for record in group.records]
    parts = [_requests(records), _hardware(records), *more, _intervals(groups, replicate), _short_windows(groups)]
    return legible_note("; ".join(part for part in parts if part))


def _short_windows(groups: Sequence[Group]) -> str:
    """The number of runs that are too short, and their groups, in a line."""
    every = [(group, has_short_window([one.summary])) for group in groups for one in group.records]
    short = [group.label for group, is_short in every if is_short]
    where = (
        f" ({len(short)} of {len(every)} runs: {', '.join(dict.fromkeys(short))})" if len(short) < len(every) else ""
    )
    return f"{SHORT_MEANS}{where}" if short else ""


def legible_note(text: str) -> str:
    """A note in characters that can all be shown."""
    return " ".join(legible(word).strip() for word in text.split(" "))


def slos_of(groups: Sequence[Group]) -> str:
    """The limits, if all runs have the same."""
    found = {slo_of(record) for group in groups for record in group.records}
    return f"SLO {found.pop()}" if len(found) == 1 else ""


def _requests(records: Sequence[Record]) -> str:
    names = dict.fromkeys((str(one.summary.get("trace")), str(one.summary.get("trace_source"))) for one in records)
    said = [
        f"{name} (fitted trace, not a recording)" if source == "twin" else f"{name} ({source})"
        for name, source in names
    ]
    return ", ".join(said)


def _hardware(records: Sequence[Record]) -> str:
    gpus = sorted({int(one.summary.get("gpus", 0)) for one in records})
    number = f"{gpus[0]}" if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]}"
    names = {key: {str(value_of(one, key)) for one in records} for key in ("model", "gpu")}
    model, gpu = (found.pop() if len(found) == 1 else "" for found in names.values())
    return f"{model} on {number} {gpu or 'GPUs'}".removeprefix(" on ")


def _intervals(groups: Sequence[Group], replicate: str) -> str:
    counts = sorted({len(own) for group in groups for own in group.cells.values()})
    if counts[-1] < 2:
        return ""
    several = [own for group in groups for own in group.cells.values() if len(own) > 1]
    number = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else f"{counts[0]}"
    kind = next((found for own in several if (found := sampling({value_of(one, replicate): one for one in own}))), "")
    of = f": {kind}" if kind else " of the same requests"
    return f"mean and 95 % interval (Student's t) over {number} replicates ({replicate}{of})"


def limits_of(records: Sequence[Record], name: str) -> Iterator[tuple[float, str]]:
    """The limits (seconds) of this name in the settings of runs, of all requests and of classes, with labels."""
    for record in records:
        for key, value in record.config.items():
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                continue
            if key == f"slo.{name}":
                yield float(value), "SLO"
            elif key.startswith("slo.classes.") and key.endswith(f".{name}"):
                yield float(value), f"SLO of {key.removeprefix('slo.classes.').removesuffix(f'.{name}')}"
