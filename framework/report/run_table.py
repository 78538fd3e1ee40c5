"""The terminal table of one run."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from framework.metrics.figures import HEADLINE, HEADLINE_PER_GPU, LATENCIES, metric
from framework.metrics.load_state import OVERLOADED
from framework.metrics.request_table import counted
from framework.metrics.slo import Slo
from framework.metrics.summary import Evaluation
from framework.report.load_words import STYLES, load_state, overload, short_window, too_large, worse_others
from framework.report.numbers import NONE, number, percent
from framework.report.split_line import split_line
from framework.report.table_words import (
    COMPARED,
    WARNING,
    WIDE,
    Summary,
    add_numbers,
    attainment,
    caveats,
    estimated,
    extrapolated,
    gpus_of,
    headings,
    plain_table,
    scaled,
    source_of,
    without_loads,
)

_LATENCIES = ("queue", "ttft", "tpot", "itl", "e2el")
_KWH_J = 3.6e6
_S_MS = 1e3
_OF_PART = tuple(key for key in COMPARED if key != "p99_itl_ms")
_WAITS = {"bubbles": ("bubble_share", "in steps"), "idle seats": ("idle_seat_share", "of static batches")}
_MOST_PARTS = 12
_FAIRNESS = ("jain_index", "service_difference", "worst_slowdown")
_PROGRAM_S = (("mean", "mean_program_s"), ("P50", "median_program_s"), ("P99", "p99_program_s"))
_TIER = "cache_hit_rate_"


def run_table(evaluation: Evaluation, slo: Slo) -> RenderableType:
    """The results of a run, for `rich.console.Console.print`."""
    columns = Columns([_latencies(evaluation, slo), _outcome(evaluation)], padding=(0, 2))
    parts: list[RenderableType] = [*_headline(evaluation.summary, evaluation.allowed_s), Text(), columns, Text()]
    for kind, key in (("class", "classes"), ("tenant", "tenants")):
        if key in evaluation.summary:
            parts += [*_parts(kind, key, evaluation.summary[key]), Text()]
    return Group(*parts, _pools(evaluation.pools))


def _headline(summary: Summary, allowed_s: float) -> list[RenderableType]:
    first = Text.assemble(
        (str(summary["policy"]), "bold"), " on ", (str(summary["trace"]), "bold"), " ", source_of(summary)
    )
    first.append(f"  {summary['offered']:,} requests, {number(summary['duration'])} s, {gpus_of(summary)}")
    if (state := load_state([summary])) is not None:
        first.append(", ").append(state, STYLES[state])
    second = Text(style="dim")
    if summary["predictor"] not in ("", "none", None):
        second.append(f"predictor {summary['predictor']}, ")
    source, fitted = without_loads(str(summary["timing_source"]))
    second.append(f"timing {source}, ")
    second.append("prefix cache on, " if summary.get("prefix_cache") else "")
    second.append("" if summary["load"] == "open" else f"load {summary['load']}, ").append(f"seed {summary['seed']}")
    split = [Constrain(Text(split_line(summary["split"]), "dim"), WIDE)] if "split" in summary else []
    said = (short_window(summary, allowed_s), worse_others(summary), too_large(summary))
    warned = [Constrain(Text(f" {words} ", WARNING), WIDE) for words in said if words]
    told = [*caveats(summary), *estimated(summary), *extrapolated(summary), *warned]
    return [first, second, *fitted, *split, *told]


def _latencies(evaluation: Evaluation, slo: Slo) -> Table:
    summary, requests = evaluation.summary, counted(evaluation.requests)
    table = plain_table("", "")
    add_numbers(table, "P50", "P90", "P99", "SLO", "met")
    limits = {"ttft": (slo.ttft_s, "ttft_ok"), "tpot": (slo.tpot_s, "tpot_ok")}
    for key in _LATENCIES:
        values_ms = [summary[f"{statistic}_{key}_ms"] for statistic in ("median", "p90", "p99")]
        shown = metric(f"p99_{key}_ms").readable(values_ms[-1] or 0.0)
        limit_s, ok = limits.get(key, (None, ""))
        judged: list[str | Text] = []
        if limit_s is not None:
            judged = [scaled(shown, limit_s * _S_MS), attainment(int(requests[ok].sum()) / len(requests))]
        cells = (scaled(shown, value_ms) for value_ms in values_ms)
        table.add_row(Text(LATENCIES[key].short, "bold"), shown.unit, *cells, *judged)
    if caption := overload(summary):
        table.caption, table.caption_justify = Text(caption, STYLES[OVERLOADED]), "left"
    return table


def _outcome(evaluation: Evaluation) -> Table:
    summary, requests = evaluation.summary, counted(evaluation.requests)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    per_gpu = f" ({number(summary[HEADLINE_PER_GPU])} per GPU)"
    grid.add_row(metric(HEADLINE).name, Text.assemble((_said(summary, HEADLINE), "bold"), (per_gpu, "dim")))
    share = f" {int(requests['good'].sum()):,} of {summary['offered']:,}"
    grid.add_row("attainment", Text.assemble(attainment(summary["slo_attainment"]), (share, "dim")))
    if summary.get("share_of_bound") is not None:
        limit = f" ({summary['bound_limit']})"
        grid.add_row("of bound", Text.assemble(percent(summary["share_of_bound"]), (limit, "dim")))
    grid.add_row("throughput", f"{_said(summary, 'request_throughput')}, {_said(summary, 'output_throughput')}")
    for key, state in (("completed", "finished"), *((key, key) for key in ("rejected", "failed", "cancelled"))):
        if key not in summary:
            continue
        style = "red" if state != "finished" and summary[key] else ""
        grid.add_row(key, Text.assemble((f"{summary[key]:,}", style), (_reasons(requests, state), "dim")))
    if "gave_up" in summary:
        grid.add_row("given up", f"{summary['gave_up']:,}, sent again {summary['sent_again']:,} times")
    for name, said in _of_programs(summary).items():
        grid.add_row(name, said)
    if "gateway" in summary:
        grid.add_row("gateway", _gateway(summary))
    grid.add_row("preempted", f"{summary['preemptions']:,}, migrated {summary['migrations']:,}")
    grid.add_row("hardware", f"MFU {percent(summary['mfu'])}, MBU {percent(summary['mbu'])}")
    for name, (key, of) in _WAITS.items():
        if summary.get(key) is not None:
            grid.add_row(name, f"{percent(summary[key])} of the time {of}")
    for name, said in _of_fleet(summary, sum(evaluation.pools["instances"])).items():
        grid.add_row(name, said)
    if "crashes" in summary:
        grid.add_row("crashes", _crashes(summary))
    if "slowdowns" in summary:
        slowed = (
            f"{len(summary['slowdowns']):,}; instances were slow for {percent(summary['slowed_share'])} of the time"
        )
        grid.add_row("slow-downs", slowed)
    if "link_faults" in summary:
        grid.add_row("networks", f"faults {len(summary['link_faults']):,}")
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


def _of_programs(summary: Summary) -> dict[str, str]:
    """Programs that ended, what caches did between their calls, and the tail of requests that are sent at once."""
    rows = {}
    if "programs" in summary:
        times = ", ".join(f"{name} {_said(summary, key)}" for name, key in _PROGRAM_S if summary[key] is not None)
        rows["programs"] = f"{summary['programs_completed']:,} of {summary['programs']:,} completed; {times}"
        if summary["recomputed_tokens"]:
            again = f"{number(summary['recomputed_tokens'] / 1e6)} million computed again"
            rows["contexts"] = f"{_said(summary, 'tool_kv_tokens')} held for tools on average; {again}"
    if summary.get("tail_s") is not None:
        rows["tail"] = f"last 10 % of the requests {_said(summary, 'tail_s')} of {number(summary['duration'])} s"
    return rows


def _gateway(summary: Summary) -> str:
    """How long requests waited at the gateway, and how many it refused."""
    refused = f"{summary['shed']:,} shed, {summary['expired']:,} expired"
    if summary["mean_gateway_ms"] is None:
        return refused
    waits = f"wait {number(summary['mean_gateway_ms'] / 1e3)} s, P99 {number(summary['p99_gateway_ms'] / 1e3)} s"
    return f"{waits}; {refused}"


def _of_fleet(summary: Summary, instances: int) -> dict[str, str]:
    """How many of the instances were on, and what each of several pools cost."""
    if "fleet" not in summary:
        return {}
    on, pools = f"{number(summary['mean_instances_on'])} of {instances:,} on", summary["fleet"]
    costs = [f"{row['pool']} {number(row['gpu_hours'])} GPU-hours, ${number(row['cost_usd'])}" for row in pools]
    turns = ", ".join(f"{name} {summary[name]:,}" for name in ("starts", "stops", "reversals"))
    scaled = {"fleet": f"{on}; {turns}"}
    return scaled | ({"by pool": "; ".join(costs)} if len(costs) > 1 else {})


def _crashes(summary: Summary) -> str:
    """The effects of crashes on the run."""
    dropped = f"{summary['dropped']:,} requests dropped, {summary['lost_tokens']:,} KV tokens lost"
    if summary["dropped_restored"]:
        dropped += f", {summary['dropped_restored']:,} restored with {summary['restored_tokens']:,} tokens"
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
    """One row for each class of requests or tenant, the first ones in the order of their names."""
    table = plain_table(kind, "")
    add_numbers(table, "requests", "SLO met", *headings(HEADLINE, *_OF_PART))
    for name, figures in list(parts.items())[:_MOST_PARTS]:
        latencies = (scaled(metric(key), figures[key]) for key in _OF_PART)
        counts = (f"{figures['offered']:,}", attainment(figures["slo_attainment"]), number(figures[HEADLINE]))
        table.add_row(Text(name), "", *counts, *latencies)
    more = len(parts) - _MOST_PARTS
    return [table, *([Text(f"and {more:,} more {kinds}, in summary.json", style="dim")] if more > 0 else [])]


def _tiers(summary: Summary) -> str:
    """The memory in which hits were found, if there are several."""
    rates = {key.removeprefix(_TIER): rate for key, rate in summary.items() if key.startswith(_TIER)}
    return f" ({', '.join(f'{name} {percent(rate)}' for name, rate in rates.items())})" if rates else ""


def _pools(pools: pl.DataFrame) -> Table:
    table = plain_table("pool", "role")
    add_numbers(table, "instances", "GPUs", "utilisation", "KV in use", "mean batch")
    for pool in pools.iter_rows(named=True):
        shares = (percent(pool["utilization"]), percent(pool["kv_utilization"]))
        batch = number(pool["mean_batch"]) if pool["mean_batch"] else NONE
        table.add_row(Text(pool["pool"]), pool["role"], f"{pool['instances']:,}", f"{pool['gpus']:,}", *shares, batch)
    return table


def _reasons(requests: pl.DataFrame, state: str) -> str:
    counts = requests.filter(pl.col("state") == state)["reason"].drop_nulls().value_counts()
    ordered = sorted(counts.iter_rows(), key=lambda row: (-row[1], row[0]))
    return f" ({', '.join(f'{reason} {count:,}' for reason, count in ordered)})" if ordered else ""


def _said(summary: Summary, key: str) -> str:
    return f"{number(summary[key])} {metric(key).unit}"
