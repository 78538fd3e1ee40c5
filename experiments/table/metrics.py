"""What the figures of a summary are called in a table, in which unit they stand, and which way is better."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    "slo_tightness": ("tightness of the SLO", "×"),
    "cache_hit_rate": ("cache hits", "%"),
    "mean_prefill_batch_tokens": ("mean prefill batch", "tokens"),
    "kv_utilization": ("KV in use", "%"),
    "out_of_memory_rate": ("out of memory", "%"),
    "preempted_rate": ("preempted", "%"),
    "mfu": ("MFU", "%"),
    "mbu": ("MBU", "%"),
    "duration": ("duration", "s"),
    "energy_j": ("energy", "J"),
    "cost_usd": ("cost", "USD"),
    "energy_per_token_j": ("energy per token", "J"),
    "usd_per_million_good_tokens": ("cost per million good tokens", "USD"),
}
_LATENCY = re.compile(r"(mean|median|std|p\d+)_(ttft|tpot|itl|e2el|queue)_ms")
_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "TBT", "e2el": "E2E", "queue": "queue delay"}
_HIGHER = re.compile(
    r"(.*goodput|.*throughput|capacity)(_per_gpu)?|slo_attainment|slo_tightness|cache_hit_rate|share_of_bound|mfu|mbu"
)
_LOWER = re.compile(
    r".*_ms|rejected|failed|preemptions|out_of_memory_rate|preempted_rate|energy(_per_token)?_j|cost_usd"
    r"|usd_per_million_good_tokens"
)


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
        return _LATENCY.fullmatch(self.key.partition("@")[0]) is not None

    def in_seconds(self) -> Metric:
        """The same latency, shown in seconds."""
        return replace(self, unit="s", scale=1e-3)


def metric(key: str) -> Metric:
    """What is known of a key from its name; KEY@CLASS is the figure of one class of requests."""
    key_of_all, is_of_class, slo_class = key.partition("@")
    if is_of_class:
        found = metric(key_of_all)
        return replace(found, key=key, name=f"{found.name} of {slo_class}")
    better = 1 if _HIGHER.fullmatch(key) else -1 if _LOWER.fullmatch(key) else 0
    latency = _LATENCY.fullmatch(key)
    if latency:
        statistic, name = latency.groups()
        return Metric(key, f"{_statistic(statistic)} {_LATENCIES[name]}", "ms", 1.0, better)
    name, unit = _NAMES.get(key, (key, ""))
    return Metric(key, name, unit, 100.0 if unit == "%" else 1.0, better)


def read_metrics(text: str, records: Sequence[Record]) -> list[Metric]:
    """Metrics given as "a,b" or "a@class". InputError for one that no summary has, or that is given twice."""
    summaries = [record.summary for record in records]
    keys = text.split(",")
    for key in keys:
        name, is_of_class, slo_class = key.partition("@")
        parts = _of_class(slo_class, summaries, key) if is_of_class else summaries
        known = {key for part in parts for key, value in part.items() if _is_figure(value)}
        if name not in known | {key for part in parts for key, value in part.items() if value is None}:
            raise InputError(f"metric={key}: {nearest(name, known)}there are {', '.join(sorted(known))}")
        if keys.count(key) > 1:
            raise InputError(f"metric={text}: {key} is given twice")
    return [metric(key) for key in keys]


def figure_of(summary: Mapping[str, Any], key: str) -> Any:
    """The figure of a key of `read_metrics`; None where the summary has none."""
    name, is_of_class, slo_class = key.partition("@")
    return (_classes(summary).get(slo_class, {}) if is_of_class else summary).get(name)


def _of_class(slo_class: str, summaries: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    """The figures of a class in each run that has it. InputError where none has."""
    names = sorted({name for summary in summaries for name in _classes(summary)})
    if not names:
        raise InputError(f"metric={key}: requests have no classes in these runs; metric={key.partition('@')[0]}")
    if slo_class not in names:
        raise InputError(f"metric={key}: no run has this class of requests; there are {', '.join(names)}")
    return [_classes(summary)[slo_class] for summary in summaries if slo_class in _classes(summary)]


def _classes(summary: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    found = summary.get("classes")
    return found if isinstance(found, Mapping) else {}


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _statistic(name: str) -> str:
    return name.upper() if name.startswith("p") else name
