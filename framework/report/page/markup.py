"""HTML: text that cannot become markup, tables, figures, and the page around them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from framework.cli.safe_text import masked, printable
from framework.report.page.script import MISSING, allowed, embedded, is_interactive, scripts
from framework.report.page.style import STYLE


@dataclass(frozen=True)
class Links:
    """A cell with links: (text, address)."""

    entries: Sequence[tuple[str, str]]

    def html(self) -> str:
        return ", ".join(f'<a href="{text(address)}">{text(label)}</a>' for label, address in self.entries)


Cell = str | int | float | bool | Links | None


def plain(value: object) -> str:
    """Any value without secrets, control characters shown."""
    return printable(masked(str(value)))


def text(value: object) -> str:
    """Any value as text of a page: markup in it stays text, and control characters are shown."""
    return html.escape(plain(value), quote=True).replace(" %", "\u00a0%")


@dataclass(frozen=True)
class Sheet:
    """A table: `columns`, and rows of cells; numbers are aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    def html(self) -> str:
        first = self.rows[0] if self.rows else [""] * len(self.columns)
        marks = ["" if isinstance(cell, (str, Links)) else ' class="n"' for cell in first]
        head = "".join(
            f'<th scope="col"{mark}>{text(column)}</th>' for column, mark in zip(self.columns, marks, strict=True)
        )
        columns = [_column([row[place] for row in self.rows]) for place in range(len(self.columns))]
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True))
        caption = f"<caption>{text(self.caption)}</caption>" if self.caption else ""
        return (
            f'<div class="scroll" tabindex="0"><table>{caption}'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def _column(cells: Sequence[Cell]) -> list[str]:
    """The cells below each other; numbers have their points below each other, by what is not shown behind them."""
    floats = [cell for cell in cells if isinstance(cell, float)]
    form = _short if any(cell != round(cell) for cell in floats) else "{:,.0f}".format
    shown = [form(cell) if isinstance(cell, float) else f"{cell:,}" if _is_count(cell) else "" for cell in cells]
    behind = [one[one.index(".") :] if "." in one else "" for one in shown]
    most = max(map(len, behind), default=0)
    mark = "" if isinstance(next(iter(cells), ""), str | Links) else ' class="n"'
    padding = [f".{'0' * (most - 1)}"[len(rest) : most] for rest in behind]
    return [_cell(*one, mark) for one in zip(cells, shown, padding, strict=True)]


def _is_count(cell: Cell) -> bool:
    return isinstance(cell, int) and not isinstance(cell, bool)


def _cell(value: Cell, shown: str, padding: str, mark: str) -> str:
    padded = f' data-pad="{padding}"' if padding and shown else ""
    if value is None:
        return '<td class="n">–</td>'
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int):
        return f'<td class="n"{padded}>{shown}</td>'
    if isinstance(value, float):
        return f'<td class="n"{padded}><data value="{value!r}">{shown}</data></td>'
    return f"<td{mark}>{value.html() if isinstance(value, Links) else text(value)}</td>"


def _short(value: float) -> str:
    """Three significant digits, more only before the point."""
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:#.3g}".removesuffix(".")


@dataclass(frozen=True)
class Legend:
    """The meaning of the lines of a figure: (label, class of the series)."""

    entries: Sequence[tuple[str, str]]

    def html(self) -> str:
        items = "".join(
            f'<li data-kind="{text(kind.split()[0])}"><i class="{text(kind)}"></i>{text(label)}</li>'
            for label, kind in self.entries
        )
        return f'<ul class="legend">{items}</ul>' if items else ""


def figure(title: str, note: str, svg: str, legend: Legend, sheet: Sheet) -> str:
    """A picture with its title, its legend, and a table with the same content."""
    return (
        f"<figure><figcaption><strong>{text(title)}</strong> <span>{text(note)}</span></figcaption>"
        f"{legend.html()}{svg}<details><summary>Table: {text(title)}</summary>{sheet.html()}</details></figure>"
    )


@dataclass(frozen=True)
class Chapter:
    """A part of the page under a heading; it is left out without `content`."""

    anchor: str
    title: str
    content: str | None
    note: str = ""

    def html(self) -> str:
        said = f'<p class="note">{text(self.note)}</p>' if self.note else ""
        return f'<section id="{text(self.anchor)}"><h2>{text(self.title)}</h2>{said}{self.content}</section>'


def grid(parts: Iterable[str]) -> str:
    """Figures side by side as far as there is room."""
    return f'<div class="grid">{"".join(parts)}</div>'


def page(title: str, head: str, chapters: Sequence[Chapter], data: tuple[str, object], first: str = "") -> str:
    """The whole page: `head`, links to chapters with content, `first`, the chapters, and `data`.

    `data`: the id of a script element, and its JSON content.
    """
    shown = [chapter for chapter in chapters if chapter.content is not None]
    links = "".join(f'<a href="#{text(one.anchor)}">{text(one.title)}</a>' for one in shown)
    body = f"{head}<nav>{links}</nav>{first}{''.join(chapter.html() for chapter in shown)}"
    body += "" if is_interactive() else f'<p class="note offer">{text(MISSING)}</p>'
    body = f'<main>{body}</main><script type="application/json" id="{data[0]}">{embedded(data[1])}</script>'
    sources = scripts()
    body += "".join(f"<script>{source}</script>" for source in sources)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" content="'
        f"default-src 'none'; style-src 'unsafe-inline'{allowed(sources)}\">"
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )
