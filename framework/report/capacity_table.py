"""Terminal table of a capacity search: the figure, then every rate that was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from framework.objective.stability import MISSED, SUSTAINED
from framework.report.load_words import STYLES, load_state, ran_out
from framework.report.table_words import add_numbers, open_table

_STYLES = {SUSTAINED: "green", MISSED: "red"}
_HEADINGS = ("req/s", "1st half\nmet %", "2nd half\nmet %", "queue\ngrows %", "requests", "simulated\ns")


def capacity_table(summary: Mapping[str, Any], probes: pl.DataFrame) -> RenderableType:
    """The capacity and how it was found, for `rich.console.Console.print`; rates from low to high."""
    return Group(Text(), _figure(summary), *_bound(summary), *_interval(summary), Text(), _rates(summary, probes))


def _figure(summary: Mapping[str, Any]) -> Text:
    line = Text.assemble(
        (f"capacity  {'at least ' if ran_out([summary]) else ''}{_rate(summary['capacity'])} req/s", "bold"),
        (f" ({_rate(summary['capacity_per_gpu'])} per GPU)", "dim"),
        f", {100 * summary['capacity_attainment']:.4g} % of requests meeting the SLO",
    )
    if (state := load_state([summary])) is not None:
        line.append("; at this rate ").append(state, STYLES[state])
    return line


def _bound(summary: Mapping[str, Any]) -> list[Text]:
    """The rate that no schedule sustains; nothing if an older version wrote the summary, or if no rate is too high."""
    bound_rps, share = (summary.get(name) for name in ("capacity_bound", "capacity_share_of_bound"))
    if bound_rps is None or share is None:
        return []
    limit = summary["capacity_bound_limit"]
    return [Text(f"{100 * share:.1f} % of the {_rate(bound_rps)} req/s that no schedule sustains ({limit})")]


def _interval(summary: Mapping[str, Any]) -> list[Text]:
    """A bracket as text that does not look like a confidence interval."""
    bracket = f"search ended between {_rate(summary['capacity_low'])} and {_rate(summary['capacity_high'])} req/s"
    replicates = summary["capacity_replicates"]
    if not replicates and not summary["capacity"]:
        return []
    if not replicates:
        return [Text(f"{bracket}; objective.replicates=8 adds an interval", style="dim")]
    half_width = float(f"{summary['capacity_half_width']:.2g}")
    kind = f"{len(replicates)} {summary['capacity_replicates_of']}"
    mean = _rate(sum(replicates) / len(replicates))
    return [
        Text(f"95 % of samples like this one lie within ± {half_width:g} req/s, by {kind} (mean {mean})"),
        Text(bracket, style="dim"),
    ]


def _rates(summary: Mapping[str, Any], probes: pl.DataFrame) -> Table:
    table = open_table()
    table.add_column("", no_wrap=True)
    add_numbers(table, *_HEADINGS)
    table.add_column("verdict", no_wrap=True)
    for one in probes.filter(pl.col("sample") == 0).sort("rate_rps").iter_rows(named=True):
        is_capacity = one["rate_rps"] == summary["capacity"]
        shares = (f"{100 * one[name]:.1f}" for name in ("attainment_first_half", "attainment"))
        table.add_row(
            *("▸" if is_capacity else "", _rate(one["rate_rps"]), *shares, _growth(one)),
            *(f"{one['passes']} × {one['requests'] // one['passes']:,}", f"{one['simulated_s']:,.0f}"),
            Text(one["verdict"], style=_STYLES.get(one["verdict"], "yellow")),
            style="bold" if is_capacity else "",
        )
    return table


def _growth(probe: Mapping[str, Any]) -> str:
    percent, error = (round(100 * probe[name], 2) + 0.0 for name in ("growth", "growth_error"))
    return f"{percent:.2f} ±{error:.2f}"


def _rate(value: float) -> str:
    """Four significant digits, enough to distinguish the ends of a bracket."""
    return f"{value:#.4g}".rstrip(".") if value else "0"
