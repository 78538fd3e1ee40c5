"""Runs side by side: settings that differ, figures, latencies, and differences request by request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.metrics.figures import HEADLINE, HEADLINE_PER_GPU, metric
from framework.metrics.paired import Paired, paired
from framework.report.load_words import load_state, mark
from framework.report.page.bars import Bar, varies
from framework.report.page.chart import Chart
from framework.report.page.latency import SHARES, Quantity, percentiles, quantile, quantities, share_curves
from framework.report.page.markup import Cell, Legend, Links, Sheet, figure
from framework.report.page.scale import Scale
from framework.report.page.words import in_words

Floats = NDArray[np.float64]
MOST = 8  # runs on a page, one colour each
_ABSENT = "–"
_SAME = ("input_tokens", "output_tokens")  # columns in which paired requests must agree


@dataclass(frozen=True)
class Run:
    """A finished run: `label` distinguishes it from the others, `place` is its directory, `link` leads from the page
    to its own; `settings` are flat.
    """

    label: str
    place: str
    summary: Mapping[str, Any]
    requests: pl.DataFrame
    settings: Mapping[str, Any]
    link: str = ""


def changed(runs: Sequence[Run]) -> Sheet:
    """The settings in which the runs differ, one column each; an absent setting equals null."""
    every = [in_words(run.settings) for run in runs]
    names = dict.fromkeys(name for own in every for name in own)
    rows: list[list[Cell]] = [
        ["directory", *(Links([(run.place, run.link)]) if run.link else run.place for run in runs)]
    ]
    for name in names:
        values = [_setting(own, name) for own in every]
        if len(set(values) - {_ABSENT, "null"}) + bool({_ABSENT, "null"} & set(values)) > 1:
            rows.append([name, *values])
    return Sheet(["setting", *(run.label for run in runs)], rows)


def _setting(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return _ABSENT
    value = settings[name]
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


_FIGURES = (
    *(HEADLINE, "slo_attainment", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "p99_itl_ms"),
    *("median_e2el_ms", "output_throughput", "completed", "preemptions", "gpus", HEADLINE_PER_GPU, "mfu", "mbu"),
    *("energy_per_token_j", "usd_per_hour", "good_per_usd", "usd_per_million_good_tokens", "duration"),
)


def figures(runs: Sequence[Run]) -> Sheet:
    """The headline figures, one column for each run."""
    rows: list[list[Cell]] = []
    for key in _FIGURES:
        values = [_figure(key, run.summary) for run in runs]
        if any(value is not None for value in values):
            rows.append([metric(key).on_page, *values])
    if any(states := [load_state([run.summary]) for run in runs]):
        rows.insert(2, [metric("load_state").on_page, *states])
    return Sheet(["figure", *(run.label for run in runs)], rows)


def _figure(key: str, summary: Mapping[str, Any]) -> Cell:
    """A count stays one."""
    shown, value = metric(key), summary.get(key)
    return value if isinstance(value, int) and shown.scale == 1 else shown.of(summary)


def standing(runs: Sequence[Run]) -> list[Bar]:
    """Goodput and attainment of each run with their intervals, and how its attainment differs from the first run's.

    The interval of attainment is that of `paired`, over batches of successive requests; goodput has the same in
    proportion. A run whose figures do not count all its requests has none.
    """
    good = [100.0 * run.requests["good"].to_numpy().astype(np.float64) for run in runs]
    best = max(run.summary[HEADLINE] for run in runs)
    bars = []
    for run, own in zip(runs, good, strict=True):
        goodput, kept, of_all = run.summary[HEADLINE], 100 * run.summary["slo_attainment"], paired(own)
        width = of_all.half_width if abs(of_all.mean - kept) < 1e-6 else np.nan
        words = f"{kept:.1f} % kept the SLO{_width(width)}"
        if run is not runs[0] and are_alike([runs[0], run]):
            less = paired(own - good[0])
            more = "more" if less.mean > 0 else "fewer"
            many = f"{abs(less.mean):.1f} points {more} than" if less.mean else "as many as"
            words += f", {many} {runs[0].label}{_width(less.half_width)}"
        if of_all.caveat and varies(width, 1.0):
            words += "; the intervals are too narrow: adjacent requests go together"
        bars.append(Bar(run.label, goodput, width * goodput / kept if kept else np.nan, words, 0 < goodput == best))
    return bars


def _width(half_width: float) -> str:
    return f" (± {max(half_width, 0.1):.1f})" if varies(half_width, 1.0) else ""


def distributions(runs: Sequence[Run]) -> list[str]:
    """TTFT, TPOT and E2E of all runs, each in one picture, with the limits of their SLOs."""
    every = [quantities(run.requests) for run in runs]
    found = []
    for of_runs in zip(*every, strict=True):
        if any(np.isfinite(one.values).any() for one in of_runs):
            found.append(_distribution(of_runs, runs))
    return found


def _distribution(of_runs: Sequence[Quantity], runs: Sequence[Run]) -> str:
    groups = {
        run.label: np.sort(one.values[np.isfinite(one.values)]) * one.per_s
        for run, one in zip(runs, of_runs, strict=True)
    }
    shown = [f"{run.label} {mark(run.summary)}".rstrip() for run in runs]
    return share_curves(of_runs[0], groups, _limits_s(runs, of_runs[0].limit), shown)


def _limits_s(runs: Sequence[Run], name: str) -> dict[float, str]:
    """The limits for all requests, each with the runs that have it if they differ."""
    limits: dict[float, list[str]] = {}
    for run in runs:
        limit = run.settings.get(f"slo.{name}") if name else None
        if isinstance(limit, int | float):
            limits.setdefault(float(limit), []).append(run.label)
    return {limit: "SLO" if len(limits) == 1 else f"SLO {labels[0].split()[0]}" for limit, labels in limits.items()}


# --- request by request -----------------------------------------------------------------------------------------------


def are_alike(runs: Sequence[Run]) -> bool:
    """Whether all have the same requests in the same order, so that they can be paired."""
    first = runs[0].requests
    return all(
        len(run.requests) == len(first) and all(run.requests[name].equals(first[name]) for name in _SAME)
        for run in runs[1:]
    )


@dataclass(frozen=True)
class Difference:
    """The differences (N,) of `run` from the first run, in `unit`, NaN if either has no value, and their mean."""

    run: Run
    quantity: str
    unit: str
    values: Floats
    paired: Paired


def differences(runs: Sequence[Run]) -> list[Difference]:
    """The differences of each run from the first: goodness, TTFT, TPOT and E2E, request by request."""
    found = []
    base = quantities(runs[0].requests)
    good = runs[0].requests["good"].to_numpy().astype(np.float64)
    for run in runs[1:]:
        kept = 100 * (run.requests["good"].to_numpy() - good)
        found.append(Difference(run, "SLO kept", "%", kept, paired(kept)))
        for own, other in zip(quantities(run.requests), base, strict=True):
            values = (own.values - other.values) * own.per_s
            found.append(Difference(run, own.name, own.unit, values, paired(values)))
    return found


def difference_table(found: Sequence[Difference]) -> Sheet:
    """One row for each run and quantity: the mean with its interval, the median, and which run is better."""
    rows: list[list[Cell]] = []
    for one in found:
        it = one.paired
        ends = (it.mean - it.half_width, it.mean + it.half_width) if np.isfinite(it.half_width) else (None, None)
        trusted = it.caveat or ("leaves out 0" if abs(it.mean) > it.half_width else "holds 0: no difference found")
        values = [
            value if np.isfinite(value) else None for value in (it.mean, it.median, 100 * it.below, 100 * it.above)
        ]
        rows.append([one.run.label, f"{one.quantity} ({one.unit})", it.pairs, values[0], *ends, *values[1:], trusted])
    columns = ["run", "difference", "requests", "mean", "95 % from", "to", "median", "below 0 (%)", "above 0 (%)"]
    return Sheet([*columns, "interval"], rows)


def difference_pictures(found: Sequence[Difference], runs: Sequence[Run]) -> list[str]:
    """The distributions of differences of TTFT, TPOT and E2E, one line for each run."""
    drawn = []
    for name in dict.fromkeys(one.quantity for one in found if one.quantity != "SLO kept"):
        own = [one for one in found if one.quantity == name and np.isfinite(one.values).any()]
        if own:
            drawn.append(_difference_picture(name, own, runs))
    return drawn


def _difference_picture(name: str, own: Sequence[Difference], runs: Sequence[Run]) -> str:
    groups = {one.run.label: np.sort(one.values[np.isfinite(one.values)]) for one in own}
    ends = [np.quantile(values, [0.005, 0.995]) for values in groups.values()]
    low, high = min(0.0, *(float(one[0]) for one in ends)), max(0.0, *(float(one[1]) for one in ends))
    room = 0.04 * (high - low) or 1.0
    x, first, unit = Scale(low - room, high + room), runs[0].label, own[0].unit
    chart = Chart(f"{name} less that of {first}", x, Scale(0.0, 100.0), f"difference ({unit})", "share (%)")
    chart.upright_limit(0.0, "equal")
    kinds = {run.label: f"s{number}" for number, run in enumerate(runs)}
    for label, values in groups.items():
        shown = quantile(values, SHARES)
        within = (shown >= x.low) & (shown <= x.high)
        chart.line(np.where(within, shown, np.nan), SHARES * 100, kinds[label])
    legend = Legend([(label, kinds[label]) for label in groups])
    note = f"less that of {first}, the same request"
    return figure(f"{name} difference", note, chart.html(), legend, percentiles(groups, unit))
