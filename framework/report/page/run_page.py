"""The page of one run: its figures, their causes, and all details."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from framework.diagnosis.findings import Diagnosis, diagnose
from framework.diagnosis.pool_limit import pool_limits
from framework.metrics.figures import HEADLINE, metric
from framework.metrics.request_table import counted
from framework.metrics.summary import Evaluation
from framework.objective.goodput import Measurement
from framework.report.load_words import AT_LEAST_MEANS, load_state, overload, ran_out, short_window
from framework.report.numbers import number, percent, small_percent
from framework.report.page.carried import carried
from framework.report.page.latency import against_lengths, distributions, positions
from framework.report.page.markup import Cell, Chapter, Sheet, grid, page, text
from framework.report.page.over_time import over_time
from framework.report.page.search import search
from framework.report.page.where import where_time_went, worst_requests
from framework.report.page.words import in_words, setup, sources
from framework.report.split_line import split_line

Summary = Mapping[str, Any]
_WORST_FIRST = "by the factor by which they missed a limit; those that were not served last"
_TRIED = "found by running the same requests again, without one cause after another, then with one remedy after another"
_CHANGED = "found by running the same requests again, each time with one routing decision answered otherwise"
_OF_PART = (HEADLINE, "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms")
_SOURCE = ("trace_source", "trace_sha256", "timing_source", "load", "seed", "predictor", "versions", "git_revision")


def run_page(
    measurement: Measurement,
    settings: Mapping[str, Any],
    command: str,
    limits: str | None = None,
    decisions: str | None = None,
) -> str:
    """The page as HTML. `settings`: all of the run's, by name; `command`: the command that repeats it; `limits`,
    `decisions`: the chapters on what limits it (`framework.report.page.limits`) and on its routes
    (`framework.report.decisions_chapter`).
    """
    result, evaluation, slo = measurement.result, measurement.evaluation, measurement.slo
    summary, requests = evaluation.summary, evaluation.requests
    diagnosis = diagnose(result, evaluation, slo)
    pictures, window_s = over_time(result, requests["good"].to_numpy())
    latency = [*distributions(result, requests, slo), *against_lengths(requests, slo)]
    latency += positions(result, diagnosis.losses.clock)
    behind = carried(result, requests, diagnosis.losses)
    went, worst = where_time_went(diagnosis.losses.phases, requests), worst_requests(result, requests, slo, diagnosis)
    chapters = [
        Chapter("search", "Search of the capacity", search(summary, measurement.probes)),
        Chapter("why", "Why goodput was lost", why(diagnosis)),
        Chapter("limits", "What limits goodput", limits, _TRIED),
        Chapter("decisions", "Regret of decisions", decisions, _CHANGED),
        Chapter("latency", "Latency", grid(latency)),
        Chapter("time", "Over time", _over_time(pictures, behind), f"in windows of {window_s:g} s"),
        Chapter("phases", "Where the time went", went),
        Chapter("pools", "Pools", _pools(measurement)),
        Chapter("classes", "Classes of requests", _parts("class", summary.get("classes"))),
        Chapter("tenants", "Tenants", _parts("tenant", summary.get("tenants"))),
        Chapter("worst", "Worst requests", worst, _WORST_FIRST),
        Chapter("figures", "All figures", _figures(summary)),
        Chapter("source", "Configuration", _source(summary, settings, command)),
    ]
    title = f"{summary['policy']} on {summary['trace']}"
    return page(
        title, _head(evaluation, settings), chapters, ("summary", summary), _tiles(summary, settings, counted(requests))
    )


def _over_time(pictures: Sequence[str], behind: str) -> str | None:
    return grid(pictures) + behind if pictures else None


def _head(evaluation: Evaluation, settings: Summary) -> str:
    summary = evaluation.summary
    fitted = ' <span class="mark">fitted trace, not a recording</span>' if summary["trace_source"] == "twin" else ""
    gpus = f"{summary['gpus']} GPU{'s' if summary['gpus'] > 1 else ''}"
    parts = [f"{number(summary['duration'])} s on {gpus}", load_state([summary]), f"seed {summary['seed']}"]
    lines = [setup([settings], [summary["gpus"]])]
    lines += [f"{summary['offered']:,} requests in {', '.join(filter(None, parts))}"]
    if "split" in summary:
        lines.append(split_line(summary["split"]))
    if summary["extrapolated"]:
        share = small_percent(summary["extrapolated"])
        lines.append(f"{share} of the busy time rests on step times beyond what was measured")
    said = "".join(f'<p class="sub">{text(line)}</p>' for line in lines if line)
    warned = filter(None, (overload(summary), short_window(summary, evaluation.allowed_s)))
    said += "".join(f'<p><span class="mark">{text(line)}</span></p>' for line in warned)
    return f"<h1>{text(summary['policy'])} on {text(summary['trace'])}{fitted}</h1>{said}"


def _tiles(summary: Summary, settings: Mapping[str, Any], requests: pl.DataFrame) -> str:
    bound = summary.get("share_of_bound")
    of_bound = f"{percent(bound)} of what any schedule could reach" if bound is not None else ""
    good = f"{int(requests['good'].sum()):,} of {summary['offered']:,} requests"
    tiles = [
        *_capacity(summary),
        _tile("Goodput", summary[HEADLINE], number(summary[HEADLINE]), "requests/s", of_bound),
        _tile("SLO kept", summary["slo_attainment"], percent(summary["slo_attainment"]), "", good),
        _limited("p99_ttft_ms", summary["p99_ttft_ms"], settings.get("slo.ttft_s"), requests["ttft_ok"]),
        _limited("p99_tpot_ms", summary["p99_tpot_ms"], settings.get("slo.tpot_s"), requests["tpot_ok"]),
        _tile("Throughput", summary["output_throughput"], number(summary["output_throughput"]), "tokens/s",
              f"{number(summary['request_throughput'])} requests/s"),
        _tile("Peak FLOP/s used", summary["mfu"], percent(summary["mfu"]), "",
              f"{percent(summary['mbu'])} of peak bandwidth"),
    ]  # fmt: skip
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _capacity(summary: Summary) -> list[str]:
    """The capacity that was searched for, if one was."""
    rate = summary.get("capacity")
    if rate is None:
        return []
    width = summary.get("capacity_half_width")
    below = [f"± {number(width)} (95 %)"] if summary.get("capacity_replicates") and width is not None else []
    bound = summary.get("capacity_share_of_bound")
    below += [f"{percent(bound)} of the bound"] if bound is not None else []
    below += [AT_LEAST_MEANS] if ran_out([summary]) else []
    kept = f"{100 * summary['capacity_attainment']:g} % keep the SLO"
    return [_tile("Capacity", rate, number(rate), "requests/s", ", ".join([kept, *below]))]


def _tile(name: str, value: float | None, shown: str, unit: str, below: str, kind: str = "") -> str:
    data = f'<data value="{value!r}">{text(shown)}</data>' if value is not None else text(shown)
    return (
        f'<div class="tile"><span>{text(name)}</span><b class="{kind}">{data} <span>{text(unit)}</span></b>'
        f"<small>{text(below)}</small></div>"
    )


def _limited(key: str, value_ms: float | None, limit_s: float | None, kept: pl.Series) -> str:
    """A latency next to its limit, in a unit in which both read well."""
    if value_ms is None:
        return _tile(metric(key).short, None, "–", "", "undefined")
    shown = metric(key).readable(value_ms)
    below, kind = "no limit for all", ""
    if limit_s is not None:
        share = percent(int(kept.sum()) / len(kept))
        below = f"limit {number(limit_s * 1e3 * shown.scale)} {shown.unit}, kept by {share}"
        kind = "ok" if value_ms <= 1e3 * limit_s else "miss"
    return _tile(shown.short, value_ms, number(value_ms * shown.scale), shown.unit, below, kind)


def why(diagnosis: Diagnosis) -> str:
    """What cost the run its goodput, the cause that cost most first, as HTML."""
    if not diagnosis.lost:
        return f"<p>Nothing was lost: all {diagnosis.offered:,} requests kept the SLO.</p>"
    if not diagnosis.findings:
        kept = diagnosis.offered - diagnosis.lost
        return (
            f"<p>{kept:,} of {diagnosis.offered:,} requests kept the SLO. No cause cost enough "
            "of the others to be listed: 1 % of all, and three requests.</p>"
        )
    paragraphs = [
        f"<p>{diagnosis.lost:,} of {diagnosis.offered:,} requests were lost. {text(diagnosis.signature)}.</p>"
    ]
    for finding in diagnosis.findings:
        paragraphs.append(
            f'<div class="finding"><p><strong>{text(finding.title)}</strong>: {finding.lost:,} requests, '
            f"{percent(finding.share)} of all.</p><p>{text(finding.evidence)}</p>"
            f'<p class="note">Settings that act on it: <code>{text(finding.settings)}</code></p></div>'
        )
    rest = diagnosis.lost - sum(finding.lost for finding in diagnosis.findings)
    if rest:
        paragraphs.append(f'<p class="note">{rest:,} more requests were lost to causes that cost less than 1 %.</p>')
    return "".join(paragraphs)


def _pools(measurement: Measurement) -> str:
    evaluation = measurement.evaluation
    rows = [
        [row["pool"], row["role"], row["instances"], row["gpus"], percent(row["utilization"]),
         percent(row["kv_utilization"]), row["mean_batch"], limit.word, limit.evidence]
        for row, limit in zip(
            evaluation.pools.iter_rows(named=True), pool_limits(measurement.result, evaluation), strict=True
        )
    ]  # fmt: skip
    columns = ["pool", "role", "instances", "GPUs", "time in steps", "KV memory in use", "mean decode batch"]
    return Sheet([*columns, "bound by", "because"], rows).html()


def _parts(kind: str, parts: Mapping[str, Summary] | None) -> str | None:
    if parts is None:
        return None
    rows: list[list[Cell]] = [
        [name, own["offered"], percent(own["slo_attainment"]), *(metric(key).of(own) for key in _OF_PART)]
        for name, own in parts.items()
    ]
    columns = [kind, "requests", metric("slo_attainment").short, *(metric(key).on_page for key in _OF_PART)]
    return Sheet(columns, rows).html()


def _figures(summary: Summary) -> str:
    rows = [
        [key, value, metric(key).meaning]
        for key, value in summary.items()
        if key not in _SOURCE and (value is None or isinstance(value, (int, float, str)))
    ]
    table = Sheet(["key of summary.json", "value", "what it is"], rows).html()
    return f"<details><summary>{len(rows)} figures</summary>{table}</details>"


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _source(summary: Summary, settings: Mapping[str, Any], command: str) -> str:
    chosen = [[key, _written(value)] for key, value in in_words(settings).items()]
    settings_table = Sheet(["setting", "value"], chosen).html()
    return (
        f"<pre><code>{text(command)}</code></pre>{Sheet(['source', 'value'], sources([summary], _SOURCE)).html()}"
        f"<details><summary>{len(chosen)} settings</summary>{settings_table}</details>"
    )
