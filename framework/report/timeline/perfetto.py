"""A run as a timeline in the Chrome trace format, for ui.perfetto.dev and chrome://tracing.

Each instance is a process. Its steps are slices (a leap is one slice), and so are times while it is down. If it
decodes, the batch and the summed context of its decodes are counters, 0 while it idles; so are its KV memory in use and
the prompt tokens that wait there. Arrows lead from the end of each prefill whose KV was transferred to the decode that
followed, and from the last step of a request on one instance to its first on another. One more process has the requests
(`framework.report.timeline.requests`), and the run itself as an instant with its arguments; another one the programs.

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

from framework.metrics.slo import Slo
from framework.report.timeline.arguments import request_arguments, run_arguments
from framework.report.timeline.faults import THREADS, fault_slices, outages
from framework.report.timeline.levels import NS, Levels, context_of, held_of, leaps_of, queued_of
from framework.report.timeline.programs import program_events
from framework.report.timeline.requests import (
    arrows,
    ends_s,
    in_flight,
    present,
    process_of,
    requests_of,
    steps_thread,
)
from framework.report.timeline.routes import names_of
from framework.report.timeline.trace_events import event, filled, thread_name, us
from framework.result import Result

_ROWS_AT_ONCE = 100_000
_COUNTERS = {"batch": "requests", "context": "tokens"}  # counters, and units that a viewer shows
ALWAYS_S = (-math.inf, math.inf)  # the window of a whole timeline


def write_timeline(
    result: Result, file: IO[bytes], window_s: tuple[float, float] = ALWAYS_S, slo: Slo | None = None
) -> None:
    """Write gzipped JSON of the events within the window; equal results give equal bytes.

    Times are microseconds since the run's time 0. `slo`: the limits by which the arguments of requests judge them.
    """
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed:
        packed.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        first = True
        for events in _chunks(result, window_s, slo):
            packed.write(b"" if first else b",\n")
            packed.write(",\n".join(events).encode())
            first = False
        packed.write(b"\n]}\n")


def _chunks(result: Result, window_s: tuple[float, float], slo: Slo | None) -> Iterator[list[str]]:
    yield [*_names(result), *_run(result, window_s, slo), *fault_slices(result, window_s, steps_thread(result))]
    every = leaps_of(result)
    bounds = pl.col("start_ns") < window_s[1] * NS, pl.col("end_ns") > window_s[0] * NS
    leaps = every.filter(*bounds)
    for part in leaps.iter_slices(_ROWS_AT_ONCE):
        yield part.select(_slice(steps_thread(result))).to_series().to_list()
    decoding = pl.Series(np.unique(result.step_log["instance"][result.step_log["batch"] > 0]))
    steps = leaps.filter(pl.col("stream") == 0, pl.col("instance").is_in(decoding.implode()))
    for counter, unit in _COUNTERS.items():
        for part in _changes(steps, counter).iter_slices(_ROWS_AT_ONCE):
            yield part.select(_counter(counter, unit)).to_series().to_list()
    shown, until_s = present(result, window_s), ends_s(result)
    context, queued = context_of(every), queued_of(result, until_s)
    further = request_arguments(result, shown, slo, queued, context)
    memory, waiting = _memory(result, held_of(result, context, until_s), window_s), _waiting(queued, window_s)
    events = (arrows(result, window_s), requests_of(result, shown, further), in_flight(result, window_s))
    for table in (memory, waiting, *events):
        for part in table.iter_slices(_ROWS_AT_ONCE):
            yield part["event"].to_list()
    if programs := program_events(result, process_of(result), until_s, window_s):
        yield programs


def _run(result: Result, window_s: tuple[float, float], slo: Slo | None) -> Iterator[str]:
    """What the run is, as an instant at its first arrival, or at the start of the window."""
    at_s = max(float(np.nanmin(result.requests["arrival_s"])), window_s[0])
    own = {"pid": process_of(result), "tid": 0, "ts": 1e6 * at_s}
    yield event(name="run", ph="i", s="p", **own, args=run_arguments(result, slo))


def _memory(result: Result, held: Levels, window_s: tuple[float, float]) -> pl.DataFrame:
    """KV memory in use, in % of what the instance has; nothing of instances without KV memory."""
    tokens = (result.instances["total_blocks"] * result.engine.block_tokens).astype(np.float64)
    capacity = pl.DataFrame({"instance": np.arange(len(tokens)), "tokens": tokens}).filter(pl.col("tokens") > 0)
    table = held.within(window_s).join(capacity, on="instance", how="inner", maintain_order="left")
    share = (100 * pl.col("level") / pl.col("tokens")).round(2)
    return table.with_columns(share.alias("value")).select(_counter("KV in use", "%"))


def _waiting(queued: Levels, window_s: tuple[float, float]) -> pl.DataFrame:
    """Prompt tokens that wait for their first admission."""
    return (
        queued.within(window_s)
        .select(pl.col("level").cast(pl.Int64).alias("value"), "instance", "ts_ns")
        .select(_counter("prompts that wait", "tokens"))
    )


def _names(result: Result) -> list[str]:
    """Processes in the order of the instances, each named by its pool and its number within it; then the requests."""
    names = names_of(result)
    concurrent = set(result.step_log["instance"][result.step_log["stream"] == 1].tolist())
    failed = {(outage.instance, outage.thread) for outage in outages(result)}
    events: list[str] = []
    for instance, name in enumerate(names):
        events += _process(instance, f"{name} (instance {instance})")
        events.append(thread_name(instance, steps_thread(result), "steps"))
        if instance in concurrent:
            events.append(thread_name(instance, steps_thread(result) + 1, "concurrent prefills"))
        events += [thread_name(i, steps_thread(result) + k, THREADS[k]) for i, k in sorted(failed) if i == instance]
    return [*events, *_process(process_of(result), "requests")]


def _process(number: int, name: str) -> tuple[str, str]:
    """The name of a process, and its place in the order of numbers."""
    named = event(name="process_name", ph="M", pid=number, args={"name": name})
    return named, event(name="process_sort_index", ph="M", pid=number, args={"sort_index": number})


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
