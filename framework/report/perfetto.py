"""A run as a timeline in the Chrome trace format, which ui.perfetto.dev and chrome://tracing open.

One process an instance: its steps as slices (a leap is one slice), the batch and the summed context of its decodes as
counters, and an arrow from the end of each prefill whose KV was transferred to the decode that followed.

A window of time leaves out the steps that lie outside it and the transfers that lie not wholly within it. What is left
is as in the whole timeline; each counter then has its value at the first step of its instance, too.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from typing import IO

import numpy as np
import polars as pl

from framework.result import Result

_NS = 1e9
_STEPS_THREAD, _BESIDE_THREAD = 1, 2  # the latter for prefill steps beside the decodes
_ROWS_AT_ONCE = 100_000
ALWAYS_S = (-math.inf, math.inf)  # the window of a whole timeline


def write_timeline(result: Result, file: IO[bytes], window_s: tuple[float, float] = ALWAYS_S) -> None:
    """Write gzipped JSON of what happens within the window; equal results give equal bytes.

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
    yield _names(result)
    leaps = _leaps(result, window_s)
    for part in leaps.iter_slices(_ROWS_AT_ONCE):
        yield part.select(_slice()).to_series().to_list()
    steps = leaps.filter(pl.col("stream") == 0)
    for counter in ("batch", "context"):
        for part in _changes(steps, counter).iter_slices(_ROWS_AT_ONCE):
            yield part.select(_counter(counter)).to_series().to_list()
    arrows = _arrows(result, window_s)
    if arrows:
        yield arrows


def _names(result: Result) -> list[str]:
    """Processes in the order of the instances, each called by its pool and its number within it."""
    events = []
    instance = 0
    for pool in result.cluster.pools:
        for number in range(pool.instances):
            for name, value in (
                ("process_name", {"name": f"{pool.name} {number} (instance {instance})"}),
                ("process_sort_index", {"sort_index": instance}),
            ):
                events.append(_event(name=name, ph="M", pid=instance, args=value))
            events.append(_event(name="thread_name", ph="M", pid=instance, tid=_STEPS_THREAD, args={"name": "steps"}))
            instance += 1
    return events


def _leaps(result: Result, window_s: tuple[float, float]) -> pl.DataFrame:
    """Leaps within the window, in time order of each instance; integer nanoseconds, so that neighbours meet exactly."""
    leaps = result.step_log
    steps = leaps["steps"].astype(np.float64)
    duration_s = steps * leaps["first_s"] + steps * (steps - 1) / 2 * leaps["increment_s"]
    start_ns = np.rint(leaps["start_s"] * _NS).astype(np.int64)
    end_ns = np.rint((leaps["start_s"] + duration_s) * _NS).astype(np.int64)
    within = (start_ns < window_s[1] * _NS) & (end_ns > window_s[0] * _NS)
    names = ("instance", "steps", "batch", "prefill_tokens", "context", "stream")
    columns = {name: np.ascontiguousarray(leaps[name]) for name in names}
    table = pl.DataFrame({**columns, "start_ns": start_ns, "duration_ns": end_ns - start_ns})
    return table.filter(within).sort("instance", "start_ns", maintain_order=True)


def _slice() -> pl.Expr:
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
    values = (kind, "instance", pl.col("stream") + _STEPS_THREAD, _us("start_ns"), _us("duration_ns"))
    return _filled(form, *values, "steps", "batch", "prefill_tokens", "context")


def _changes(leaps: pl.DataFrame, counter: str) -> pl.DataFrame:
    """Value at the start of each leap where it differs from that of the instance's leap before."""
    before = pl.col(counter).shift(1).over("instance")
    return leaps.filter(before.is_null() | (before != pl.col(counter)))


def _counter(counter: str) -> pl.Expr:
    form = '{"name":"' + counter + '","ph":"C","pid":{},"ts":{},"args":{"' + counter + '":{}}}'
    return _filled(form, "instance", _us("start_ns"), counter)


def _filled(form: str, *values: pl.Expr | str) -> pl.Expr:
    """`form` with its placeholders filled; other braces stay as they are."""
    parts = form.split("{}")
    columns = [pl.col(value) if isinstance(value, str) else value for value in values]
    pieces: list[pl.Expr] = [pl.lit(parts[0])]
    for column, part in zip(columns, parts[1:], strict=True):
        pieces += [column.cast(pl.String), pl.lit(part)]
    return pl.concat_str(pieces).alias("event")


def _us(column: str) -> pl.Expr:
    """Nanoseconds as decimal microseconds."""
    whole, rest = pl.col(column) // 1000, pl.col(column) % 1000
    return pl.concat_str([whole.cast(pl.String), pl.lit("."), rest.cast(pl.String).str.zfill(3)])


def _arrows(result: Result, window_s: tuple[float, float]) -> list[str]:
    """An arrow binds to the slices around its ends: the last instant of the prefill, the first after the transfer."""
    requests = result.requests
    within = (requests["prefill_end_s"] > window_s[0]) & (requests["transfer_end_s"] < window_s[1])
    moved = np.flatnonzero(within)  # a comparison with NaN, where nothing was transferred, is false
    events = []
    for r in moved.tolist():
        request = requests[r]
        ends = (
            ("s", request["prefill_instance"], request["prefill_end_s"] * _NS - 1),
            ("f", request["decode_instance"], request["transfer_end_s"] * _NS),
        )
        for phase, instance, at_ns in ends:
            common = {"name": "transfer", "cat": "request", "id": r, "pid": int(instance), "tid": _STEPS_THREAD}
            events.append(_event(**common, ph=phase, ts=round(at_ns) / 1000))
    return events


def _event(**fields: object) -> str:
    return json.dumps(fields, separators=(",", ":"))
