"""Requests in a timeline: async slices with phases, arrows between instances, and counts.

A request is a slice from its arrival to its end, named by how it ended, in the process after those of the instances. It
contains its time in the queue, its prefill, the transfer of its KV, and its decoding with all interruptions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.metrics.phases import DecodeClock
from framework.report.timeline.trace_events import filled, us
from framework.result import STATES, Result

_NS = 1e9
_EVENT = {"event": pl.String}
Window = tuple[float, float]
Floats = NDArray[np.float64]


def process_of(result: Result) -> int:
    """The process of the requests."""
    return sum(pool.instances for pool in result.cluster.pools)


def steps_thread(result: Result) -> int:
    """The thread of the steps in the process of each instance; the next one has prefills concurrent with its decodes.

    No process has this number: Perfetto treats a thread with its process's number as a main thread.
    """
    return process_of(result) + 1


# --- slices -----------------------------------------------------------------------------------------------------------


def present(result: Result, window_s: Window) -> NDArray[np.int64]:
    """The requests that are present in the window."""
    arrival_s = result.requests["arrival_s"]
    is_over = np.maximum(ends_s(result), np.nextafter(arrival_s, np.inf)) <= window_s[0]  # one may end as it arrives
    return np.flatnonzero((arrival_s < window_s[1]) & ~is_over)


def requests_of(result: Result, shown: NDArray[np.int64], further: pl.DataFrame) -> pl.DataFrame:
    """The events of all requests that are `shown`, whole, in the order of the requests.

    `further`: the text of the arguments beyond their counts (`framework.report.timeline.arguments`).
    """
    requests = result.requests
    arrival_s, end_s = requests["arrival_s"], ends_s(result)
    ends = [(-1, arrival_s, end_s), *((at, *times) for at, times in enumerate(_phases(result)))]
    parts = [_pair(shown, at, begin_s[shown], stop_s[shown]) for at, begin_s, stop_s in ends]
    table = pl.concat(parts).sort("request", "ts_ns", "order", maintain_order=True)
    facts = {
        "state": np.array(STATES)[requests["state"]],
        **{name: np.asarray(getattr(result.workload, name)) for name in ("input_tokens", "output_tokens")},
        **{name: np.ascontiguousarray(requests[name]) for name in ("preemptions", "migrations")},
    }
    facts_table = pl.DataFrame({"request": np.arange(len(requests)), **facts})
    facts_table = facts_table.join(further, on="request", how="left", maintain_order="left")
    table = table.join(facts_table, on="request", how="left", maintain_order="left")
    return table.select(pl.when(pl.col("phase") == -1).then(_whole(result)).otherwise(_part(result)).alias("event"))


def _whole(result: Result) -> pl.Expr:
    form = (
        _of_process(result)
        + ',"args":{"request":{},"input_tokens":{},"output_tokens":{},"preemptions":{},"migrations":{}{}}}'
    )
    counts = ("request", "input_tokens", "output_tokens", "preemptions", "migrations", "further")
    return filled(form, "state", "request", "ph", us("ts_ns"), *counts)


def _part(result: Result) -> pl.Expr:
    names = pl.col("phase").replace_strict(dict(enumerate(_NAMES)), default="", return_dtype=pl.String)
    return filled(_of_process(result) + "}", names, "request", "ph", us("ts_ns"))


def _of_process(result: Result) -> str:
    """One end of a slice, as a template: name, number of the request, phase, time. Numbers are local to the process."""
    own = f'"pid":{process_of(result)},"tid":0'
    return f'{{"name":"{{}}","cat":"request","id2":{{"local":"{{}}"}},"ph":"{{}}",{own},"ts":{{}}'


_NAMES = ("queue", "prefill", "transfer", "decode")


def _phases(result: Result) -> list[tuple[Floats, Floats]]:
    """When each of _NAMES begins and ends, seconds, shape (N,); NaN for requests without it."""
    requests, end_s = result.requests, ends_s(result)
    start_s, first_s, moved_s = (requests[name] for name in ("start_s", "prefill_end_s", "transfer_end_s"))
    decodes = ~np.isnan(first_s) & (end_s > first_s)
    begin_s = np.fmin(np.where(decodes, np.fmax(first_s, moved_s), np.nan), end_s)
    return [
        (requests["arrival_s"], _until(start_s, end_s)),
        (start_s, _until(first_s, end_s)),
        (np.where(np.isnan(moved_s), np.nan, first_s), np.fmin(moved_s, end_s)),
        (begin_s, np.where(decodes, end_s, np.nan)),
    ]


def _until(time_s: Floats, end_s: Floats) -> Floats:
    """These times, or the end of the request if there is none or the end comes before."""
    return np.fmin(np.where(np.isnan(time_s), end_s, time_s), end_s)


def ends_s(result: Result) -> Floats:
    """When each request ended; for one that did not, the end of the run."""
    end_s = result.requests["end_s"]
    last_s = np.nanmax(end_s, initial=float(result.requests["arrival_s"].max(initial=0.0)))
    return np.where(np.isnan(end_s), last_s, end_s)


def _pair(requests: NDArray[np.int64], phase: int, begin_s: Floats, end_s: Floats) -> pl.DataFrame:
    """Two rows for each slice. At equal times ends of phases come first, then starts; the request encloses them all."""
    own = ~np.isnan(begin_s) & ~np.isnan(end_s)
    at_ns = [np.rint(times[own] * _NS).astype(np.int64) for times in (begin_s, end_s)]
    count = int(own.sum())
    orders = (0, 99) if phase < 0 else (2 * phase + 2, 2 * phase + 3)
    halves = [
        pl.DataFrame(
            {"request": requests[own], "phase": np.full(count, phase), "ts_ns": ts_ns, "order": np.full(count, order)}
        ).with_columns(pl.lit(ph).alias("ph"))
        for ts_ns, ph, order in zip(at_ns, "be", orders, strict=True)
    ]
    return pl.concat(halves)


# --- arrows -----------------------------------------------------------------------------------------------------------


def arrows(result: Result, window_s: Window) -> pl.DataFrame:
    """Transfers and migrations that lie wholly within the window, as pairs of events.

    An arrow starts in the slice that ends there, and ends at the first one that starts then or later. Its number is
    that in the whole timeline.
    """
    requests = result.requests
    moved = np.flatnonzero(~np.isnan(requests["transfer_end_s"]))
    transfers = {
        "request": moved,
        "from_instance": requests["prefill_instance"][moved].astype(np.int64),
        "to_instance": requests["decode_instance"][moved].astype(np.int64),
        "from_s": requests["prefill_end_s"][moved],
        "to_s": requests["transfer_end_s"][moved],
    }
    first = _first_places(result)
    if first is not None:  # A request that moved first decoded on another instance than last.
        known = first[moved] >= 0
        transfers["to_instance"] = np.where(known, first[moved], transfers["to_instance"])
    parts = [_named("transfer", transfers), _named("migration", _migrations(result))]
    every = pl.concat(parts).with_row_index("number")
    within = every.filter((pl.col("from_s") > window_s[0]) & (pl.col("to_s") < window_s[1]))
    if within.is_empty():
        return pl.DataFrame(schema=_EVENT)
    timed = within.with_columns(
        (pl.col("from_s") * _NS).round().cast(pl.Int64).alias("from_ns") - 1,
        (pl.col("to_s") * _NS).round().cast(pl.Int64).alias("to_ns") - 1,
    )
    form = f'{{"name":"{{}}","cat":"kv","id":{{}},"pid":{{}},"tid":{steps_thread(result)},"ph":"%s","ts":{{}}}}'
    begins = filled(form % "s", "name", "number", "from_instance", us("from_ns"))
    ends = filled(form % "f", "name", "number", "to_instance", us("to_ns"))
    return timed.select(pl.concat_list(begins, ends).alias("event")).explode("event")


def _named(name: str, columns: dict[str, NDArray[Any]]) -> pl.DataFrame:
    return pl.DataFrame(columns).with_columns(pl.lit(name).alias("name"))


def _rows(result: Result) -> NDArray[Any]:
    """The token log by request, each in the order of its tokens."""
    rows = result.token_log[result.token_log["instance"] >= 0]
    return rows[np.argsort(rows["request"], kind="stable")]


def _first_places(result: Result) -> NDArray[np.int64] | None:
    """The instance on which each request decoded first, -1 if none did; None without a token log."""
    rows = _rows(result)
    if len(rows) == 0:
        return None
    places = np.full(len(result.requests), -1, np.int64)
    requests, at = np.unique(rows["request"], return_index=True)
    places[requests] = rows["instance"][at]
    return places


def _migrations(result: Result) -> dict[str, NDArray[Any]]:
    """Where a request continues to decode on another instance without a preemption."""
    rows = _rows(result)
    requests = result.requests
    after = np.flatnonzero(
        (rows["request"][1:] == rows["request"][:-1])
        & (rows["instance"][1:] != rows["instance"][:-1])
        & (requests["migrations"][rows["request"][1:]] > 0)
        & (requests["preemptions"][rows["request"][1:]] == 0)
    )
    one, other = rows[after], rows[after + 1]
    if len(after) == 0:
        nothing: NDArray[Any] = np.zeros(0)
        times_s = [nothing, nothing]
    else:
        clock = DecodeClock(result.step_log)
        times_s = [
            clock.end_s(one["instance"], one["last_step"]),
            clock.begin_s(other["instance"], other["first_step"]),
        ]
    whole = {"request": one["request"], "from_instance": one["instance"], "to_instance": other["instance"]}
    return {name: values.astype(np.int64) for name, values in whole.items()} | dict(
        zip(("from_s", "to_s"), times_s, strict=True)
    )


# --- how many ---------------------------------------------------------------------------------------------------------


def in_flight(result: Result, window_s: Window) -> pl.DataFrame:
    """Counters of the process of the requests: those that wait for their first admission, and those after it.

    For a window, from the last change before it on.
    """
    requests, end_s = result.requests, ends_s(result)
    admitted_s = _until(requests["start_s"], end_s)
    parts = []
    for name, begin_s, stop_s in (("waiting", requests["arrival_s"], admitted_s), ("served", admitted_s, end_s)):
        at_ns = np.rint(np.concatenate([begin_s, stop_s]) * _NS).astype(np.int64)
        change = np.repeat([1, -1], len(requests))
        levels = pl.DataFrame({"ts_ns": at_ns, "change": change}).group_by("ts_ns").agg(pl.col("change").sum())
        levels = (
            levels.filter(pl.col("change") != 0).sort("ts_ns").with_columns(pl.col("change").cum_sum().alias("level"))
        )
        levels = levels.filter(pl.col("ts_ns") < window_s[1] * _NS)
        before = levels.filter(pl.col("ts_ns") <= window_s[0] * _NS).tail(1).filter(pl.col("level") > 0)
        inside = pl.concat([before, levels.filter(pl.col("ts_ns") > window_s[0] * _NS)])
        form = f'{{"name":"{name}","ph":"C","pid":{process_of(result)},"ts":{{}},"args":{{"requests":{{}}}}}}'
        parts.append(inside.select(filled(form, us("ts_ns"), "level")))
    return pl.concat(parts)
