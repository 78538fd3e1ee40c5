"""Pictures of the answer: the map of the best family, the knobs, P:D against prefix hits, and the tightest SLOs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from experiments.curve.table import number
from experiments.guide.answer import Answer
from experiments.guide.axes import TITLES
from experiments.guide.families import FAMILIES, Family, short
from experiments.guide.flips import Cell
from experiments.guide.knobs import Knob
from experiments.guide.ranking import Entrant
from experiments.guide.report import headline, marked
from experiments.plot.frame import Entry, finish, legend_of, legible_note, panels
from experiments.plot.style import (
    PLAIN,
    SMALL_PT,
    WIDTH_IN,
    band,
    fit_axis,
    save,
    series_style,
    styled,
    variant_style,
)

_DPI = 150
_ROW_IN = 0.62  # height of a row of the map
_PANEL_IN = 2.1
_TINT = 0.38  # share of a family's colour on white: black letters stay readable
_NONE = "0.93"
_COLUMNS = 5
_HIGHEST = "highest rate (req/s a GPU)"
_ABOVE = 1.05  # times the largest value: room for the mark there


def draw(answer: Answer, directory: Path) -> list[Path]:
    """Write map, knobs, batch, split and limits, as far as they exist, each as .png, .pdf and .svg; return the
    paths.
    """
    makers: dict[str, tuple[bool, Callable[[Answer], Figure]]] = {
        "map": (any(line.cells for line in answer.lines), _map),
        "knobs": (any(knob.settings for knob in answer.knobs), _knobs),
        "batch": (any(knob.settings for knob in answer.batches), _batch),
        "split": (bool(answer.hits), _split),
        "limits": (any(front.holds for front in answer.fronts), _limits),
    }
    with styled():
        made = [(name, make(answer)) for name, (is_there, make) in makers.items() if is_there]
        return [path for name, figure in made for path in save(figure, directory, name, dpi=_DPI)]


def look(name: str) -> dict[str, Any]:
    """The look of a family in all pictures."""
    return series_style([family.name for family in FAMILIES].index(name))


# --- the map ----------------------------------------------------------------------------------------------------------


def _map(answer: Answer) -> Figure:
    rows = [line for line in answer.lines if line.cells]
    figure = Figure(figsize=(WIDTH_IN, _ROW_IN * len(rows) + 0.1))
    axes = figure.subplots()
    for row, line in enumerate(rows):
        for column, cell in enumerate(line.cells):
            _cell(axes, (column, row), cell, answer.gpus)
    axes.set(xlim=(0, _COLUMNS), ylim=(len(rows), 0), xticks=[])
    axes.set_yticks([row + 0.5 for row in range(len(rows))], [TITLES[line.axis.name] for line in rows])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bests = [cell.ranking.best for line in rows for cell in line.cells if cell.ranking is not None]
    shown = {entrant.family.name for line in rows for cell in line.cells for entrant in _winners(cell)}
    entries = [
        Patch(label=family.label, facecolor=_tint(look(family.name)["color"]))
        for family in FAMILIES
        if family.name in shown
    ]
    note = (
        f"{headline(answer, answer.plan.cell_replicates)}. In a cell: value of the axis; what the best is tuned to; its"
        " req/s a GPU. Several colours: those are not distinguished at 95 %"
        f"{'. *: rests on an undecided rate' if any(not one.is_settled for one in bests) else ''}"
    )
    return finish(figure, entries, legible_note(note))


def _winners(cell: Cell) -> tuple[Entrant, ...]:
    return () if cell.ranking is None else cell.ranking.as_good


def _cell(axes: Axes, place: tuple[int, int], cell: Cell, gpus: int) -> None:
    """A tile in the colours of the families that are as good as the best."""
    left, top = place[0] + 0.02, place[1] + 0.04
    winners = _winners(cell)
    width = 0.96 / max(1, len(winners))
    for position, colour in enumerate([_tint(look(one.family.name)["color"]) for one in winners] or [_NONE]):
        axes.add_patch(Rectangle((left + position * width, top), width, 0.92, facecolor=colour, linewidth=0))
    middle = place[0] + 0.5
    axes.text(middle, top + 0.2, cell.value.label, ha="center", va="center", fontsize=7, weight="bold")
    if cell.ranking is None:
        axes.text(middle, top + 0.5, "no family keeps the SLO", ha="center", va="center", fontsize=SMALL_PT)
        return
    best = cell.ranking.best
    axes.text(middle, top + 0.49, short(best.point.settings), ha="center", va="center", fontsize=SMALL_PT)
    rate = marked(best.values.mean() / gpus, is_settled=best.is_settled)
    axes.text(middle, top + 0.76, f"{rate} req/s", ha="center", va="center", fontsize=SMALL_PT)


def _tint(colour: str) -> str:
    return to_hex((1 - _TINT + _TINT * np.asarray(to_rgb(colour))).tolist())


# --- knobs ------------------------------------------------------------------------------------------------------------


_AS_TUNED = "All else as tuned; filled marks: not distinguished from the best; bands: 95 % intervals"


def _knobs(answer: Answer) -> Figure:
    names = list(dict.fromkeys(knob.name for knob in answer.knobs))
    figure = Figure(figsize=(WIDTH_IN, _PANEL_IN))
    every = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(every, names, strict=True):
        _knob_panel(axes, [knob for knob in answer.knobs if knob.name == name and knob.settings], answer.gpus)
    every[0].set_ylabel(_HIGHEST)
    return _finished(figure, answer, [knob.family for knob in answer.knobs], _AS_TUNED)


def _finished(figure: Figure, answer: Answer, families: Sequence[Family], note: str) -> Figure:
    """The figure with these families in the legend, and the question above."""
    entries = [Entry(one.label, look(one.name)) for one in FAMILIES if one in families]
    return finish(figure, legend_of(entries), legible_note(f"{headline(answer)}. {note}"))


def _knob_panel(axes: Axes, knobs: Sequence[Knob], gpus: int) -> None:
    every = []
    for knob in knobs:
        style = look(knob.family.name)
        xs = np.array([one.value for one in knob.settings])
        ys = np.array([one.rates.mean() / gpus for one in knob.settings])
        widths = np.array([one.estimate.half_width / gpus for one in knob.settings])
        band(axes, xs, ys, widths, {**style, "markerfacecolor": "white"})
        good = np.array([one in knob.as_good for one in knob.settings])
        axes.plot(xs[good], ys[good], **{**style, "linestyle": ""})
        every += [xs]
    if not knobs:
        return
    axes.set_xlabel(knobs[0].label)
    axes.set_ylim(bottom=0)
    xs = np.concatenate(every)
    if xs.max() > 8 * xs.min():
        axes.set_xscale("log", base=2)
        ticks = np.unique(xs)
        axes.set_xticks(ticks if len(ticks) <= _COLUMNS else ticks[::2])
        axes.xaxis.set_major_formatter(PLAIN)
        axes.minorticks_off()
    else:
        settings = knobs[0].settings
        axes.set_xticks([one.value for one in settings], [one.label for one in settings])


def _batch(answer: Answer) -> Figure:
    figure, (rates, tpots) = panels(WIDTH_IN, 2)
    shown = [knob for knob in answer.batches if knob.settings]
    _knob_panel(rates, shown, answer.gpus)
    rates.set_ylabel(_HIGHEST)
    for knob in shown:
        xs, ys = [one.value for one in knob.settings], [one.tpot_ms for one in knob.settings]
        tpots.plot(xs, ys, **look(knob.family.name))
    tpots.set(xlabel=shown[0].label, ylabel="TPOT there, P90 (ms)", xscale="log")
    tpots.set_ylim(0, _ABOVE * tpots.dataLim.y1)
    tpots.set_xticks(rates.get_xticks(), [f"{tick:,.0f}" for tick in rates.get_xticks()])
    tpots.minorticks_off()
    return _finished(figure, answer, [knob.family for knob in shown], _AS_TUNED)


# --- P:D against hits -------------------------------------------------------------------------------------------------


def _split(answer: Answer) -> Figure:
    figure, (axes,) = panels(WIDTH_IN, 1)
    place = [family.name for family in FAMILIES].index("disaggregated")
    entries = []
    for index, (value, knob) in enumerate(answer.hits):
        style = variant_style(place, index, len(answer.hits))
        xs = np.array([one.value for one in knob.settings])
        ys = np.array([one.rates.mean() / answer.gpus for one in knob.settings])
        widths = np.array([one.estimate.half_width / answer.gpus for one in knob.settings])
        band(axes, xs, ys, widths, style)
        best = int(np.argmax(ys))
        axes.plot(xs[best], ys[best], color=style["color"], marker=style["marker"], markersize=7, linestyle="")
        entries.append(Entry(f"{value.label} of prompts cached", style))
    settings = answer.hits[0][1].settings
    axes.set_xticks([one.value for one in settings], [one.label for one in settings])
    axes.set(xlabel="P:D (instances)", ylabel=_HIGHEST)
    fit_axis(axes, "y", np.array([one.rates.mean() / answer.gpus for _, knob in answer.hits for one in knob.settings]))
    note = (
        f"{headline(answer)}. Disaggregated, TP as tuned; the large mark is the best of a line; bands: 95 % intervals"
    )
    return finish(figure, legend_of(entries), legible_note(note))


# --- the tightest limits ----------------------------------------------------------------------------------------------


def _limits(answer: Answer) -> Figure:
    figure, (axes,) = panels(WIDTH_IN, 1)
    shown = [front for front in answer.fronts if front.holds]
    for front in shown:
        xs = np.array([hold.ttft_ms for hold in front.holds])
        ys = np.array([hold.tpot_ms for hold in front.holds])
        axes.plot(xs, ys, **{**look(front.family.name), "drawstyle": "steps-post"})
    axes.set(xlabel="TTFT that 90 % keep (ms)", ylabel="TPOT that 90 % keep (ms)")
    fit_axis(axes, "x", np.array([hold.ttft_ms for front in shown for hold in front.holds]))
    fit_axis(axes, "y", np.array([hold.tpot_ms for front in shown for hold in front.holds]))
    rate = number(answer.front_rate_rps / answer.gpus)
    note = f"At {rate} req/s a GPU; down and left is tighter; a mark is one configuration"
    return _finished(figure, answer, [front.family for front in shown], note)
