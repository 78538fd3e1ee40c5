"""A chart as inline SVG: axes with ticks, lines, dots and limits, in the colours of the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.report.page.markup import plain, text
from framework.report.page.scale import Scale, tick_text
from framework.report.page.script import data_block

Floats = NDArray[np.float64]
Behind = int | str  # of a point: the row of the request in the table that the page holds, or words
WIDTH, HEIGHT = 380.0, 232.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 12.0, 20.0, 38.0
_LETTER = 6.2  # width of a letter
_TICK_ROOM = 30.0  # between two labels of the axis below
_THIN, _SMALL = 1.6, 3.0  # pixels, of the last line and its marks
_WIDER, _LARGER = (1.5, 4.5), (1.1, 4.0)  # pixels from a line to the one below it, and in all


# --- lines that stay visible where they are equal: each is thinner, with smaller marks, than the one before -----------


@dataclass(frozen=True)
class Trend:
    """Points (N,) joined in order, from `low` to `high` over repetitions; `hollow` ones stand apart; `behind`: words
    for each.
    """

    xs: Floats
    ys: Floats
    low: Floats
    high: Floats
    hollow: NDArray[np.bool_]
    behind: Sequence[str]


def _polygon(corners: int, turned: float = 0.0) -> str:
    angles = 2 * np.pi * (np.arange(corners) / corners + turned) - np.pi / 2
    return "M" + "L".join(f"{np.cos(one):.3f} {np.sin(one):.3f}" for one in angles) + "Z"


_STAR = "M0 -1L.26 -.3L.95 -.31L.42 .12L.59 .81L0 .4L-.59 .81L-.42 .12L-.95 -.31L-.26 -.3Z"
# in the order of the legend's signs, whose style is in `style.py`
MARKS = (
    _polygon(16), _polygon(4, 0.125), _polygon(3), _polygon(4), _polygon(3, 0.5), _polygon(5), _polygon(6), _STAR,
)  # fmt: skip


def width(number: int, count: int) -> float:
    """Of the line `number` of `count`, in pixels."""
    return _THIN + (count - 1 - number) * min(_WIDER[0], _WIDER[1] / max(count - 1, 1))


def radius(number: int, count: int) -> float:
    """Of the marks of the line `number` of `count`, in pixels."""
    return _SMALL + (count - 1 - number) * min(_LARGER[0], _LARGER[1] / max(count - 1, 1))


# --- the chart --------------------------------------------------------------------------------------------------------


@dataclass
class Chart:
    """One plot, whose parts are drawn in the order in which they are added. `title` is read out to readers who cannot
    see it; the horizontal axes of charts with the same `link` show one range.
    """

    title: str
    x: Scale
    y: Scale
    x_label: str
    y_label: str
    link: str = ""
    _parts: list[str] = field(default_factory=list)
    _series: list[dict[str, Any]] = field(default_factory=list)
    _limits: list[dict[str, Any]] = field(default_factory=list)

    def line(self, xs: Floats, ys: Floats, kind: str, behind: Sequence[Behind] = ()) -> None:
        """Add points joined in order; the line breaks where one is not finite. `behind`: of each point."""
        self._joined(xs, ys, kind)
        self._hold("line", kind, xs, ys, behind)

    def _joined(self, xs: Floats, ys: Floats, kind: str, style: str = "") -> None:
        pieces, pen = [], "M"
        for at, up in zip(self._across(xs), self._up(ys), strict=True):
            if not np.isfinite(at + up):
                pen = "M"
                continue
            pieces.append(f"{pen}{at:.1f} {up:.1f}")
            pen = "L"
        self._path("line", kind, pieces, style)

    def steps(self, edges: Floats, ys: Floats, kind: str) -> None:
        """Add a level from each edge to the next, shape (N + 1,) and (N,)."""
        self._joined(np.repeat(edges, 2)[1:-1], np.repeat(ys, 2), kind)
        self._hold("steps", kind, edges, np.append(ys, ys[-1:]), ())

    def dots(self, xs: Floats, ys: Floats, kind: str, behind: Sequence[Behind] = ()) -> None:
        """Add a dot for each finite point. `behind`: of each point."""
        places = np.unique(np.round(np.stack([self._across(xs), self._up(ys)], axis=1), 1), axis=0)
        self._path("dots", kind, [f"M{at:.1f} {up:.1f}h0" for at, up in places if np.isfinite(at + up)])
        self._hold("dots", kind, xs, ys, behind)

    def trends(self, trends: Sequence[Trend]) -> None:
        """Add lines with marks and ranges, the kinds s0, s1 and so on in turn."""
        for number, one in enumerate(trends):
            wide, size, kind = width(number, len(trends)), radius(number, len(trends)), f"s{number}"
            self._joined(one.xs, one.ys, kind, f"stroke-width:{wide:.1f}px")
            self._ranges(one, number)
            for at, up, is_hollow in zip(self._across(one.xs), self._up(one.ys), one.hollow, strict=True):
                fill = "var(--paper)" if is_hollow else f"var(--c{number})"
                self._parts.append(
                    f'<path class="marker" transform="translate({at:.1f} {up:.1f}) scale({size:.2f})" '
                    f'style="fill:{fill};stroke:var(--c{number})" d="{MARKS[number]}"/>'
                )
            self._hold("trend", kind, one.xs, one.ys, one.behind)
            more = {"low": _short(one.low), "high": _short(one.high), "hollow": one.hollow.tolist()}
            self._series[-1] |= more | {"mark": MARKS[number], "width": round(wide, 2), "size": round(4 * size**2, 1)}

    def _ranges(self, trend: Trend, number: int) -> None:
        ends = zip(self._across(trend.xs), self._up(trend.low), self._up(trend.high), strict=True)
        pieces = [f"M{at:.1f} {low:.1f}V{high:.1f}" for at, low, high in ends if low > high]
        self._path("range", f"s{number} whole", pieces)

    def _hold(self, shape: str, kind: str, xs: Floats, ys: Floats, behind: Sequence[Behind]) -> None:
        """Keep points for the script."""
        own = {"shape": shape, "kind": kind, "x": _short(xs), "y": _short(ys), "behind": list(behind)}
        self._series.append(own)

    def _path(self, shape: str, kind: str, pieces: list[str], style: str = "") -> None:
        if pieces:
            styled = f' style="{style}"' if style else ""
            self._parts.append(f'<path class="{shape} {text(kind)}"{styled} d="{"".join(pieces)}"/>')

    def upright_limit(self, value: float, label: str) -> None:
        """Add a dashed line at a value of the horizontal axis; none if that lies outside it."""
        self._limits.append({"axis": "x", "at": value, "label": plain(label)})
        place = float(self.x([value])[0])
        if not 0 <= place <= 1:
            return
        at = float(self._across(np.array([value]))[0])
        end = at + 4 + _LETTER * len(label) > WIDTH - _RIGHT
        anchor, shift = ("end", -4) if end else ("start", 4)
        self._parts.append(
            f'<path class="limit" d="M{at:.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>'
            f'<text class="limit" x="{at + shift:.1f}" y="{_TOP - 6}" text-anchor="{anchor}">{text(label)}</text>'
        )

    def level_limit(self, value: float, label: str) -> None:
        """Add a dashed line at a value of the vertical axis."""
        self._limits.append({"axis": "y", "at": value, "label": plain(label)})
        place = float(self.y([value])[0])
        if not 0 <= place <= 1:
            return
        up = float(self._up(np.array([value]))[0])
        self._parts.append(
            f'<path class="limit" d="M{_LEFT} {up:.1f}H{WIDTH - _RIGHT}"/>'
            f'<text class="limit" x="{WIDTH - _RIGHT}" y="{max(up - 4, 10):.1f}" text-anchor="end">{text(label)}</text>'
        )

    def html(self) -> str:
        """The picture, and its points for the script that stands in for it."""
        held = {"x": _axis(self.x, self.x_label), "y": _axis(self.y, self.y_label), "link": self.link}
        return self.svg() + data_block("chart", {**held, "series": self._series, "limits": self._limits})

    def svg(self) -> str:
        return (
            f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{text(self.title)}">'
            f"{self._axis_below()}{self._axis_at_left()}{''.join(self._parts)}</svg>"
        )

    def _across(self, values: Floats) -> Floats:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * np.clip(self.x(values), 0.0, 1.0)

    def _up(self, values: Floats) -> Floats:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * np.clip(self.y(values), 0.0, 1.0)

    def _axis_below(self) -> str:
        parts, last = [], -np.inf
        base = HEIGHT - _BOTTOM
        ticks = self.x.ticks
        for value, at in zip(ticks, self._across(np.array(ticks)), strict=True):
            parts.append(f'<path class="gridline" d="M{at:.1f} {_TOP}V{base}"/>')
            if at - last >= _TICK_ROOM:
                parts.append(
                    f'<text x="{at:.1f}" y="{base + 14}" text-anchor="middle">{tick_text(value, ticks)}</text>'
                )
                last = at
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        parts.append(f'<path class="axis" d="M{_LEFT} {base}H{WIDTH - _RIGHT}"/>')
        label = f'<text class="label" x="{middle}" y="{base + 31}" text-anchor="middle">{text(self.x_label)}</text>'
        return "".join([*parts, label])

    def _axis_at_left(self) -> str:
        ticks = self.y.ticks
        parts = [
            f'<path class="gridline" d="M{_LEFT} {up:.1f}H{WIDTH - _RIGHT}"/>'
            f'<text x="{_LEFT - 5}" y="{up + 3.5:.1f}" text-anchor="end">{tick_text(value, ticks)}</text>'
            for value, up in zip(ticks, self._up(np.array(ticks)), strict=True)
        ]
        middle = (_TOP + HEIGHT - _BOTTOM) / 2
        label = (
            f'<text class="label" transform="translate(11 {middle}) rotate(-90)" text-anchor="middle">'
            f"{text(self.y_label)}</text>"
        )
        return "".join([*parts, label])


def _axis(scale: Scale, label: str) -> dict[str, Any]:
    return {"label": plain(label), "low": scale.low, "high": scale.high, "log": scale.log}


def _short(values: Floats) -> list[float | None]:
    """Five significant digits, which no screen distinguishes from more; None for what is not finite."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
