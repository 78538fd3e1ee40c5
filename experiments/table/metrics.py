"""What the figures of a summary are called in a table, in which unit they stand, and which way is better."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.table.select import nearest
from framework.errors import InputError
from framework.run.store import Record

_NAMES = {
    "request_goodput": ("goodput", "req/s"),
    "goodput_per_gpu": ("goodput per GPU", "req/s"),
    "goodput_bound": ("bound on goodput", "req/s"),
    "share_of_bound": ("goodput / bound", "%"),
    "capacity": ("capacity", "req/s"),
    "capacity_per_gpu": ("capacity per GPU", "req/s"),
    "request_throughput": ("throughput", "req/s"),
    "output_throughput": ("output throughput", "tok/s"),
    "total_token_throughput": ("token throughput", "tok/s"),
    "slo_attainment": ("SLO attainment", "%"),
    "cache_hit_rate": ("cache hits", "%"),
    "kv_utilization": ("KV in use", "%"),
    "mfu": ("MFU", "%"),
    "mbu": ("MBU", "%"),
    "duration": ("duration", "s"),
    "energy_j": ("energy", "J"),
    "cost_usd": ("cost", "USD"),
    "energy_per_token_j": ("energy per token", "J"),
    "usd_per_million_good_tokens": ("cost per million good tokens", "USD"),
}
_LATENCY = re.compile(r"(mean|median|std|p\d+)_(ttft|tpot|itl|e2el)_ms")
_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "TBT", "e2el": "E2E"}
_HIGHER = re.compile(
    r"(.*goodput|.*throughput|capacity)(_per_gpu)?|slo_attainment|cache_hit_rate|share_of_bound|mfu|mbu"
)
_LOWER = re.compile(r".*_ms|rejected|failed|preemptions|energy(_per_token)?_j|cost_usd|usd_per_million_good_tokens")


@dataclass(frozen=True)
class Metric:
    """A key of summary.json, shown times `scale`. `better`: 1 if higher is, -1 if lower is, 0 if neither."""

    key: str
    name: str
    unit: str
    scale: float
    better: int

    @property
    def heading(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def is_latency(self) -> bool:
        return _LATENCY.fullmatch(self.key) is not None

    def in_seconds(self) -> Metric:
        """The same latency, shown in seconds."""
        return replace(self, unit="s", scale=1e-3)


def metric(key: str) -> Metric:
    """What is known of a key from its name."""
    better = 1 if _HIGHER.fullmatch(key) else -1 if _LOWER.fullmatch(key) else 0
    latency = _LATENCY.fullmatch(key)
    if latency:
        statistic, name = latency.groups()
        return Metric(key, f"{_statistic(statistic)} {_LATENCIES[name]}", "ms", 1.0, better)
    name, unit = _NAMES.get(key, (key, ""))
    return Metric(key, name, unit, 100.0 if unit == "%" else 1.0, better)


def read_metrics(text: str, records: Sequence[Record]) -> list[Metric]:
    """Metrics given as "a,b". InputError for one that no summary has, or that is given twice."""
    summaries = [record.summary for record in records]
    known = {key for summary in summaries for key, value in summary.items() if _is_figure(value)}
    defined = {key for summary in summaries for key, value in summary.items() if value is None or _is_figure(value)}
    keys = text.split(",")
    for key in keys:
        if key not in defined:
            raise InputError(f"metric={key}: {nearest(key, known)}there are {', '.join(sorted(known))}")
        if keys.count(key) > 1:
            raise InputError(f"metric={text}: {key} is given twice")
    return [metric(key) for key in keys]


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _statistic(name: str) -> str:
    return name.upper() if name.startswith("p") else name
