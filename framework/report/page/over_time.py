"""Pictures of a run over time, by pool if there are several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.metrics.series import span_s, time_series
from framework.report.page.chart import Chart
from framework.report.page.markup import Legend, Sheet, figure
from framework.report.page.scale import Scale, from_zero, nice
from framework.result import Result

Floats = NDArray[np.float64]
_WINDOWS = 80
_POOLS = 6  # the most pools with their own curve


@dataclass(frozen=True)
class _Panel:
    """A picture: `columns` of the series, each with its label; `factor` to their unit; by pool, or of the cluster."""

    title: str
    label: str
    columns: tuple[tuple[str, str], ...]
    factor: float = 1.0
    by_pool: bool = False
    rate: bool = False
    share: bool = False


_PANELS = (
    _Panel("Load", "requests/s", (("arrivals", "arrived"), ("good", "completed within the SLO")), rate=True),
    _Panel("Attainment", "SLO kept (%)", (("attainment", "by arrival"),), factor=100.0, share=True),
    _Panel("Queue", "requests waiting", (("queue", "before their first admission"),)),
    _Panel("Decoding", "requests", (("decoding", "in decode steps"),), by_pool=True),
    _Panel("Utilisation", "time in steps (%)", (("utilization", ""),), factor=100.0, by_pool=True, share=True),
    _Panel("KV memory", "read by decodes (%)", (("decode_kv_share", ""),), factor=100.0, by_pool=True),
    _Panel("Instances", "with a step", (("instances_active", ""),), by_pool=True),
)


def over_time(result: Result, good: NDArray[np.bool_]) -> tuple[list[str], float]:
    """The pictures, and the length of the windows in seconds; none for a run without duration."""
    start_s, end_s = span_s(result)
    if not end_s > start_s:
        return [], 0.0
    window_s = max(nice((end_s - start_s) / _WINDOWS), (end_s - start_s) / _WINDOWS)
    series = time_series(result, good, window_s)
    pools = [pool.name for pool in result.cluster.pools]
    return [_drawn(panel, series, pools) for panel in _PANELS if _says_something(panel, series)], window_s


def _says_something(panel: _Panel, series: pl.DataFrame) -> bool:
    """Whether a panel is known and, if it shows the number of instances at work, whether that changes."""
    if not any(series[column].drop_nulls().len() > 0 for column, _ in panel.columns):
        return False
    if panel.title != "Instances":
        return True
    by_pool = series.filter(pl.col("pool").is_not_null()).group_by("pool")
    different = by_pool.agg(pl.col("instances_active").n_unique())["instances_active"].to_numpy()
    return bool((different > 1).any())


def _drawn(panel: _Panel, series: pl.DataFrame, pools: Sequence[str]) -> str:
    whole = series.filter(pl.col("pool").is_null())
    start_s, lengths_s = whole["start_s"].to_numpy(), whole["window_s"].to_numpy()
    edges_s = np.append(start_s, start_s[-1] + lengths_s[-1]) - start_s[0]
    curves: dict[str, Floats] = {}
    if panel.by_pool and len(pools) <= _POOLS:
        for pool in pools:
            curves[pool] = _values(series.filter(pl.col("pool") == pool), panel.columns[0][0], panel)
    else:
        for column, label in panel.columns:
            curves[label or "all pools"] = _values(whole, column, panel)
    every = np.concatenate(list(curves.values()))
    y = Scale(0.0, 103.0) if panel.share else from_zero(every)
    chart = Chart(f"{panel.title} over time", Scale(0.0, float(edges_s[-1])), y, "time (s)", panel.label, "time")
    for number, values in enumerate(curves.values()):
        chart.steps(edges_s, values, f"s{number}")
    entries = [(name, f"s{number}") for number, name in enumerate(curves)]
    shown = Legend(entries if len(entries) > 1 else ())
    note = "" if len(entries) > 1 else next(iter(curves))
    rows = [
        [float(at), *(None if not np.isfinite(values[index]) else float(values[index]) for values in curves.values())]
        for index, at in enumerate(edges_s[:-1])
    ]
    columns = ["from (s)", *(f"{name}: {panel.label}" for name in curves)]
    return figure(panel.title, note, chart.html(), shown, Sheet(columns, rows))


def _values(rows: pl.DataFrame, column: str, panel: _Panel) -> Floats:
    values = rows[column].cast(pl.Float64).to_numpy() * panel.factor
    if panel.rate:
        lengths_s = rows["window_s"].to_numpy()
        values = np.divide(values, lengths_s, out=np.full(len(values), np.nan), where=lengths_s > 0)
    return values.astype(np.float64)
