"""A run as a timeline in the Chrome trace format, for ui.perfetto.dev and chrome://tracing.

Each instance is a process. Its steps are slices (a leap is one slice), and so are times while it is down. If it
decodes, the batch and the summed context of its decodes are counters, 0 while it idles. Arrows lead from the end of
each prefill whose KV was transferred to the decode that followed, and from the last step of a request on one instance
to its first on another. One more process has the requests (`framework.report.timeline.requests`).

A window of time leaves out steps and requests outside it, and arrows that are not wholly within it. The rest is as in
the whole timeline, but each counter of an instance also has its value at the first step in the window.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from typing import IO

import numpy as np
import polars as pl

from framework.report.timeline.faults import THREADS, fault_slices, outages
from framework.report.timeline.requests import arrows, in_flight, process_of, requests_of, steps_thread
from framework.report.timeline.trace_events import event, filled, us
from framework.result import Result

_NS = 1e9
_ROWS_AT_ONCE = 100_000
_ROUNDING_NS = 1  # nanoseconds between the end of a leap and the start of one that follows at once
_COUNTERS = {"batch": "requests", "context": "tokens"}  # counters, and units that a viewer shows
ALWAYS_S = (-math.inf, math.inf)  # the window of a whole timeline


def write_timeline(result: Result, file: IO[bytes], window_s: tuple[float, float] = ALWAYS_S) -> None:
    """Write gzipped JSON of the events within the window; equal results give equal bytes.

    Times are microseconds since the run's time 0.
    """
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed:
        packed.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        first = True
        for events in _chunks(result, window_s):
            packed.write(b"" if first else b",\n")
            packed.write(",\n".join(events).encode())
            first = False
        packed.write(b"\n]}\n")


def _chunks(result: Result, window_s: tuple[float, float]) -> Iterator[list[str]]:
    yield _names(result) + fault_slices(result, window_s, steps_thread(result))
    leaps = _leaps(result, window_s)
    for part in leaps.iter_slices(_ROWS_AT_ONCE):
        yield part.select(_slice(steps_thread(result))).to_series().to_list()
    decoding = pl.Series(np.unique(result.step_log["instance"][result.step_log["batch"] > 0]))
    steps = leaps.filter(pl.col("stream") == 0, pl.col("instance").is_in(decoding.implode()))
    for counter, unit in _COUNTERS.items():
        for part in _changes(steps, counter).iter_slices(_ROWS_AT_ONCE):
            yield part.select(_counter(counter, unit)).to_series().to_list()
    for table in (arrows(result, window_s), requests_of(result, window_s), in_flight(result, window_s)):
        for part in table.iter_slices(_ROWS_AT_ONCE):
            yield part["event"].to_list()


def _names(result: Result) -> list[str]:
    """Processes in the order of the instances, each named by its pool and its number within it; then the requests."""
    names = [f"{pool.name} {number}" for pool in result.cluster.pools for number in range(pool.instances)]
    concurrent = set(result.step_log["instance"][result.step_log["stream"] == 1].tolist())
    failed = {(outage.instance, outage.thread) for outage in outages(result)}
    events: list[str] = []
    for instance, name in enumerate(names):
        events += _process(instance, f"{name} (instance {instance})")
        events.append(_thread(instance, steps_thread(result), "steps"))
        if instance in concurrent:
            events.append(_thread(instance, steps_thread(result) + 1, "concurrent prefills"))
        events += [_thread(i, steps_thread(result) + k, THREADS[k]) for i, k in sorted(failed) if i == instance]
    return [*events, *_process(process_of(result), "requests")]


def _process(number: int, name: str) -> tuple[str, str]:
    """The name of a process, and its place in the order of numbers."""
    named = event(name="process_name", ph="M", pid=number, args={"name": name})
    return named, event(name="process_sort_index", ph="M", pid=number, args={"sort_index": number})


def _thread(process: int, number: int, name: str) -> str:
    return event(name="thread_name", ph="M", pid=process, tid=number, args={"name": name})


def _leaps(result: Result, window_s: tuple[float, float]) -> pl.DataFrame:
    """Leaps within the window, in time order of each instance; integer nanoseconds, so adjacent ones meet exactly."""
    leaps = result.step_log
    steps = leaps["steps"].astype(np.float64)
    duration_s = steps * leaps["first_s"] + steps * (steps - 1) / 2 * leaps["increment_s"]
    start_ns = np.rint(leaps["start_s"] * _NS).astype(np.int64)
    end_ns = np.rint((leaps["start_s"] + duration_s) * _NS).astype(np.int64)
    within = (start_ns < window_s[1] * _NS) & (end_ns > window_s[0] * _NS)
    names = ("instance", "steps", "batch", "prefill_tokens", "context", "stream")
    columns = {name: np.ascontiguousarray(leaps[name]) for name in names}
    times = {"start_ns": start_ns, "end_ns": end_ns, "duration_ns": end_ns - start_ns}
    table = pl.DataFrame({**columns, **times, "within": within}).sort("instance", "start_ns", maintain_order=True)
    next_ns = pl.col("start_ns").shift(-1).over("instance", "stream")
    idle = (next_ns - pl.col("end_ns") > _ROUNDING_NS).fill_null(value=True)
    return table.with_columns(idle.alias("idle_after")).filter("within")


def _slice(thread: int) -> pl.Expr:
    kind = (
        pl.when(pl.col("batch") == 0)
        .then(pl.lit("prefill"))
        .when(pl.col("prefill_tokens") > 0)
        .then(pl.lit("mixed"))
        .otherwise(pl.lit("decode"))
    )
    form = (
        '{"name":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{},'
        '"args":{"steps":{},"batch":{},"prefill_tokens":{},"context":{}}}'
    )
    values = (kind, "instance", pl.col("stream") + thread, us("start_ns"), us("duration_ns"))
    return filled(form, *values, "steps", "batch", "prefill_tokens", "context")


def _changes(leaps: pl.DataFrame, counter: str) -> pl.DataFrame:
    """Value from the start of each leap, and 0 if an instance then idles, if this differs from the value before."""
    begins = leaps.select("instance", pl.col("start_ns").alias("ts_ns"), pl.col(counter).cast(pl.Int64).alias("value"))
    ends = leaps.filter("idle_after").select("instance", pl.col("end_ns").alias("ts_ns"), pl.lit(0).alias("value"))
    levels = pl.concat([begins, ends.cast(begins.schema)]).sort("instance", "ts_ns", maintain_order=True)
    before = pl.col("value").shift(1).over("instance")
    return levels.filter(before.is_null() | (before != pl.col("value")))


def _counter(counter: str, unit: str) -> pl.Expr:
    form = '{"name":"' + counter + '","ph":"C","pid":{},"ts":{},"args":{"' + unit + '":{}}}'
    return filled(form, "instance", us("ts_ns"), "value")
