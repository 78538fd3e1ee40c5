"""A sheet in the terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text as Styled

from experiments.table.sheet import Sheet, Text
from framework.cli.terminal import results_console

_WARNING = "bold black on yellow"
_FITTED = "fitted trace, not a recording"
_BEST = "▸"
_BETWEEN = 2  # blanks, one of them the box's
_NARROWEST = 24  # least width to which a column of labels is folded
_MARKDOWN = {sign: f"\\{sign}" for sign in "\\`*_|<>[]"}
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": "$<$",
    ">": "$>$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
    "†": r"$^{\dagger}$",
    "‡": r"$^{\ddagger}$",
    "§": r"$^{\S}$",
    "*": r"$^{*}$",
}


# --- the terminal -----------------------------------------------------------------------------------------------------


def print_table(sheet: Sheet) -> None:
    """Print to stdout."""
    _print(sheet, results_console())


def as_text(sheet: Sheet, width: int) -> str:
    """The text on a terminal of that width, without colours."""
    text = io.StringIO()
    _print(sheet, Console(width=width, file=text, color_system=None))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _print(sheet: Sheet, console: Console) -> None:
    console.print(_as_rich(sheet, console.width))
    notes = Table.grid(padding=(0, 1))
    for note in _all_notes(sheet, _BEST):
        notes.add_row("-", Styled(note))
    console.print(notes)


def _as_rich(sheet: Sheet, width: int) -> RenderableType:
    """Columns that do not fit go into further tables below."""
    title = Styled(sheet.title, "bold")
    if sheet.is_fitted:
        title.append("  ").append(f" {_FITTED} ", _WARNING)
    widths = _label_widths(sheet, width)
    panels = [part for panel in _panels(sheet, width) for part in (_panel(sheet, panel, widths), Styled())]
    return Group(title, *panels)


def _label_widths(sheet: Sheet, width: int) -> list[int]:
    """The widths of the columns of labels; the widest is folded if all would take more than half of the terminal."""
    rows = [row for section in sheet.sections for row in section.rows]
    widths = [
        max(cell_len(text) for text in (heading, *(row[0][place] for row in rows)))
        for place, heading in enumerate(sheet.row_headings)
    ]
    widest = widths.index(max(widths))
    widths[widest] = max((widths[widest], *(cell_len(section.heading) for section in sheet.sections)))
    excess = sum(widths) + _BETWEEN * len(widths) - width // 2
    widths[widest] = max(min(widths[widest], _NARROWEST), widths[widest] - max(0, excess))
    return widths


def _panels(sheet: Sheet, width: int) -> list[list[int]]:
    """The columns that fit next to each other, table by table."""
    rows = [row for section in sheet.sections for row in section.rows]
    labels = sum(own + _BETWEEN for own in _label_widths(sheet, width))
    panels: list[list[int]] = [[]]
    left = width - labels
    for place, heading in enumerate(sheet.columns):
        marks = _marks_width(sheet, place)
        own = max(cell_len(heading), *(cell_len(_plain(row[1][place], marks)) for row in rows)) + _BETWEEN
        if own > left and panels[-1]:
            panels.append([])
            left = width - labels
        panels[-1].append(place)
        left -= own
    return panels


def _panel(sheet: Sheet, places: Sequence[int], label_widths: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _BETWEEN - 1, 0, 0))
    for heading, width in zip(sheet.row_headings, label_widths, strict=True):
        table.add_column(Styled(heading), width=width)
    widest = label_widths.index(max(label_widths))
    for place in places:
        table.add_column(Styled(sheet.columns[place]), justify="right", no_wrap=True)
    for section in sheet.sections:
        if section.heading:
            table.add_section()
            table.add_row(*[""] * widest, Styled(section.heading, "italic dim"))
        for labels, cells in section.rows:
            styled = (
                Styled(_plain(cells[place], _marks_width(sheet, place)), "bold" if cells[place].is_bold else "")
                for place in places
            )
            table.add_row(*(Styled(label) for label in labels), *styled)
    return table


def _plain(cell: Text, marks: int) -> str:
    sign = f"{_BEST} " if cell.is_bold else ""
    return f"{sign}{cell.text}{cell.marks.ljust(marks)}"


def _marks_width(sheet: Sheet, place: int) -> int:
    return max(len(row[1][place].marks) for section in sheet.sections for row in section.rows)


def _all_notes(sheet: Sheet, best: str) -> Iterator[str]:
    if sheet.best:
        yield f"{best}: {sheet.best}"
    yield from sheet.notes


# --- Markdown and LaTeX -----------------------------------------------------------------------------------------------


def as_markdown(sheet: Sheet) -> str:
    """A pipe table below its title, notes as a list."""
    fitted = f" ({_FITTED})" if sheet.is_fitted else ""
    labels, cells = len(sheet.row_headings), len(sheet.columns)
    lines = [
        f"**{in_markdown(sheet.title)}**{fitted}",
        "",
        pipes(map(in_markdown, (*sheet.row_headings, *sheet.columns))),
        "|" + "---|" * labels + "---:|" * cells,
    ]
    for section in sheet.sections:
        if section.heading:
            lines.append(pipes([f"*{in_markdown(section.heading)}*", *[""] * (labels + cells - 1)]))
        lines += [pipes([*map(in_markdown, own), *map(_markdown_cell, texts)]) for own, texts in section.rows]
    return "\n".join([*lines, "", *(f"- {in_markdown(note)}" for note in _all_notes(sheet, "Bold"))]) + "\n"


def in_markdown(text: str) -> str:
    """`text` with Markdown's signs escaped."""
    return _escaped(text, _MARKDOWN)


def pipes(cells: Iterable[str]) -> str:
    """One row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Text) -> str:
    text = in_markdown(cell.text)
    return (f"**{text}**" if cell.is_bold else text) + in_markdown(cell.marks)


def as_latex(sheet: Sheet) -> str:
    r"""A table environment for booktabs, with the notes below the rules."""
    labels, cells = len(sheet.row_headings), len(sheet.columns)
    fitted = f" ({_FITTED})" if sheet.is_fitted else ""
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_escaped(sheet.title + fitted, _LATEX)}}}",
        rf"  \begin{{tabular}}{{{'l' * labels}{'r' * cells}}}",
        r"    \toprule",
        _latex_row(_escaped(text, _LATEX) for text in (*sheet.row_headings, *sheet.columns)),
    ]
    for section in sheet.sections:
        lines.append(r"    \midrule")
        if section.heading:
            heading = rf"\emph{{{_escaped(section.heading, _LATEX)}}}"
            lines.append(rf"    \multicolumn{{{labels + cells}}}{{l}}{{{heading}}} \\")
        lines += [
            _latex_row([*(_escaped(label, _LATEX) for label in own), *map(_latex_cell, texts)])
            for own, texts in section.rows
        ]
    lines += [
        r"    \bottomrule",
        r"  \end{tabular}",
        r"  \par\smallskip",
        r"  \begin{minipage}{\linewidth}\footnotesize",
        *(rf"    {_escaped(note, _LATEX)}\par" for note in _all_notes(sheet, "Bold")),
        r"  \end{minipage}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Iterable[str]) -> str:
    return rf"    {' & '.join(cells)} \\"


def _latex_cell(cell: Text) -> str:
    text = _escaped(cell.text, _LATEX)
    return (rf"\textbf{{{text}}}" if cell.is_bold else text) + _escaped(cell.marks, _LATEX)


def _escaped(text: str, signs: Mapping[str, str]) -> str:
    return "".join(signs.get(sign, sign) for sign in text)
