"""A curve for people: the table of its points, the same by length of prompt, and where each series saturates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from experiments.curve.axis import RATE
from experiments.curve.figures import ALL, Curve, Floats, Line, after_last_arrival, fullest, last_kept, saturation
from framework.metrics.figures import HEADLINE, metric
from framework.report.load_words import footnotes, mark
from framework.report.numbers import side_by_side

_WARNING = "bold black on yellow"
_NONE = "–"
_SATURATED = "▸"
_AT_ONCE = 3  # buckets side by side
_LONG_END = 0.1  # share of a run
_HEADINGS = {"rates": "offered\nreq/s", "concurrency": "clients\n"}
_PER_GPU = f"{HEADLINE}_per_gpu"  # key of a curve's figures
_COLUMNS = (
    *("request_throughput", "output_throughput", HEADLINE, _PER_GPU, "slo_attainment"),
    *("median_ttft_ms", "p95_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p95_tpot_ms", "p99_tpot_ms", "p99_e2el_ms"),
    "out_of_memory_rate",
)
_WITH_INTERVAL = (HEADLINE,)
_ABOVE_BUCKETS = "by tokens of the prompt; latencies are P99"
# the line of a heading with the distinguishing part
_BY_LENGTH = {HEADLINE: 0, "slo_attainment": 1, "p99_ttft_ms": 0, "p99_tpot_ms": 0}


@dataclass(frozen=True)
class Section:
    """Rows of cells below the name of a series."""

    label: str
    rows: list[list[str]]


def report(curve: Curve) -> RenderableType:
    """All that a reader is shown, for `rich.console.Console.print`."""
    buckets = [bucket for bucket in curve.buckets if bucket != ALL]
    parts: list[RenderableType] = [headline(curve), Text(), _whole(curve)]
    if len(buckets) > 1:
        for start in range(0, len(buckets), _AT_ONCE):
            parts += [Text(), Text(_ABOVE_BUCKETS, "dim"), _by_length(curve, buckets[start : start + _AT_ONCE])]
    return Group(*parts, Text(), *(Text(remark) for remark in remarks(curve)))


def headline(curve: Curve) -> Text:
    """What all runs have in common."""
    runs = curve.runs
    traces = runs.select("trace", "trace_source").unique(maintain_order=True).rows()
    line = Text.assemble((", ".join(dict.fromkeys(trace for trace, _ in traces)), "bold"), " ")
    sources = {source for _, source in traces}
    if "twin" in sources:
        line.append(" fitted trace, not a recording ", _WARNING)
    else:
        line.append(f"({', '.join(sorted(sources))})", "dim")
    for key, word in (("offered", "requests"), ("gpus", "GPUs")):
        count = curve.agreed(key)
        line.append("" if count is None else f"  {count:,} {word}")
    timing = curve.agreed("timing_source")
    return line.append("" if timing is None else f"\ntiming {timing}", "dim")


def remarks(curve: Curve) -> Iterator[str]:
    """Where each series saturates, and what a reader must know next to the tables."""
    for line in curve.lines():
        yield f"{_SATURATED} {line.label}: {saturation_text(line, curve.attainment)}"
    if curve.unlike is not None:
        yield curve.unlike
    yield from footnotes(curve.levels.select("load_state").iter_rows(named=True))
    yield from _short_runs(curve)
    if curve.seeds > 1:
        yield f"Means of {curve.seeds} seeds, ± half a 95 % interval (Student's t)."
        if not any(np.nanmax(line.half_width("request_throughput"), initial=0) > 0 for line in curve.lines()):
            yield "Seeds make no difference here; trace.resample_s=60 makes replicates of a recording."


def saturation_text(line: Line, attainment: float) -> str:
    """Where the series saturates, in words."""
    values, share = line.values, f"{100 * attainment:g} %"
    kept = last_kept(line, attainment)
    if line.axis is RATE:
        unit, least, rest = "req/s", f"even at {values[0]:g}", ""
    else:
        point = fullest(line)
        throughput = number(line.mean("request_throughput")[point])
        unit, least, rest = (
            "clients",
            f"even with {values[0]:,g}",
            f"; {throughput} req/s with {values[point]:,g}, more add little",
        )
    if kept is None:
        return f"less than {share} meet the SLO {least} {unit}{rest}"
    beyond = f", not {values[kept + 1]:,g}" if kept + 1 < len(values) else ", the most that was tried"
    return f"at least {share} meet the SLO up to {values[kept]:,g} {unit}{beyond}{rest}"


def _short_runs(curve: Curve) -> Iterator[str]:
    """Runs that keep the SLO, but spend much of their time on the last requests."""
    lines = [(line, saturation(line, curve.attainment)) for line in curve.lines()]
    most = max((after_last_arrival(line)[point] for line, point in lines if point is not None), default=0.0)
    if most > _LONG_END:
        yield (
            f"Runs are short: at ▸ they last up to {100 * most:.0f} % longer than requests arrive, which takes as much "
            "from throughput and goodput; take more requests, as with trace.tile=10."
        )


def number(value: float) -> str:
    """Three digits, more only before the point; a dash for NaN."""
    if math.isnan(value):
        return _NONE
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}" if abs(value) >= 0.995 else f"{value:.3f}"


def _whole(curve: Curve) -> RenderableType:
    has_interval = curve.seeds > 1
    headings = [_HEADINGS[curve.axis.word]]
    for key, heading in zip(_COLUMNS, side_by_side([*map(_heading, _COLUMNS)]), strict=True):
        headings += [heading, "\n±"] if has_interval and key in _WITH_INTERVAL else [heading]
    sections = []
    for line in curve.lines():
        columns = []
        for key in _COLUMNS:
            columns.append(_cells(line.mean(key), key))
            if has_interval and key in _WITH_INTERVAL:
                columns.append(_cells(line.half_width(key), key))
        sections.append(_section(curve, line, columns))
    return _Columns(headings, sections)


def _heading(key: str) -> str:
    first, *_ = metric(HEADLINE).heading.split("\n")
    return f"{first}\n/GPU" if key == _PER_GPU else metric(key).heading


def _by_length(curve: Curve, buckets: Sequence[str]) -> RenderableType:
    headings = [_HEADINGS[curve.axis.word]]
    for bucket in buckets:
        names = [metric(key).heading.split("\n")[line] for key, line in _BY_LENGTH.items()]
        headings += [f"{bucket if index == 0 else ''}\n{heading}" for index, heading in enumerate(names)]
    sections = []
    for line in curve.lines():
        lines = [curve.line(line.label, bucket) for bucket in buckets]
        columns = [_cells(one.mean(key), key) for one in lines for key in _BY_LENGTH]
        sections.append(_section(curve, line, columns))
    return _Columns(headings, sections)


def _cells(values: Floats, key: str) -> list[str]:
    return [number(metric(key).scale * value) for value in values]


def _section(curve: Curve, line: Line, columns: Sequence[Sequence[str]]) -> Section:
    point = saturation(line, curve.attainment)
    marks = [mark(level) for level in line.levels.select("load_state").iter_rows(named=True)]
    width = max(map(len, marks))
    rows = [
        [f"{_SATURATED + ' ' if index == point else ''}{value:g}{sign:{width}}", *(column[index] for column in columns)]
        for index, (value, sign) in enumerate(zip(line.values, marks, strict=True))
    ]
    return Section(line.label if len(curve.labels) > 1 else "", rows)


@dataclass(frozen=True)
class _Columns:
    """Columns aligned to the right below headings of two lines; the first line may span columns that have none.

    On a narrow terminal they continue below, each part with the first column.
    """

    headings: Sequence[str]
    sections: Sequence[Section]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        upper, lower = zip(*(heading.strip(" ").split("\n") for heading in self.headings), strict=True)
        rows = [row for section in self.sections for row in section.rows]
        widths = [max(len(lower[column]), *(len(row[column]) for row in rows)) for column in range(len(lower))]
        groups = _groups(upper)
        for group in groups:
            missing = len(upper[group[0]]) - _width(widths, group)
            widths[group[-1]] += max(0, missing)
        for number, part in enumerate(_that_fit(groups, widths, options.max_width)):
            if number:
                yield Text()
            yield self._part(upper, lower, widths, part)

    def _part(
        self, upper: Sequence[str], lower: Sequence[str], widths: Sequence[int], groups: Sequence[Sequence[int]]
    ) -> Text:
        lines = [
            "  ".join(_above(upper[group[0]], group, widths) for group in groups),
            _joined(lower, widths, groups),
            "─" * _line_width(groups, widths),
        ]
        text = Text("\n".join(lines), no_wrap=True)
        for section in self.sections:
            text.append(f"\n{section.label}" if section.label else "", "bold")
            for row in section.rows:
                text.append("\n" + _joined(row, widths, groups), "bold" if row[0].startswith(_SATURATED) else "")
        return text


def _that_fit(groups: Sequence[Sequence[int]], widths: Sequence[int], width: int) -> list[list[Sequence[int]]]:
    """The groups in parts of at most `width` characters, each with the first group; a group stays whole."""
    first, *rest = groups
    parts: list[list[Sequence[int]]] = [[first]]
    for group in rest:
        if len(parts[-1]) > 1 and _line_width([*parts[-1], group], widths) > width:
            parts.append([first])
        parts[-1].append(group)
    return parts


def _line_width(groups: Sequence[Sequence[int]], widths: Sequence[int]) -> int:
    return sum(_width(widths, group) for group in groups) + 2 * (len(groups) - 1)


def _groups(upper: Sequence[str]) -> list[list[int]]:
    """Columns below one heading."""
    groups: list[list[int]] = []
    for column, heading in enumerate(upper):
        if heading or not groups:
            groups.append([column])
        else:
            groups[-1].append(column)
    return groups


def _width(widths: Sequence[int], group: Sequence[int]) -> int:
    return sum(widths[column] for column in group) + len(group) - 1


def _above(heading: str, group: Sequence[int], widths: Sequence[int]) -> str:
    width = _width(widths, group)
    return heading.rjust(width) if len(group) == 1 else f"{heading} ".ljust(width, "─").rstrip(" ").ljust(width)


def _joined(cells: Sequence[str], widths: Sequence[int], groups: Sequence[Sequence[int]]) -> str:
    return "  ".join(" ".join(cells[column].rjust(widths[column]) for column in group) for group in groups)
