"""Pure functions from a trace to another: which part is kept, how fast it plays, how often it repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.checks import MOST_S, require_at_least, require_count, require_positive
from framework.errors import InputError
from traces.beginning import Rows, unlike
from traces.frame import OPTIONAL, REQUIRED, Trace
from traces.settings import MOST_REQUESTS, require_rate


def period_s(trace: Trace) -> float:
    """The period of the trace: from the first arrival to one mean gap after the last, N / (N - 1) spans."""
    span = float(trace.arrival_s[-1])  # the first arrival is at 0
    return span * len(trace) / (len(trace) - 1) if len(trace) > 1 else 0.0


def rate_rps(trace: Trace) -> float:
    """Mean requests per second, N / period; infinite if all arrive at once."""
    period = period_s(trace)
    return len(trace) / period if period > 0 else math.inf


def limit(trace: Trace, requests: int) -> Trace:
    """The first `requests` rows; the trace's caveat states their difference from the rest."""
    require_count("trace.limit", requests)
    if requests >= len(trace):
        return trace
    kept = trace.with_frame(trace.frame.head(requests))
    return replace(kept, caveat=unlike(_rows(kept), _rows(trace)))


def _rows(trace: Trace) -> Rows:
    inputs, outputs = (trace.frame[name].to_numpy() for name in ("input_tokens", "output_tokens"))
    return Rows(trace.arrival_s, inputs, outputs, _repeats(trace.frame) if "hash_ids" in trace.has else math.nan)


def window(trace: Trace, start_s: float, end_s: float) -> Trace:
    """The rows that arrive in [start_s, end_s), moved to start at 0."""
    require_at_least("the start of trace.window_s", start_s, 0)
    require_positive("the end of trace.window_s", end_s)
    if start_s >= end_s:
        raise InputError(f"trace.window_s is [{start_s:g}, {end_s:g}], must be [start, end] with start < end")
    kept = trace.frame.filter((pl.col("arrival_s") >= start_s) & (pl.col("arrival_s") < end_s))
    return _from_zero(trace, kept, f"window of {start_s:g} to {end_s:g} s", "trace.window_s")


def keep_lengths(
    trace: Trace,
    input_tokens: tuple[int | None, int | None] = (None, None),
    output_tokens: tuple[int | None, int | None] = (None, None),
) -> Trace:
    """The rows whose lengths lie within [least, most] of each pair; None leaves an end open."""
    kept = trace.frame
    parts = []
    for column, (least, most) in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        for end, value in (("min", least), ("max", most)):
            if value is not None:
                require_count(f"trace.{end}_{column}", value)
        if least is not None and most is not None and least > most:
            raise InputError(f"trace.min_{column} is {least}, more than trace.max_{column}, {most}")
        if least is not None or most is not None:
            low, high = 1 if least is None else least, np.iinfo(np.int64).max if most is None else most
            kept = kept.filter(pl.col(column).is_between(low, high))
            parts.append(f"{column} from {low} to {'any' if most is None else most}")
    note = f"{len(trace) - kept.height} of {len(trace)} requests left out: kept {' and '.join(parts)}"
    return _from_zero(trace, kept, note, "the length filters")


def scale_rate(trace: Trace, factor: float) -> Trace:
    """Arrivals `factor` times as fast by stretching time. Think times within sessions stay as they are."""
    require_positive("trace.rate_scale", factor)
    if factor == 1:
        return trace
    last_s = float(trace.arrival_s[-1]) / factor
    if last_s > MOST_S:
        raise InputError(
            f"trace {trace.name}: its last request would arrive after {last_s:.3g} s, at most {MOST_S:g} s are played;"
            " raise trace.rate or trace.rate_scale"
        )
    return _timed(trace, trace.arrival_s / factor, f"arrival times divided by {factor:.6g}")


def set_rate(trace: Trace, requests_per_s: float) -> Trace:
    """Stretch arrival times to a mean rate over the whole trace, so burstiness keeps its shape."""
    require_rate("trace.rate", requests_per_s)
    if math.isinf(rate_rps(trace)):
        raise InputError(f"trace {trace.name}: all requests arrive at once, there is no rate that could be stretched")
    return scale_rate(trace, requests_per_s / rate_rps(trace))


def resample(trace: Trace, block_s: float, seed: int) -> Trace:
    """A replicate of the trace: blocks of `block_s` seconds, drawn with replacement, played for the trace's period.

    This is the circular block bootstrap (Politis and Romano, in Exploring the Limits of Bootstrap, 1992): a block
    starts anywhere in the period and continues from its end at its beginning, so each request is drawn once on average.
    Blocks that stop at the end (Kuensch, Annals of Statistics 17, 1989) would draw the ends less often, and there are
    few blocks on a grid. The last block is cut to the remaining time. Bursts and drifts shorter than a block are kept,
    longer ones are not; nor are hits on prefixes whose last use is in a block that was not drawn.

    A request that is drawn for the k-th time has the hash blocks of a k-th copy, so it never finds its own prompt in a
    cache. Sessions hold within a block: a turn whose previous turn is not in the block becomes a first turn at its
    recorded time. Leaving it out would lower the rate.
    """
    require_positive("trace.resample_s", block_s)
    period = period_s(trace)
    if not period / len(trace) <= block_s <= period:
        reach = f"of {period:.6g} s with {len(trace)} requests"
        raise InputError(f"trace.resample_s is {block_s:g}, must lie between the mean gap and the period {reach}")
    played_s = np.arange(math.ceil(period / block_s)) * block_s
    start_s = np.random.default_rng([seed, 3]).uniform(0.0, period, len(played_s))
    end_s = start_s + np.minimum(block_s, period - played_s)
    # Two pieces a block: up to the end of the period, and on from its beginning.
    begins = np.column_stack([start_s, np.zeros_like(start_s)]).ravel()
    ends = np.column_stack([np.minimum(end_s, period), np.maximum(end_s - period, 0.0)]).ravel()
    moved_s = np.column_stack([played_s - start_s, played_s - start_s + period]).ravel()
    first, stop = np.searchsorted(trace.arrival_s, begins), np.searchsorted(trace.arrival_s, ends)
    row = np.concatenate([np.arange(*piece) for piece in zip(first, stop, strict=True)])
    if len(row) == 0:
        raise InputError(f"trace {trace.name}: no request is left by trace.resample_s; take longer blocks")
    piece = np.repeat(np.arange(len(first)), stop - first)
    drawn_s = np.maximum.accumulate(trace.arrival_s[row] + moved_s[piece])  # rounding may change the order at an edge
    names = {
        "hash_ids": _occurrence(row) * _names(trace, "hash_ids"),
        "session_id": piece * _names(trace, "session_id"),
    }
    renamed = [pl.col(column) + pl.Series(shift) for column, shift in names.items() if column in trace.has]
    frame = _wide(trace.frame[row]).with_columns(pl.Series("arrival_s", drawn_s - drawn_s[0]), *renamed)
    parts = [f"{len(played_s)} blocks of {block_s:g} s drawn with replacement (seed {seed})"]
    if "session_id" in trace.has:
        cut = int((_opens(frame) & ~_opens(trace.frame)[row]).sum())
        parts.append(f"{cut} later turns became first turns at the edges of blocks")
    if "hash_ids" in trace.has:
        parts.append(f"{_repeats(frame):.1%} of the hash blocks came before, {_repeats(trace.frame):.1%} as recorded")
    return trace.with_frame(frame, "; ".join(parts))


def tile(trace: Trace, copies: int) -> Trace:
    """The trace `copies` times over, one period apart; hash blocks and sessions of each copy get new names."""
    require_count("trace.tile", copies)
    if copies == 1:
        return trace
    if copies * len(trace) > MOST_REQUESTS:
        raise InputError(f"trace.tile makes {copies * len(trace):,} requests, at most {MOST_REQUESTS:,} can be played")
    period = period_s(trace)
    steps = {"arrival_s": period, "hash_ids": _names(trace, "hash_ids"), "session_id": _names(trace, "session_id")}
    parts = [_shifted(trace.frame, {column: index * step for column, step in steps.items()}) for index in range(copies)]
    return trace.with_frame(pl.concat(parts, rechunk=False), f"tiled {copies} times, {period:.6g} s apart")


def mix(traces: Sequence[Trace], name: str = "mix") -> Trace:
    """All requests of several traces by arrival, ties in the given order; hash blocks and sessions stay separate."""
    if not traces:
        raise InputError("trace mix: no traces given")
    blocks = {trace.hash_block_tokens for trace in traces if "hash_ids" in trace.has}
    if len(blocks) > 1:
        raise InputError(f"trace mix: hash blocks of {' and '.join(map(str, sorted(blocks)))} tokens cannot be mixed")
    columns = [column for column in OPTIONAL if any(column in trace.has for trace in traces)]
    start = {"hash_ids": 0, "session_id": 0}
    parts = []
    for trace in traces:
        missing = [pl.lit(None, OPTIONAL[column]).alias(column) for column in columns if column not in trace.has]
        frame = _shifted(trace.frame, start).with_columns(missing)
        if "hash_ids" in columns and "hash_ids" not in trace.has:
            frame = frame.with_columns(hash_ids=pl.lit([], OPTIONAL["hash_ids"]))
        parts.append(frame.select(*REQUIRED, *columns))
        start = {column: first + _names(trace, column) for column, first in start.items()}
    sources = {trace.source for trace in traces}
    source = next((kind for kind in ("synthetic", "twin") if kind in sources), "real")
    notes = [f"{trace.name} ({trace.source}): {note}" for trace in traces for note in trace.notes]
    merged = pl.concat(parts).sort("arrival_s", maintain_order=True)
    content = f"mix of {', '.join(f'{trace.name} ({trace.source}, sha256 {trace.sha256[:12]})' for trace in traces)}"
    return Trace(merged, name, source, "", next(iter(blocks), 0), (content, *notes))


def poisson(trace: Trace, seed: int) -> Trace:
    """Poisson arrivals at the same mean rate; the span, the requests and their order are kept."""
    if len(trace) < 3:
        return trace
    gaps = np.random.default_rng([seed, 1]).exponential(size=len(trace) - 1)
    clock = np.concatenate(([0.0], np.cumsum(gaps)))
    return _timed(
        trace, clock * (trace.arrival_s[-1] / clock[-1]), "arrivals replaced by a Poisson process of the same rate"
    )


def jitter(trace: Trace, spread_s: float, seed: int) -> Trace:
    """Spread the ticks of a coarse clock: each arrival moves by a uniform time in [0, spread_s), with the order
    kept.
    """
    require_at_least("trace.jitter_s", spread_s, 0)
    if spread_s == 0:
        return trace
    moved = trace.arrival_s + np.random.default_rng([seed, 2]).uniform(0.0, spread_s, len(trace))
    moved.sort()
    return _timed(trace, moved - moved[0], f"arrivals moved by uniform times below {spread_s:g} s")


def burst(trace: Trace, start: float, end: float, factor: float) -> Trace:
    """Requests arrive `factor` times as fast from share `start` to share `end` of the period, and slower outside.

    The order, the period and so the mean rate are kept. Think times within sessions stay as they are.
    """
    if not 0 <= start < end <= 1:
        raise InputError(
            f"trace.burst is from {start:g} to {end:g} of the period, must rise from 0 or more to at most 1"
        )
    require_positive("the factor of trace.burst", factor)
    outside = 1 / (1 + (factor - 1) * (end - start))  # rate there, of the mean rate
    # The shares of the period at which the burst begins and ends, and the shares of the requests before them.
    times = np.array([0.0, start, end, 1.0])
    rates = np.array([outside, factor * outside, outside])
    served = np.concatenate(([0.0], np.cumsum(rates * np.diff(times))))
    period = period_s(trace)
    moved = period * np.interp(trace.arrival_s / period, served, times) if period > 0 else trace.arrival_s
    return _timed(
        trace, moved - moved[0], f"{factor:g} times as fast from {start:g} to {end:g} of the period as outside"
    )


def _timed(trace: Trace, arrival_s: NDArray[np.float64], note: str) -> Trace:
    return trace.with_frame(trace.frame.with_columns(arrival_s=pl.Series(arrival_s)), note)


def _from_zero(trace: Trace, kept: pl.DataFrame, note: str, cause: str) -> Trace:
    if kept.height == len(trace):
        return trace
    if kept.is_empty():
        raise InputError(f"trace {trace.name}: no request is left by {cause}")
    return trace.with_frame(kept.with_columns(pl.col("arrival_s") - pl.col("arrival_s").first()), note)


def _names(trace: Trace, column: str) -> int:
    """The distance at which copies of the column's ids do not meet; ids are assumed to be at least 0."""
    if column not in trace.has:
        return 0
    ids = trace.frame[column]
    highest = (ids.list.max() if ids.dtype == pl.List else ids).max()
    return int(highest) + 1 if isinstance(highest, int) else 0


def _shifted(frame: pl.DataFrame, shifts: Mapping[str, float]) -> pl.DataFrame:
    """The frame with a constant added to some columns (for a list, to its ids, which get room for it)."""
    added = (pl.col(column) + by for column, by in shifts.items() if by and column in frame.columns)
    return _wide(frame).with_columns(added)


def _wide(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with ids of hash blocks that have room for those of copies."""
    return frame.cast({"hash_ids": OPTIONAL["hash_ids"]}) if "hash_ids" in frame.columns else frame


def _occurrence(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many times each entry stands before it, shape (K,)."""
    order = np.argsort(rows, kind="stable")
    count = np.empty_like(rows)
    count[order] = np.arange(len(rows)) - np.searchsorted(rows[order], rows[order])
    return count


def _opens(frame: pl.DataFrame) -> pl.Series:
    """Whether a row is no later turn of a session."""
    return frame["session_id"].is_first_distinct() | frame["session_id"].is_null()


def _repeats(frame: pl.DataFrame) -> float:
    """The share of hash blocks that an earlier row also has."""
    ids = np.sort(frame["hash_ids"].explode(empty_as_null=False, keep_nulls=False).to_numpy())
    return float(np.count_nonzero(np.diff(ids) == 0) / max(len(ids), 1))
