"""Predicted next to measured, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from experiments.validation.fidelity.report import titled_table
from experiments.validation.given.replay import Judged

_HEADS = {
    "ttft_ms_mean": "TTFT, mean",
    "ttft_ms_p50": "TTFT, median",
    "ttft_ms_p90": "TTFT, P90",
    "ttft_ms_p99": "TTFT, P99",
    "tpot_ms_mean": "TPOT, mean",
}
_UNITS = {"tokens_per_s_gpu": "output tokens/s a GPU", "e2e_s": "s, mean of a request"}


def stage_table(stages: Sequence[Sequence[Judged]]) -> Table:
    """A line for each stage, a column for each figure, and the mean absolute errors."""
    table = titled_table("Stages in open loop: predicted / measured in ms, and the error in percent", "stage")
    for figure in _HEADS:
        table.add_column(_HEADS[figure], justify="right", no_wrap=True)
    for judged in stages:
        table.add_row(judged[0].row, *map(_cell, judged))
    table.add_section()
    table.add_row("mean absolute error", *(f"{mean_error(column):.1f}" for column in zip(*stages, strict=True)))
    return table


def offline_table(rows: Sequence[Judged]) -> Table:
    """A line for each row, and the mean absolute error."""
    table = titled_table("All requests at once: predicted / measured, and the error in percent", "row", "figure")
    table.add_column("predicted / measured", justify="right", no_wrap=True)
    for one in rows:
        table.add_row(one.row, _UNITS[one.figure], _cell(one))
    table.add_section()
    table.add_row("mean absolute error", "", f"{mean_error(rows):.1f}")
    return table


def csv_lines(rows: Sequence[Judged]) -> Iterator[str]:
    """A head, and a line for each figure."""
    yield "row,figure,predicted,measured,error_percent,least,most\n"
    for one in rows:
        ends = f"{one.least:.6g},{one.most:.6g}"
        yield f"{one.row},{one.figure},{one.predicted:.6g},{one.measured:.6g},{one.error:.3f},{ends}\n"


def mean_error(rows: Sequence[Judged]) -> float:
    """The mean of absolute errors, in percent."""
    return sum(abs(one.error) for one in rows) / len(rows)


def _cell(one: Judged) -> str:
    return f"{_figures(one.predicted)} / {_figures(one.measured)} {one.error:+5.1f}"


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
