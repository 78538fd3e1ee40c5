"""Output for a terminal: it shows every character, whole columns of a table, and the names of those without room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from framework.cli.safe_text import to_be_seen

_ENDLESS = 10_000  # columns of a terminal on which any table may be as wide as it needs


class SafeConsole(Console):
    """Shows control characters instead of sending them, and leaves columns out of a table wider than the terminal."""

    def render_str(self, text: str, **how: Any) -> Text:
        """The text of a cell or a line."""
        return super().render_str(to_be_seen(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, part by part."""
        if isinstance(renderable, Text) and (seen := to_be_seen(renderable.plain)) != renderable.plain:
            renderable = Text(
                seen,
                renderable.style,
                justify=renderable.justify,
                overflow=renderable.overflow,
                no_wrap=renderable.no_wrap,
                end=renderable.end,
            )
        if not isinstance(renderable, Table):
            yield from super().render(renderable, options)
            return
        options = options or self.options
        shown, missing = fitted(renderable, self, options)
        yield from super().render(shown, options)
        if missing:
            yield from super().render(Text(missing, "dim"), options)


def fitted(table: Table, console: Console, options: ConsoleOptions) -> tuple[Table, str]:
    """The table without the last columns if it is wider than the terminal, and a line that names them.

    The first column and those after it that are flush left name the rows, so they stay. They are folded if they take
    more than half the width. One other column stays too.
    """
    columns, width = table.columns, options.max_width
    names = next((at for at, column in enumerate(columns) if at and column.justify != "left"), len(columns))
    naming, rest = columns[:names], list(columns[names:])
    endless = options.update(width=_ENDLESS)

    def wanted(of: Sequence[Column]) -> int:
        return Measurement.get(console, endless, _part(table, of)).maximum

    whole = [column for column in naming if column.no_wrap]
    needed = wanted([*whole, *rest])  # with the space between both
    needed += sum(_longest_word(console, endless, column) for column in naming if not column.no_wrap)
    if not rest or needed <= width:
        return table, ""
    least = needed - wanted(rest)
    folded = min(least, width // 2)
    kept = next((end for end in range(len(rest), 1, -1) if wanted(rest[:end]) <= width - folded), 1)
    part = _part(table, [*(_folding(column) for column in naming), *rest[:kept]])
    return part, _missing(rest, kept, needed)


def _missing(columns: Sequence[Column], kept: int, width: int) -> str:
    """`not shown: TBT P99 ms, E2E P99 s (a terminal of 97 columns has room)`; nothing without columns to name."""
    said, first = [], ""
    for column in columns:
        lines = str(column.header).split("\n")
        first = lines[0] or first  # an empty first line repeats that of the column before
        said.append(" ".join([first, *lines[1:]]).replace("- ", "").strip())
    return f"not shown: {', '.join(said[kept:])} (a terminal of {width} columns has room)" if said[kept:] else ""


def _longest_word(console: Console, options: ConsoleOptions, column: Column) -> int:
    cells = (column.header, *column.cells)
    return max(Measurement.get(console, options, cell).minimum for cell in cells) + 2


def _folding(column: Column) -> Column:
    copied = column.copy()
    copied._cells = [*column.cells]
    copied.no_wrap, copied.overflow = False, "fold"
    return copied


def _part(table: Table, columns: Sequence[Column]) -> Table:
    """The rows with these columns alone."""
    part = Table(
        box=table.box,
        show_header=table.show_header,
        show_edge=table.show_edge,
        pad_edge=table.pad_edge,
        padding=table.padding,
        title=table.title,
        title_justify=table.title_justify,
        caption=table.caption,
        caption_justify=table.caption_justify,
    )
    for number, column in enumerate(columns):
        copied = column.copy()
        copied._index, copied._cells = number, [*column.cells]
        part.columns.append(copied)
    part.rows = list(table.rows)
    return part
