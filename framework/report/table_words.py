"""What tables of runs say of a run, and how they look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from framework.metrics.figure import Metric
from framework.metrics.figures import metric
from framework.report.numbers import NONE, number, side_by_side, small_percent

Summary = Mapping[str, Any]
WARNING = "bold black on yellow"
# What a source says of its fit: the loads, and how the run relates to them; or why the fit does not count.
_FIT = re.compile(r"(, calibrated(?: as \w+ was)?) to ([^);]*?)(?:, (this run: [^);]*))?(?=[);])")
_LEFT_OUT = re.compile(r"(, calibration left out): ([^);]*)(?=[);])")
_ROOFLINE = re.compile(r"\broofline\b(?:[^;)]*, to a factor of ([\d.]+))?")
_FAR = 1.05  # times the measured size: below it rounding would hide the excess
_GOOD_SHARE, _POOR_SHARE = 0.9, 0.5
WIDE = 96  # columns that a full comparison needs
COMPARED = ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "p99_itl_ms", "p99_e2el_ms")


def headings(*keys: str) -> list[str]:
    """Headings of the columns of these figures, all with the same number of lines."""
    return side_by_side([metric(key).heading for key in keys])


def caveats(*summaries: Summary) -> list[RenderableType]:
    """How the requests of the runs differ from the trace that they were taken from."""
    caveats = dict.fromkeys(summary.get("trace_caveat") for summary in summaries)
    return [Constrain(Text(f" {one} ", WARNING), WIDE) for one in caveats if one]


def without_place(source: str) -> str:
    """The source of step times without the place of one run's load, for several runs."""
    return _FIT.sub(r"\1 to \2", source)


def without_loads(source: str) -> tuple[str, list[RenderableType]]:
    """The source of step times, and in separate lines the loads of its calibration, if it states them.

    Those lines also say how the run's own load relates to them.
    """
    lines: list[RenderableType] = []
    for found in (_FIT.search(source), _LEFT_OUT.search(source)):
        if found is not None:
            parts = [f"{found[1].removeprefix(', ')}{' to ' if found.re is _FIT else ': '}{found[2]}"]
            parts += [found[3]] if found.re is _FIT and found[3] else []
            lines += [Constrain(Text(part, style="dim"), WIDE) for part in parts]
    return _LEFT_OUT.sub(r"\1", _FIT.sub(r"\1", source)), lines


def extrapolated(*summaries: Summary) -> list[Text]:
    """The largest share of time that rests on extrapolated step times, if any does."""
    share, ratio = (max(summary[key] for summary in summaries) for key in ("extrapolated", "extrapolation"))
    if not share:
        return []
    part = small_percent(share)
    if len(summaries) > 1 and not part.startswith("under"):
        part = f"up to {part}"
    far = f"to {ratio:.2g} times the measured size" if ratio >= _FAR else "hardly beyond the measured size"
    return [Text(f" {part} of busy time extrapolated, {far} ", WARNING)]


def estimated(*summaries: Summary) -> list[Text]:
    """That step times are not from measured kernels, and how wrong they may be, if any are."""
    found = [one for summary in summaries if (one := _ROOFLINE.search(str(summary["timing_source"])))]
    factors = [float(one[1]) for one in found if one[1]]
    if not found:
        return []
    off = f"; steps may be {max(factors):g} times longer or shorter" if factors else ""
    return [Text(f" from a datasheet, not from measured kernels{off} ", WARNING)]


def source_of(summary: Summary) -> Text:
    """The source of the requests; one that only resembles a real trace must be visible at once."""
    if summary["trace_source"] == "twin":
        return Text(" fitted trace, not a recording ", style=WARNING)
    return Text(f"({summary['trace_source']})", style="dim")


def open_table(between: int = 1) -> Table:
    """A table without edges, with so many spaces between its columns."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, between, 0, 0))


def add_numbers(table: Table, *headings: str) -> None:
    """Add columns of numbers."""
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)


def plain_table(first: str, second: str, between: int = 1) -> Table:
    """An open table; its first column is bold if it has a heading."""
    table = open_table(between)
    table.add_column(first, style="bold" if first else "", no_wrap=True)
    table.add_column(second, no_wrap=not second or bool(first), overflow="fold")
    return table


def alike(summary: Summary, key: str) -> Any:
    """The value that distinguishes runs; for step times, without each run's load relative to the fit's."""
    return _FIT.sub(r"\1 to \2", str(summary[key])) if key == "timing_source" else summary[key]


def gpus_of(summary: Summary) -> str:
    """The number of GPUs of the run."""
    return f"{summary['gpus']} GPU{'s' if summary['gpus'] > 1 else ''}"


def attainment(share: float, unit: str = " %") -> Text:
    """A share, coloured by its size."""
    style = "green" if share >= _GOOD_SHARE else "yellow" if share >= _POOR_SHARE else "red"
    return Text(f"{100 * share:.1f}{unit}", style=style)


def named(key: str, value: float) -> str:
    """A figure in words: `goodput 44.5 req/s`."""
    known = metric(key)
    return f"{known.name} {scaled(known, value)} {known.unit}".rstrip()


def scaled(shown: Metric, value: float | None) -> str:
    """A value of the summary in the unit of its figure."""
    return NONE if value is None else number(value * shown.scale)
