"""One step on a terminal: its time, its parts, and its place under the roofline."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from framework.report.numbers import number
from framework.report.step_figures import StepFigures
from framework.report.table_words import add_numbers, open_table

_WARNING = "bold black on yellow"
_FILL = "grey37"
_BAR_COLUMNS = 30
_LEAST_SHOWN_MS = 0.005  # the smallest time that two decimals show
_TERA = 1e12


def step_table(figures: StepFigures) -> RenderableType:
    """The figures of a step as a table, for `rich.console.Console.print`."""
    return Group(
        *_headline(figures), Text(), _parts(figures), Text(), *_use(figures), Text(), *_Roofline(figures).lines()
    )


def _headline(figures: StepFigures) -> Iterator[Text]:
    experts = f", {figures.expert_dtype} experts" if figures.expert_dtype != figures.dtype else ""
    types = f"{figures.dtype} weights{experts}, {figures.kv_dtype} KV"
    yield Text.assemble((figures.model, "bold"), " on ", (figures.gpu, "bold"), f" {figures.parallelism}, {types}")
    yield Text(_content(figures))
    yield Text(f"{figures.source}{_compared(figures)}", style="dim")
    if figures.scaled_from:
        where = (
            f"{figures.gpu}: scaled from {figures.scaled_from}"
            if figures.scaled_from != figures.gpu
            else "this datasheet: scaled"
        )
        text = f" not measured on {where} by the roofline of each part "
        yield Text(text, style=_WARNING)
    if figures.extrapolated:
        text = f" extrapolated: {figures.beyond_what}, {figures.extrapolation:.2f} x what was measured "
        yield Text(text, style=_WARNING)


def _content(figures: StepFigures) -> str:
    chunks = figures.step.chunks
    parts = []
    if chunks:
        count = f"{len(chunks):,} chunks of " if len(chunks) > 1 else ""
        after = f" after {chunks[0].prefix:,} cached" if chunks[0].prefix else ""
        parts.append(f"prefill of {count}{chunks[0].tokens:,} token{_plural(chunks[0].tokens)}{after}")
    if figures.step.batch:
        batch, context = figures.step.batch, figures.step.context
        parts.append(f"decode of {batch:,} sequence{_plural(batch)} at context {context:,}")
    return ", ".join(parts)


def _plural(count: int) -> str:
    return "s" if count > 1 else ""


def _parts(figures: StepFigures) -> Table:
    table = open_table()
    table.add_column("step", style="bold", no_wrap=True)
    add_numbers(table, f"{_decimals(figures.step_ms)} ms", "")
    table.add_column("", no_wrap=True)
    for name, part_ms in figures.parts_ms.items():
        if part_ms > _LEAST_SHOWN_MS:
            share = part_ms / figures.step_ms
            bar = Text("█" * round(_BAR_COLUMNS * share) or "▏", style="cyan")
            table.add_row(name.replace("_", " "), f"{_decimals(part_ms)} ms", f"{100 * share:.1f} %", bar)
    return table


def _compared(figures: StepFigures) -> str:
    """The step without, or with, the fitted terms."""
    if figures.calibrated_ms is None:
        return ""
    if figures.step_ms == figures.calibrated_ms:
        return f"; kernels alone {number(figures.kernels_ms)} ms"
    return f", kernels alone; calibrated {number(figures.calibrated_ms)} ms"


def _use(figures: StepFigures) -> Iterator[Text]:
    achieved = figures.flops / (figures.step_ms / 1e3)
    peak, bandwidth = number(figures.peak_flops / _TERA), number(figures.bandwidth_bytes_s / _TERA)
    yield Text.assemble(("MFU ", "bold"), f"{100 * figures.mfu:5.1f} %", (f"  of {peak} TFLOP/s", "dim"))
    yield Text.assemble(("MBU ", "bold"), f"{100 * figures.mbu:5.1f} %", (f"  of {bandwidth} TB/s", "dim"))
    yield Text.assemble(
        (f"{figures.bound}-bound", "bold"),
        f": {number(figures.intensity)} FLOP/byte",
        (f" (ridge at {number(figures.ridge)})", "dim"),
        f", {number(achieved / _TERA)} of {number(figures.attainable_flops / _TERA)} attainable TFLOP/s",
    )


class _Roofline:
    """Attainable FLOP/s over arithmetic intensity, both logarithmic, and the step below it."""

    _columns, _rows = 56, 8
    _heights = " ▁▂▃▄▅▆▇█"

    def __init__(self, figures: StepFigures) -> None:
        self._figures = figures
        self._achieved = figures.flops / (figures.step_ms / 1e3)
        self._left = math.floor(math.log10(min(figures.intensity, figures.ridge) / 3))
        self._right = math.ceil(math.log10(max(figures.intensity, figures.ridge) * 3))
        self._top = math.log10(figures.peak_flops * 1.3)
        self._bottom = math.log10(min(self._achieved / 2, self._roof(self._left + 0.7)))

    def lines(self) -> Iterator[Text]:
        column, row = self._at()
        for line, cells in enumerate(self._cells()):
            text = Text(f"{self._label(line):>7} ┤", style="dim")
            if line != row:
                yield text.append(cells, style=_FILL)
                continue
            point = f"bold yellow on {_FILL}" if cells[column] == "█" else "bold yellow"
            yield (
                text.append(cells[:column], style=_FILL)
                .append("●", style=point)
                .append(cells[column + 1 :], style=_FILL)
            )
        yield from self._axis()

    def _roof(self, x: float) -> float:
        return min(self._figures.peak_flops, self._figures.bandwidth_bytes_s * 10**x)

    def _height(self, flops: float) -> float:
        """Share of the drawing's height, 0 at the bottom."""
        return (math.log10(flops) - self._bottom) / (self._top - self._bottom)

    def _row_of(self, flops: float) -> int:
        return min(max(int((1 - self._height(flops)) * self._rows), 0), self._rows - 1)

    def _x(self, column: float) -> float:
        return self._left + (self._right - self._left) * column / self._columns

    def _at(self) -> tuple[int, int]:
        """Column and row of the step."""
        share = (math.log10(self._figures.intensity) - self._left) / (self._right - self._left)
        return int(share * self._columns), self._row_of(self._achieved)

    def _cells(self) -> list[str]:
        """The attainable area, filled in eighths of a row."""
        eighths = len(self._heights) - 1
        lines = []
        for line in range(self._rows):
            floor = eighths * (self._rows - 1 - line)
            tops = (eighths * self._rows * self._height(self._roof(self._x(x + 0.5))) for x in range(self._columns))
            lines.append("".join(self._heights[min(max(round(top - floor), 0), eighths)] for top in tops))
        return lines

    def _label(self, line: int) -> str:
        """The TFLOP/s of that row: the peak, or a round number in the row."""
        if line == self._row_of(self._figures.peak_flops):
            return number(self._figures.peak_flops / _TERA)
        for power in range(math.ceil(self._bottom), math.ceil(math.log10(self._figures.peak_flops))):
            if self._row_of(10.0**power) == line:
                return f"{10.0**power / _TERA:,.6g}"
        return ""

    def _axis(self) -> Iterator[Text]:
        ticks = [" "] * (self._columns + 8)
        marks = ["─"] * self._columns
        for power in range(self._left, self._right):
            column = round((power - self._left) / (self._right - self._left) * self._columns)
            marks[column] = "┬"
            label = f"{10.0**power:,.6g}"
            if column == 0 or ticks[column - 1] == " ":  # Otherwise the label before reaches here.
                ticks[column : column + len(label)] = label
        yield Text(f"{'TFLOP/s':>7} └{''.join(marks)}", style="dim")
        yield Text(f"{'':>7}  {''.join(ticks).rstrip()}  FLOP/byte", style="dim")


def _decimals(value_ms: float) -> str:
    """The number of decimals that distinguish a part of a step from 0, at most two."""
    return f"{value_ms:,.{2 if value_ms < 10 else 1 if value_ms < 100 else 0}f}"
