"""Pictures of latency: its distribution, and its dependence on lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.metrics.phases import DecodeClock
from framework.metrics.service.by_position import by_position
from framework.metrics.slo import Slo
from framework.metrics.token_gaps import gap_shares
from framework.report.page.carried import sample
from framework.report.page.chart import Chart
from framework.report.page.markup import Cell, Legend, Sheet, figure
from framework.report.page.scale import Scale, fitting, from_zero
from framework.result import Result

Floats = NDArray[np.float64]
SHARES = np.concatenate([np.linspace(0, 0.98, 99), np.linspace(0.981, 0.999, 19), [1.0]])
SHOWN = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
_CLASSES = 4  # the most classes with their own curve
_BINS = 6


@dataclass(frozen=True)
class Quantity:
    """A latency: `values` (N,) in seconds, NaN if undefined; shown in `unit`, of which a second has `per_s`."""

    name: str
    caption: str
    values: Floats
    unit: str
    per_s: float
    limit: str  # limit of the SLO, "" if there is none


def quantities(requests: pl.DataFrame) -> list[Quantity]:
    """TTFT, TPOT and E2E of the requests that finished."""
    finished = (requests["state"] == "finished").to_numpy()

    def column(name: str) -> Floats:
        return np.where(finished, requests[name].to_numpy(), np.nan).astype(np.float64)

    return [
        Quantity("TTFT", "time to first token", column("ttft_s"), "s", 1.0, "ttft_s"),
        Quantity("TPOT", "time per output token after the first", column("tpot_s"), "ms", 1e3, "tpot_s"),
        Quantity("E2E", "from arrival to last token", column("e2e_s"), "s", 1.0, ""),
    ]


def distributions(result: Result, requests: pl.DataFrame, slo: Slo) -> list[str]:
    """A curve of each latency: the share of requests, or of gaps, up to each value."""
    found = [
        _distribution(quantity, slo, result.workload.slo_class)
        for quantity in quantities(requests)
        if np.isfinite(quantity.values).any()
    ]
    gaps = _gaps(result, requests)
    return [*found[:2], *([gaps] if gaps else []), *found[2:]]


def _distribution(quantity: Quantity, slo: Slo, slo_class: Sequence[str] | None) -> str:
    values = quantity.values * quantity.per_s
    groups = {"all": np.sort(values[np.isfinite(values)])}
    names = sorted(set(slo_class)) if slo_class is not None else []
    if 1 < len(names) <= _CLASSES:
        classes = np.array(slo_class)
        own = {name: np.sort(values[(classes == name) & np.isfinite(values)]) for name in names}
        groups |= {name: one for name, one in own.items() if len(one)}
    limits_s = _limits_s(slo, quantity.limit, list(groups)) if quantity.limit else {}
    return share_curves(quantity, groups, limits_s, list(groups) if len(groups) > 1 else ())


def share_curves(
    quantity: Quantity, groups: Mapping[str, Floats], limits_s: Mapping[float, str], shown: Sequence[str]
) -> str:
    """A picture with a curve for each group: the share of its requests up to each value of the quantity.

    `groups`: values in order, in the unit of the quantity. `limits_s`: limits (seconds) with their labels. `shown`: the
    names of the groups in the legend.
    """
    name, unit = quantity.name, quantity.unit
    chart = _shares(
        f"Share of requests up to each {name}", up_to(np.concatenate(list(groups.values()))), f"{name} ({unit})"
    )
    for number, values in enumerate(groups.values()):
        if len(values):
            chart.line(quantile(values, SHARES), SHARES * 100, f"s{number}")
    for limit_s, label in limits_s.items():
        chart.upright_limit(limit_s * quantity.per_s, f"{label} {limit_s * quantity.per_s:g} {unit}")
    legend = Legend([(label, f"s{number}") for number, label in enumerate(shown)])
    return figure(name, quantity.caption, chart.html(), legend, percentiles(groups, unit))


def percentiles(groups: Mapping[str, Floats], unit: str) -> Sheet:
    """A table of the percentiles SHOWN of each group, whose values are in order."""
    rows: list[list[Cell]] = [
        [f"P{100 * at:g}", *(float(quantile(one, np.array(at))) if len(one) else None for one in groups.values())]
        for at in SHOWN
    ]
    return Sheet(["percentile", *(f"{name} ({unit})" for name in groups)], rows)


def quantile(ordered: Floats, shares: Floats) -> Floats:
    """The quantiles of values in order, by linear interpolation."""
    found: Floats = np.interp(shares * (len(ordered) - 1), np.arange(len(ordered)), ordered)
    return found


def _gaps(result: Result, requests: pl.DataFrame) -> str | None:
    """The distribution of all gaps between tokens; of each request's longest gap if the step log was reduced."""
    if result.engine.log == "full":
        output_tokens = result.workload.output_tokens
        upto_s, shares = gap_shares(result.step_log, result.token_log, output_tokens, len(result.instances))
        if len(upto_s) == 0:
            return None
        note = "time between two tokens of a request, all gaps"
    else:
        upto_s = np.sort(requests["tbt_p99_s"].drop_nulls().to_numpy())
        if len(upto_s) == 0:
            return None
        shares = np.arange(1, len(upto_s) + 1) / len(upto_s)
        note = "P99 of the gaps of each request"
    places = np.minimum(np.searchsorted(shares, SHARES), len(upto_s) - 1)
    values = upto_s[places] * 1e3
    chart = _shares("Share of gaps up to each length", up_to(values), "TBT (ms)")
    chart.line(values, SHARES * 100, "s0")
    shown_at = np.minimum(np.searchsorted(shares, SHOWN), len(upto_s) - 1)
    rows: list[list[Cell]] = [
        [f"P{100 * at:g}", float(1e3 * value_s)] for at, value_s in zip(SHOWN, upto_s[shown_at], strict=True)
    ]
    return figure("TBT", note, chart.html(), Legend(()), Sheet(["percentile", "ms"], rows))


def _shares(title: str, scale: Scale, label: str) -> Chart:
    return Chart(title, scale, Scale(0.0, 100.0), label, "share (%)")


def up_to(values: Floats) -> Scale:
    """A scale for a distribution except its far ends."""
    above = values[values > 0]
    if len(above) == 0:
        return Scale(0.0, 1.0)
    ends = np.quantile(above, [0.005, 1.0])
    return fitting(np.append(ends, np.median(above)))


def _limits_s(slo: Slo, name: str, classes: Sequence[str]) -> dict[float, str]:
    """The limits in force, each with its label; those of classes if they have their own."""
    limits: dict[float, str] = {}
    if (limit := getattr(slo, name)) is not None:
        limits[float(limit)] = "SLO"
    for own, values in (slo.classes or {}).items():
        if (limit := values.get(name)) is not None and own in classes:
            limits.setdefault(float(limit), own)
    return limits


def against_lengths(requests: pl.DataFrame, slo: Slo) -> list[str]:
    """TTFT over prompt lengths and TPOT over output lengths: a dot for each request, and percentiles by length."""
    ttft, tpot, _ = quantities(requests)
    return [
        _against(requests, ttft, "input_tokens", "prompt (tokens)", slo),
        _against(requests, tpot, "output_tokens", "output (tokens)", slo),
    ]


def _against(requests: pl.DataFrame, quantity: Quantity, column: str, label: str, slo: Slo) -> str:
    lengths = requests[column].to_numpy().astype(np.float64)
    values = quantity.values * quantity.per_s
    known = np.flatnonzero(np.isfinite(values))
    good = requests["good"].to_numpy()
    rows = sample(len(requests))
    rows_of = {kept: np.flatnonzero(np.isfinite(values[rows]) & (good[rows] == kept)) for kept in (True, False)}
    x, y = fitting(lengths[known]), fitting(values[known])
    chart = Chart(f"{quantity.name} of requests by {label}", x, y, label, f"{quantity.name} ({quantity.unit})")
    for kept, kind in ((True, "kept"), (False, "missed")):
        own = rows[rows_of[kept]]
        chart.dots(lengths[own], values[own], kind, rows_of[kept].tolist())
    for limit_s in _limits_s(slo, quantity.limit, list(slo.classes or ())):
        chart.level_limit(limit_s * quantity.per_s, f"SLO {limit_s * quantity.per_s:g} {quantity.unit}")
    shown = sum(map(len, rows_of.values()))
    note = f"{shown:,} of {len(known):,} requests" if shown < len(known) else f"{len(known):,} requests"
    legend = Legend((("kept the SLO", "kept"), ("missed it", "missed")))
    columns = [label, "requests", *(f"{at} ({quantity.unit})" for at in ("P50", "P90", "P99")), "SLO kept (%)"]
    sheet = Sheet(columns, _by_length(lengths[known], values[known], good[known]))
    return figure(f"{quantity.name} against {label.split()[0]}", note, chart.html(), legend, sheet)


def _by_length(lengths: Floats, values: Floats, good: NDArray[np.bool_]) -> list[list[Cell]]:
    """One row for each range of lengths, with about equally many requests each."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, _BINS + 1))) if len(lengths) else np.zeros(0)
    ranges = [*pairwise(edges)] if len(edges) != 1 else [(edges[0], edges[0])]
    rows: list[list[Cell]] = []
    for number, (low, high) in enumerate(ranges):
        own = (lengths >= low) & ((lengths <= high) if number == len(ranges) - 1 else (lengths < high))
        if own.any():
            found = (float(one) for one in np.quantile(values[own], [0.5, 0.9, 0.99]))
            label = f"{low:,.0f} to {high:,.0f}" if low < high else f"{low:,.0f}"
            rows.append([label, int(own.sum()), *found, 100 * float(good[own].mean())])
    return rows


def positions(result: Result, clock: DecodeClock | None = None) -> list[str]:
    """The mean gap by position; nothing if it is unknown, or if all gaps are in one bucket."""
    found = by_position(result, clock)
    if found is None or len(found) < 2:
        return []
    edges = np.array([*(one["from_token"] for one in found), found[-1]["to_token"]], np.float64)
    means_ms = np.array([one["mean_itl_ms"] for one in found])
    label = "token of the output"
    chart = Chart(
        "Mean gap by position", Scale(edges[0], edges[-1], log=True), from_zero(means_ms), label, "mean gap (ms)"
    )
    chart.steps(edges, means_ms, "s0")
    rows: list[list[Cell]] = [
        [f"{one['from_token']:,} to {one['to_token'] - 1:,}", one["gaps"], one["mean_itl_ms"]] for one in found
    ]
    sheet = Sheet(["gap after token", "gaps", "mean (ms)"], rows)
    return [figure("TBT by position", "mean gap, the further an output has come", chart.html(), Legend(()), sheet)]
