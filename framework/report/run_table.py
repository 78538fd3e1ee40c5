"""Terminal tables: one run, and several runs side by side."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich import box
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from framework.cli.safe_text import printable
from framework.metrics.figures import HEADLINE, HEADLINE_PER_GPU, LATENCIES, Metric, metric
from framework.metrics.load_state import OVERLOADED
from framework.metrics.slo import Slo
from framework.metrics.summary import Evaluation
from framework.report.load_words import STYLES, footnotes, load_state, mark, overload, short_window
from framework.report.numbers import NONE, number, percent, side_by_side
from framework.report.split_line import split_line

Summary = Mapping[str, Any]
_LATENCIES = ("queue", "ttft", "tpot", "itl", "e2el")
_WARNING = "bold black on yellow"
# What a source says of a fit: to which loads, and where the run lies relative to them; or why it does not count.
_FIT = re.compile(r"(, calibrated(?: as \w+ was)?) to ([^);]*?)(?:, (this run: [^);]*))?(?=[);])")
_LEFT_OUT = re.compile(r"(, calibration left out): ([^);]*)(?=[);])")
_SHOWN_SHARE = 0.0005  # smaller ones would read 0.0 %
_FAR = 1.05  # times the measured size: what would not be rounded to it
_KWH_J = 3.6e6
_S_MS = 1e3
_COMPARED = ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "p99_itl_ms", "p99_e2el_ms")
_OF_PART = tuple(key for key in _COMPARED if key != "p99_itl_ms")
_WAITS = {"bubbles": ("bubble_share", "in steps"), "idle seats": ("idle_seat_share", "of static batches")}
_MOST_PARTS = 12
_FAIRNESS = ("jain_index", "service_difference", "worst_slowdown")
_COUNTED = ("preemptions", "migrations")
_GOOD_SHARE, _POOR_SHARE = 0.9, 0.5
_TIER = "cache_hit_rate_"
_WIDE = 96  # columns that a full comparison needs


def run_table(evaluation: Evaluation, slo: Slo) -> RenderableType:
    """What a run came to, for `rich.console.Console.print`."""
    columns = Columns([_latencies(evaluation, slo), _outcome(evaluation)], padding=(0, 2))
    parts: list[RenderableType] = [*_headline(evaluation.summary), Text(), columns, Text()]
    for kind, key in (("class", "classes"), ("tenant", "tenants")):
        if key in evaluation.summary:
            parts += [*_parts(kind, key, evaluation.summary[key]), Text()]
    return Group(*parts, _pools(evaluation.pools))


def comparison_table(
    summaries: Sequence[Summary], labels: Sequence[str] | None = None, groups: Sequence[Hashable] | None = None
) -> RenderableType:
    """Runs below each other, for `rich.console.Console.print`; the best of each group is bold and marked.

    Runs of one group, which stand together, can be compared; without `groups` all can. Without `labels` a run is called
    by what distinguishes it from the others. Runs on unlike numbers of GPUs are compared by goodput per GPU, and runs
    at capacity by that. A narrow terminal gets fewer columns.
    """
    named = [Text(printable(label)) for label in labels] if labels else _distinguishing(summaries)
    return _Comparison(summaries, named, groups or [0] * len(summaries))


@dataclass(frozen=True)
class _Comparison:
    summaries: Sequence[Summary]
    labels: Sequence[Text]
    groups: Sequence[Hashable]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _common_lines(self.summaries)
        yield self._runs(with_counts=options.max_width >= _WIDE)
        yield from (Text(line, style="dim") for line in footnotes(self.summaries))

    def _runs(self, *, with_counts: bool) -> Table:
        ranking = _ranking(self.summaries)
        best: dict[Hashable, float] = {}
        for group, summary in zip(self.groups, self.summaries, strict=True):
            best[group] = max(best.get(group, 0.0), summary[ranking])
        table = _table("", "run", between=0)
        table.add_column("")
        for heading in (*_headings(ranking, "slo_attainment", *_COMPARED), *_counted(with_counts=with_counts)):
            table.add_column(heading, justify="right", no_wrap=True)
        before = self.groups[0]
        for label, group, summary in zip(self.labels, self.groups, self.summaries, strict=True):
            if group != before:
                table.add_section()
            before = group
            is_best = self.groups.count(group) > 1 and best[group] > 0 and summary[ranking] == best[group]
            unserved = summary["rejected"] + summary["failed"] + summary.get("cancelled", 0)
            counts = (unserved, *(summary[key] for key in _COUNTED))
            table.add_row(
                *("▸" if is_best else "", label, mark(summary)),
                *(number(summary[ranking]), _attainment(summary["slo_attainment"], unit="")),
                *(_scaled(metric(key), summary[key]) for key in _COMPARED),
                *(f"{count:,.0f}" for count in counts if with_counts),
                style="bold" if is_best else "",
            )
        return table


def _ranking(summaries: Sequence[Summary]) -> str:
    """The key by which runs are compared."""
    several_sizes = len({summary["gpus"] for summary in summaries}) > 1
    if all("capacity" in summary for summary in summaries):
        return "capacity_per_gpu" if several_sizes else "capacity"
    return HEADLINE_PER_GPU if several_sizes else HEADLINE


def _headings(*keys: str) -> list[str]:
    return side_by_side([metric(key).heading for key in keys])


def _counted(*, with_counts: bool) -> list[str]:
    return ["not\nserved", *_headings(*_COUNTED)] if with_counts else []


def _headline(summary: Summary) -> list[RenderableType]:
    first = Text.assemble(
        (str(summary["policy"]), "bold"), " on ", (str(summary["trace"]), "bold"), " ", _source(summary)
    )
    first.append(f"  {summary['offered']:,} requests, {number(summary['duration'])} s, {_gpus(summary)}")
    if (state := load_state([summary])) is not None:
        first.append(", ").append(state, STYLES[state])
    second = Text(style="dim")
    if summary["predictor"] not in ("", "none", None):
        second.append(f"predictor {summary['predictor']}, ")
    source, fitted = _without_loads(str(summary["timing_source"]))
    second.append(f"timing {source}, ")
    second.append("prefix cache on, " if summary.get("prefix_cache") else "")
    second.append("" if summary["load"] == "open" else f"load {summary['load']}, ").append(f"seed {summary['seed']}")
    split = [Constrain(Text(split_line(summary["split"]), "dim"), _WIDE)] if "split" in summary else []
    warned = [Text(f" {short} ", _WARNING)] if (short := short_window(summary)) else []
    return [first, second, *fitted, *split, *_caveats(summary), *_extrapolated(summary), *warned]


def _caveats(*summaries: Summary) -> list[RenderableType]:
    """In what the requests of the runs are unlike the trace that they were taken from."""
    caveats = dict.fromkeys(summary.get("trace_caveat") for summary in summaries)
    return [Constrain(Text(f" {one} ", _WARNING), _WIDE) for one in caveats if one]


def _without_loads(source: str, *, with_run: bool = True) -> tuple[str, list[RenderableType]]:
    """Where step times came from, and in lines of their own the loads that they were calibrated to, if it says so.

    Those lines also say where the run's own load lies, unless `with_run` is false.
    """
    lines: list[RenderableType] = []
    for found in (_FIT.search(source), _LEFT_OUT.search(source)):
        if found is not None:
            parts = [f"{found[1].removeprefix(', ')}{' to ' if found.re is _FIT else ': '}{found[2]}"]
            parts += [found[3]] if with_run and found.re is _FIT and found[3] else []
            lines += [Constrain(Text(part, style="dim"), _WIDE) for part in parts]
    return _LEFT_OUT.sub(r"\1", _FIT.sub(r"\1", source)), lines


def _extrapolated(*summaries: Summary) -> list[Text]:
    """How much of the time rests on step times past the end of measurement, if any does: the most of several runs."""
    share, ratio = (max(summary[key] for summary in summaries) for key in ("extrapolated", "extrapolation"))
    if not share:
        return []
    most = "up to " if len(summaries) > 1 else ""
    part = "under 0.1 %" if share < _SHOWN_SHARE else f"{most}{percent(share)}"
    far = f"to {ratio:.2g} times the measured size" if ratio >= _FAR else "hardly beyond the measured size"
    return [Text(f" {part} of busy time extrapolated, {far} ", _WARNING)]


def _source(summary: Summary) -> Text:
    """Where the requests come from; one that only resembles a real trace must be seen at once."""
    if summary["trace_source"] == "twin":
        return Text(" fitted trace, not a recording ", style=_WARNING)
    return Text(f"({summary['trace_source']})", style="dim")


def _latencies(evaluation: Evaluation, slo: Slo) -> Table:
    summary, requests = evaluation.summary, evaluation.requests
    table = _table("", "")
    for heading in ("P50", "P90", "P99", "SLO", "met"):
        table.add_column(heading, justify="right", no_wrap=True)
    limits = {"ttft": (slo.ttft_s, "ttft_ok"), "tpot": (slo.tpot_s, "tpot_ok")}
    for key in _LATENCIES:
        values_ms = [summary[f"{statistic}_{key}_ms"] for statistic in ("median", "p90", "p99")]
        shown = metric(f"p99_{key}_ms").readable(values_ms[-1] or 0.0)
        limit_s, ok = limits.get(key, (None, ""))
        judged: list[str | Text] = []
        if limit_s is not None:
            judged = [_scaled(shown, limit_s * _S_MS), _attainment(int(requests[ok].sum()) / len(requests))]
        cells = (_scaled(shown, value_ms) for value_ms in values_ms)
        table.add_row(Text(LATENCIES[key].short, "bold"), shown.unit, *cells, *judged)
    if caption := overload(summary):
        table.caption, table.caption_justify = Text(caption, STYLES[OVERLOADED]), "left"
    return table


def _outcome(evaluation: Evaluation) -> Table:
    summary, requests = evaluation.summary, evaluation.requests
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    per_gpu = f" ({number(summary[HEADLINE_PER_GPU])} per GPU)"
    grid.add_row(metric(HEADLINE).name, Text.assemble((_said(summary, HEADLINE), "bold"), (per_gpu, "dim")))
    share = f" {int(requests['good'].sum()):,} of {summary['offered']:,}"
    grid.add_row("attainment", Text.assemble(_attainment(summary["slo_attainment"]), (share, "dim")))
    if summary.get("share_of_bound") is not None:
        limit = f" ({summary['bound_limit']})"
        grid.add_row("of bound", Text.assemble(percent(summary["share_of_bound"]), (limit, "dim")))
    grid.add_row("throughput", f"{_said(summary, 'request_throughput')}, {_said(summary, 'output_throughput')}")
    for key, state in (("completed", "finished"), *((key, key) for key in ("rejected", "failed", "cancelled"))):
        if key not in summary:
            continue
        style = "red" if state != "finished" and summary[key] else ""
        grid.add_row(key, Text.assemble((f"{summary[key]:,}", style), (_reasons(requests, state), "dim")))
    grid.add_row("preempted", f"{summary['preemptions']:,}, migrated {summary['migrations']:,}")
    grid.add_row("hardware", f"MFU {percent(summary['mfu'])}, MBU {percent(summary['mbu'])}")
    for name, (key, of) in _WAITS.items():
        if summary.get(key) is not None:
            grid.add_row(name, f"{percent(summary[key])} of the time {of}")
    if "crashes" in summary:
        grid.add_row("crashes", _crashes(summary))
    if "tenants" in summary:
        grid.add_row("fairness", _fairness(summary))
    if summary["cache_hit_rate"]:
        grid.add_row("cache hits", Text.assemble(percent(summary["cache_hit_rate"]), (_tiers(summary), "dim")))
    per_token, per_million = summary["energy_per_token_j"], summary["usd_per_million_good_tokens"]
    energy = f" ({number(per_token)} J per token)" if per_token is not None else ""
    cost = f" (${number(per_million)} per million good tokens)" if per_million is not None else ""
    grid.add_row("energy", Text.assemble(f"{number(summary['energy_j'] / _KWH_J)} kWh", (energy, "dim")))
    grid.add_row("cost", Text.assemble(f"${number(summary['cost_usd'])}", (cost, "dim")))
    return grid


def _crashes(summary: Summary) -> str:
    """What crashes did to the run."""
    dropped = f"{summary['dropped']:,} requests dropped, {summary['lost_tokens']:,} KV tokens lost"
    said = f"{len(summary['crashes']):,}; available {percent(summary['availability'])}; {dropped}"
    if summary["median_recovery_s"] is None:
        return said
    median, p99 = (_said(summary, key) for key in ("median_recovery_s", "p99_recovery_s"))
    return f"{said}; next token after {median} in the median, P99 {p99}"


def _fairness(summary: Summary) -> str:
    """The figures of fairness that the run has."""
    known = [key for key in _FAIRNESS if summary[key] is not None]
    return ", ".join(f"{metric(key).name} {_said(summary, key).rstrip()}" for key in known) or NONE


def _parts(kind: str, kinds: str, parts: Mapping[str, Summary]) -> list[RenderableType]:
    """A row a class of requests or a tenant, the first of them in the order of their names."""
    table = _table(kind, "")
    for heading in ("requests", "SLO met", *_headings(HEADLINE, *_OF_PART)):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, figures in list(parts.items())[:_MOST_PARTS]:
        latencies = (_scaled(metric(key), figures[key]) for key in _OF_PART)
        counts = (f"{figures['offered']:,}", _attainment(figures["slo_attainment"]), number(figures[HEADLINE]))
        table.add_row(Text(name), "", *counts, *latencies)
    more = len(parts) - _MOST_PARTS
    return [table, *([Text(f"and {more:,} more {kinds}, in summary.json", style="dim")] if more > 0 else [])]


def _tiers(summary: Summary) -> str:
    """Which memory the hits were in, where there is more than one."""
    rates = {key.removeprefix(_TIER): rate for key, rate in summary.items() if key.startswith(_TIER)}
    return f" ({', '.join(f'{name} {percent(rate)}' for name, rate in rates.items())})" if rates else ""


def _pools(pools: pl.DataFrame) -> Table:
    table = _table("pool", "role")
    for heading in ("instances", "GPUs", "utilisation", "KV in use", "mean batch"):
        table.add_column(heading, justify="right", no_wrap=True)
    for pool in pools.iter_rows(named=True):
        shares = (percent(pool["utilization"]), percent(pool["kv_utilization"]))
        batch = number(pool["mean_batch"]) if pool["mean_batch"] else NONE
        table.add_row(Text(pool["pool"]), pool["role"], f"{pool['instances']:,}", f"{pool['gpus']:,}", *shares, batch)
    return table


def _table(first: str, second: str, between: int = 1) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, between, 0, 0))
    table.add_column(first, style="bold" if first else "", no_wrap=True)
    table.add_column(second, no_wrap=not second or bool(first), overflow="fold")
    return table


def _reasons(requests: pl.DataFrame, state: str) -> str:
    counts = requests.filter(pl.col("state") == state)["reason"].drop_nulls().value_counts()
    ordered = sorted(counts.iter_rows(), key=lambda row: (-row[1], row[0]))
    return f" ({', '.join(f'{reason} {count:,}' for reason, count in ordered)})" if ordered else ""


def _common_lines(summaries: Sequence[Summary]) -> list[RenderableType]:
    """The trace and the timing of all runs, where they agree, and how far step times were extrapolated."""

    def agrees(*keys: str) -> bool:
        return len({tuple(_alike(summary, key) for key in keys) for summary in summaries}) == 1

    only = summaries[0]
    lines: list[RenderableType] = []
    if agrees("trace", "trace_source"):
        line = Text.assemble((str(only["trace"]), "bold"), " ", _source(only))
        line.append(f"  {only['offered']:,} requests" if agrees("offered") else "")
        lines.append(line.append(f"  {_gpus(only)}" if agrees("gpus") else ""))
    if agrees("timing_source"):
        source, fitted = _without_loads(str(only["timing_source"]), with_run=False)
        lines += [Text(f"timing {source}", style="dim"), *fitted]
    return [*lines, *_caveats(*summaries), *_extrapolated(*summaries), Text()]


def _alike(summary: Summary, key: str) -> Any:
    """The value by which runs are distinguished: of step times without the load of each run relative to a fit's."""
    return _FIT.sub(r"\1 to \2", str(summary[key])) if key == "timing_source" else summary[key]


def _distinguishing(summaries: Sequence[Summary]) -> list[Text]:
    def differs(key: str) -> bool:
        return len({_alike(summary, key) for summary in summaries}) > 1

    names = []
    for summary in summaries:
        name = Text(str(summary["policy"]))
        if differs("predictor") and summary["predictor"] != "none":
            name.append(f" {summary['predictor']}")
        if differs("trace") or differs("trace_source"):
            style = _WARNING if summary["trace_source"] == "twin" else "dim"
            name.append(f" {summary['trace']} ").append(summary["trace_source"], style=style)
        for key, label in (
            ("offered", "{:,} requests"),
            ("timing_source", "{}"),
            ("load", "{}"),
            ("gpus", "{} GPUs"),
            ("seed", "seed {}"),
        ):
            name.append(" " + label.format(_alike(summary, key)) if differs(key) else "")
        names.append(name)
    return names


def _gpus(summary: Summary) -> str:
    return f"{summary['gpus']} GPU{'s' if summary['gpus'] > 1 else ''}"


def _attainment(share: float, unit: str = " %") -> Text:
    style = "green" if share >= _GOOD_SHARE else "yellow" if share >= _POOR_SHARE else "red"
    return Text(f"{100 * share:.1f}{unit}", style=style)


def _scaled(shown: Metric, value: float | None) -> str:
    """A value of the summary in the unit of its figure."""
    return NONE if value is None else number(value * shown.scale)


def _said(summary: Summary, key: str) -> str:
    return f"{number(summary[key])} {metric(key).unit}"
