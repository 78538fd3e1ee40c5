"""Output for a terminal: it shows every character, and every column and digit of a table."""

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
    """Shows control characters instead of sending them, and divides a table that is wider than the terminal."""

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
        for number, part in enumerate(in_parts(renderable, self, options or self.options)):
            if number:
                yield Segment.line()
            yield from super().render(part, options)


def in_parts(table: Table, console: Console, options: ConsoleOptions) -> list[Table]:
    """The table, or as many tables below each other as it takes; each begins with the columns that name the rows.

    These are the first column and those after it that are flush left. They are folded if they take more than half the
    width.
    """
    columns, width = table.columns, options.max_width
    names = next((at for at, column in enumerate(columns) if at and column.justify != "left"), len(columns))
    naming, rest = columns[:names], list(columns[names:])
    endless = options.update(width=_ENDLESS)

    def wanted(of: Sequence[Column]) -> int:
        return Measurement.get(console, endless, _part(table, of)).maximum

    foldable = [column for column in naming if not column.no_wrap]
    least = wanted([column for column in naming if column.no_wrap]) if len(foldable) < len(naming) else 0
    least += sum(_longest_word(console, endless, column) for column in foldable)
    if not rest or least + wanted(rest) <= width:
        return [table]
    room = width - min(least, width // 2)
    groups: list[list[Column]] = [[]]
    for column in rest:
        if groups[-1] and wanted([*groups[-1], column]) > room:
            groups.append([])
        groups[-1].append(column)
    folded = [_folding(column) for column in naming]
    return [_part(table, [*folded, *group]) for group in groups]


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
