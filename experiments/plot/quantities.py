"""The quantities of axes: latencies of requests, figures of summaries, columns of a run over time; as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from experiments.plot.style import legible
from experiments.table.metrics import figure_of, read_metrics
from experiments.table.select import nearest
from framework.cli.safe_text import printable
from framework.errors import InputError
from framework.metrics.figure import Metric
from framework.metrics.statistics import Estimate, estimate
from framework.run.store import Record

Floats = NDArray[np.float64]
_SETTINGS = {
    "trace.rate": "offered load (requests/s)",
    "load.concurrency": "clients",
    "slo.ttft_s": "limit of the time to first token (s)",
    "slo.tpot_s": "limit of the time per output token (s)",
}


@dataclass(frozen=True)
class Latency:
    """A latency of requests: its column of requests.parquet (seconds), shown times `factor`; `limit`: of the SLO.

    If `column` is gap_s it is that of gaps.parquet, the distribution of all requests' gaps.
    """

    column: str
    text: str
    unit: str
    factor: float
    limit: str

    @property
    def title(self) -> str:
        """The title of its axis."""
        return f"{self.text} ({self.unit})"

    @property
    def counts_gaps(self) -> bool:
        """Whether it counts each gap between tokens, not each request."""
        return self.column == "gap_s"


LATENCIES = {
    "ttft": Latency("ttft_s", "time to first token", "s", 1.0, "ttft_s"),
    "tpot": Latency("tpot_s", "time per output token", "ms", 1e3, "tpot_s"),
    "tbt": Latency("gap_s", "time between tokens", "ms", 1e3, ""),
    "tbt_p99": Latency("tbt_p99_s", "P99 of a request's times between tokens", "ms", 1e3, "tbt_p99_s"),
    "e2e": Latency("e2e_s", "end-to-end latency", "s", 1.0, ""),
    "queue": Latency("queue_s", "time in the queue before the prefill", "s", 1.0, ""),
}


@dataclass(frozen=True)
class Column:
    """A column of series.parquet, shown times `factor`; `is_rate`: counts of a window, shown per second; `by_pool`:
    pools have it, too.
    """

    name: str
    title: str
    factor: float = 1.0
    is_rate: bool = False
    by_pool: bool = False


COLUMNS = {
    one.name: one
    for one in (
        Column("arrivals", "arrivals (requests/s)", is_rate=True),
        Column("completions", "completions (requests/s)", is_rate=True),
        Column("good", "goodput (requests/s)", is_rate=True),
        Column("attainment", "within the SLO (%)", 100.0),
        Column("queue", "queue (requests)"),
        Column("decoding", "decoding (requests)", by_pool=True),
        Column("batch", "decode batch (requests)", by_pool=True),
        Column("utilization", "time in steps (%)", 100.0, by_pool=True),
        Column("decode_kv_tokens", "KV read (tokens)", by_pool=True),
        Column("decode_kv_share", "KV memory read (%)", 100.0, by_pool=True),
        Column("instances_active", "instances at work", by_pool=True),
    )
}


def known(names: Sequence[str], table: dict[str, Latency] | dict[str, Column]) -> None:
    """Raise InputError for a name that the table does not have."""
    for name in names:
        if name not in table:
            shown = printable(name)
            raise InputError(f"metric={shown}: {nearest(shown, table)}there are {', '.join(table)}")


def figure_metrics(names: Sequence[str], records: Sequence[Record]) -> list[Metric]:
    """Figures of summaries; latencies in seconds if the longest is long. Raises InputError for a figure that no run
    has.
    """
    found = read_metrics(",".join(names), records)
    return [_readable(one, records) for one in found]


def _readable(metric: Metric, records: Sequence[Record]) -> Metric:
    values = [figure_of(record.summary, metric.key) for record in records]
    return metric.readable(max((value for value in values if isinstance(value, (int, float))), default=0.0))


def setting_title(key: str) -> str:
    """The title of the axis of a setting."""
    return _SETTINGS.get(key) or legible(key)


def level(records: Sequence[Record], metric: Metric) -> Estimate:
    """Its mean over runs as shown, with half the width of its interval; NaN if it is undefined in one."""
    values = [figure_of(record.summary, metric.key) for record in records]
    if any(value is None for value in values):
        return Estimate(float("nan"), float("nan"))
    return scaled(estimate(np.asarray(values, np.float64)), metric.scale)


def scaled(found: Estimate, factor: float) -> Estimate:
    """The estimate in another unit."""
    return replace(found, mean=found.mean * factor, half_width=found.half_width * factor)
