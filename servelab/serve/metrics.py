"""/metrics, by the names of vLLM (vllm/v1/metrics/loggers.py), and how late the server's own tokens are.

Latencies are seconds of the simulation, as a server of the simulated hardware would report them.
`servelab:token_lag_seconds` is the wall-clock time between the moment at which a token was due and its writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from servelab.serve.fleet import Fleet, Stream

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LABELS = ("model_name", "engine")
_FIRST_S: tuple[float, ...] = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
)
_FIRST_S += (80.0, 160.0, 640.0, 2560.0)
_GAP_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST_S: tuple[float, ...] = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
)
_REQUEST_S += (960.0, 1920.0, 7680.0)
_TOKENS = tuple(float(mantissa * 10**power) for power in range(6) for mantissa in (1, 2, 5))
LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _FIRST_S),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _GAP_S),
    "request_time_per_output_token_seconds": ("Histogram of time_per_output_token_seconds per request.", _GAP_S),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _REQUEST_S),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _REQUEST_S),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _REQUEST_S),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _REQUEST_S),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _REQUEST_S),
    "request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
}
_COUNTERS = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
}
_ENDS = ("stop", "length", "abort", "error")
_FOLDED = 1 << 14  # values that are kept before they are counted


class Histogram:
    """Values in buckets, which are counted many at a time."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum_s = 0.0
        self._values: list[float] = []

    def add(self, value: float) -> None:
        self._values.append(value)
        if len(self._values) >= _FOLDED:
            self._fold()

    def _fold(self) -> None:
        self._counts += np.bincount(np.searchsorted(self._bounds, self._values), minlength=len(self._counts))
        self._sum_s += float(np.sum(self._values))
        self._values = []

    def quantile(self, share: float) -> float:
        """The bound of the bucket up to which that share of the values lies."""
        rows, _ = self.rows
        return next(float(bound) for bound, count in rows if count >= share * rows[-1][1])

    @property
    def rows(self) -> tuple[list[tuple[str, float]], float]:
        """(upper bound, values up to it) of each bucket, and the sum of all values."""
        self._fold()
        bounds = [*map(repr, self._bounds), "+Inf"]
        return [*zip(bounds, np.cumsum(self._counts).astype(float).tolist(), strict=True)], self._sum_s


class Counted:
    """What /metrics counts of each instance."""

    def __init__(self, instances: int) -> None:
        self.histograms = [
            {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()} for _ in range(instances)
        ]
        self.counters = [dict.fromkeys(_COUNTERS, 0) for _ in range(instances)]
        self.ends = [dict.fromkeys(_ENDS, 0) for _ in range(instances)]
        self.lag = Histogram(LAG_S)

    def summary(self) -> str:
        """What was served, in a line; empty: nothing."""
        count, tokens = (
            sum(sum(ends.values()) for ends in self.ends),
            sum(one["generation_tokens"] for one in self.counters),
        )
        if not tokens:
            return ""
        lag_ms = self.lag.quantile(0.99) * 1e3
        return f"{count:,} requests, {tokens:,} tokens; 99 % of the tokens were written at most {lag_ms:g} ms late"

    def tokens(self, stream: Stream, count: int, due_s: float, lag_s: float, instance: int) -> None:
        self.lag.add(lag_s)
        self.counters[instance]["generation_tokens"] += count
        if stream.seen > count:
            self.histograms[instance]["inter_token_latency_seconds"].add(due_s - stream.last_s)
        else:
            self.histograms[instance]["time_to_first_token_seconds"].add(due_s - stream.sent_s)

    def ended(self, stream: Stream, row: np.void, end: str) -> None:
        instance = max(int(row["prefill_instance"]), 0)
        counters = self.counters[instance]
        self.ends[instance][end] += 1
        if not np.isnan(row["start_s"]):
            counters["prefix_cache_queries"] += stream.input_tokens
            counters["prefix_cache_hits"] += int(row["cached_tokens"])
            counters["num_preemptions"] += int(row["preemptions"])
        if end not in ("stop", "length"):
            return
        counters["prompt_tokens"] += stream.input_tokens
        start_s, first_s, end_s = (float(row[name]) for name in ("start_s", "first_token_s", "end_s"))
        values = {
            "e2e_request_latency_seconds": end_s - stream.sent_s,
            "request_queue_time_seconds": start_s - float(row["arrival_s"]),
            "request_inference_time_seconds": end_s - start_s,
            "request_prefill_time_seconds": first_s - start_s,
            "request_decode_time_seconds": end_s - first_s,
            "request_prompt_tokens": stream.input_tokens,
            "request_generation_tokens": stream.seen,
        }
        if stream.seen > 1:
            values["request_time_per_output_token_seconds"] = (end_s - first_s) / (stream.seen - 1)
        for name, value in values.items():
            self.histograms[instance][name].add(value)


class Exposed(Collector):
    """What one port shows: all instances, or one of them, which is engine 0 of its own server."""

    def __init__(self, fleet: Fleet, counted: Counted, instance: int, model: str) -> None:
        self._fleet, self._counted, self._model = fleet, counted, model
        self._instances = range(len(counted.counters)) if instance < 0 else [instance]
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """The body of /metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Any]:
        """The families of metrics, as prometheus_client asks for them."""
        yield from self._gauges()
        for name, words in _COUNTERS.items():
            family = CounterMetricFamily(f"vllm:{name}", words, labels=_LABELS)
            for labels, i in self._labelled():
                family.add_metric(labels, self._counted.counters[i][name])
            yield family
        ends = CounterMetricFamily(
            "vllm:request_success", "Count of successfully processed requests.", labels=[*_LABELS, "finished_reason"]
        )
        for labels, i in self._labelled():
            for end, count in self._counted.ends[i].items():
                ends.add_metric([*labels, end], count)
        yield ends
        for name, (words, _) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"vllm:{name}", words, labels=_LABELS)
            for labels, i in self._labelled():
                histogram.add_metric(labels, *self._counted.histograms[i][name].rows)
            yield histogram
        words = "Wall-clock seconds between the moment a token was due and its writing."
        lag = HistogramMetricFamily("servelab:token_lag_seconds", words, labels=["model_name"])
        lag.add_metric([self._model], *self._counted.lag.rows)
        yield lag

    def _labelled(self) -> Iterator[tuple[list[str], int]]:
        for number, i in enumerate(self._instances):
            yield [self._model, str(number)], i

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        rows = self._fleet.engine.inspection.instances
        used = 1 - (rows["free_blocks"] + rows["evictable_blocks"]) / rows["total_blocks"]
        gauges = {
            "num_requests_running": ("Number of requests in model execution batches.", _running(rows)),
            "num_requests_waiting": ("Number of requests waiting to be processed.", rows["queued"] + rows["swapped"]),
            "kv_cache_usage_perc": ("KV-cache usage. 1 means 100 percent usage.", used),
        }
        for name, (words, values) in gauges.items():
            family = GaugeMetricFamily(f"vllm:{name}", words, labels=_LABELS)
            for labels, i in self._labelled():
                family.add_metric(labels, float(values[i]))
            yield family


def _running(rows: Any) -> Any:
    return rows["running"] + rows["prefilling"] + rows["joining"]
