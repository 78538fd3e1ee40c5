"""The textbook's tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from experiments.textbook.arithmetic import Rule, Value
from experiments.textbook.batches import Batch
from experiments.textbook.effects import ChunkSize, Idle, Spread, Target, balance
from framework.report.table_words import add_numbers, open_table

WIDTH = 80


def rule_lines(rules: Iterable[Rule]) -> Iterator[RenderableType]:
    """A line with the values of each rule, and below it its arithmetic and why they differ."""
    yield Text(_line("rule", "textbook", "kernels", "server"), "bold")
    yield Text("─" * WIDTH)
    for rule in rules:
        yield Text(_line(f"{rule.name}, {rule.unit}", *map(_value, (rule.textbook, rule.kernels, rule.server))))
        yield Constrain(Padding(Text(f"{rule.arithmetic}. {rule.why}", "dim"), (0, 0, 1, 2)), WIDTH)


def said(text: str) -> RenderableType:
    """A paragraph as wide as the tables."""
    return Constrain(Text(text), WIDTH)


def _line(name: str, *values: str) -> str:
    return f"{name:<41}" + "".join(f"{value:>13}" for value in values)


def _value(value: Value) -> str:
    return " to ".join(_number(one) for one in value) or "–"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.3g}" if value >= 1 else f"{value:.2f}"


def batch_table(points: Sequence[Batch]) -> Table:
    """The figures of a served 7B, next to a fit to three of them, the formula, and kernels."""
    table = _table(
        ("textbook\nms", "fit to the\nother three", "\nerror", "formula\nms", "kernels\nms", "tok/s of\nkernels")
    )
    for point in points:
        times = (point.said_s, point.predicted_s)
        said, fitted = (f"{1e3 * one:.1f}" for one in times)
        rest = (f"{1e3 * point.formula_s:.1f}", f"{1e3 * point.kernels_s:.1f}")
        rate = f"{point.batch / point.kernels_s:,.0f}"
        table.add_row(str(point.batch), said, fitted, f"{100 * point.error:+.1f} %", *rest, rate)
    return table


def idle_table(found: Sequence[Idle]) -> Table:
    """Idle seats of a static batch."""
    table = _table(("TPOT\nms", "by the sum\ns", "simulated\ns", "of all seats'\ntime"), "CV of\noutputs")
    for one in found:
        seconds = (f"{1e3 * one.tpot_s:.2f}", f"{one.said_s:.1f}", f"{one.simulated_s:.1f}")
        table.add_row(f"{one.cv:.2f}", *seconds, f"{100 * one.share:.0f} %")
    return table


def spread_table(spreads: Sequence[Spread]) -> Table:
    """Throughput of three ways to batch, by the spread of output lengths."""
    ways = ("static\n", "iteration-level,\nreserved", "continuous,\npaged")
    table = _table((*ways, "gain\n", "KV filled,\nreserved", "\npaged"), "CV of\noutputs")
    for one in spreads:
        rates = (f"{rate:,.0f}" for rate in (one.static, one.iteration_level, one.continuous))
        fills = (f"{100 * fill:.0f} %" for fill in (one.reserved_fill, one.paged_fill))
        table.add_row(f"{one.cv:.2f}", *rates, f"{one.gain:.2f} ×", *fills)
    return table


def chunk_table(sizes: Sequence[ChunkSize]) -> Table:
    """Latencies by the tokens of a step, with the balance marked."""
    best = balance(sizes)
    waits, gaps = ("TTFT s\nP50", "\nP99"), ("TBT ms\nP50", " \nP99", "worst gap\nmean ms")
    table = _table((*waits, *gaps, "out\ntok/s"), "tokens\nof a step")
    for one in sizes:
        cells = [f"{wait_s:.2f}" for wait_s in (one.ttft_p50_s, one.ttft_p99_s)]
        cells += [f"{1e3 * gap_s:.1f}" for gap_s in (one.tbt_p50_s, one.tbt_p99_s, one.stall_s)]
        mark, style = ("▸ ", "bold") if one is best else ("  ", None)
        table.add_row(f"{mark}{one.tokens}", *cells, f"{one.throughput:,.0f}", style=style)
    return table


def target_table(found: Sequence[Target]) -> Table:
    """The targets of 2025 against the rate."""
    headings = ("TTFT P90\nms", "TPOT P90\nms", "both\nkept", "GPU\nbusy", "its\nMBU", "KV\nin use")
    table = _table(headings, "requests/s\n")
    table.add_row("target", "100", "20", "–", "> 95 %", "–", "> 98 %", style="bold")
    for one in found:
        shares = (f"{100 * share:.1f} %" for share in (one.kept, one.busy, one.mbu, one.kv))
        table.add_row(f"{one.rate:g}", f"{1e3 * one.ttft_p90_s:.0f}", f"{1e3 * one.tpot_p90_s:.1f}", *shares)
    return table


def link_table(rows: Sequence[tuple[str, float, float]]) -> Table:
    """Each link's name, the seconds by its bandwidth, and those of a simulated copy."""
    table = _table(("bytes / bandwidth\nms", "simulated\nms", "within\n100 ms"), "link of an instance\n")
    for name, said_s, simulated_s in rows:
        table.add_row(name, f"{1e3 * said_s:.1f}", f"{1e3 * simulated_s:.1f}", "yes" if simulated_s <= 0.1 else "no")
    return table


def _table(headings: Sequence[str], first: str = "batch\n") -> Table:
    table = open_table()
    table.add_column(first, max_width=WIDTH // 2)
    add_numbers(table, *headings)
    return table
