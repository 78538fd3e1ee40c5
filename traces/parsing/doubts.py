"""Doubts about a trace whose rows can all be read: reported, not refused."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.block_ids import flat_ids
from traces.frame import DRAWN, Clock, Trace
from traces.parsing.how import DATE, TICKS_PER_S
from traces.parsing.units import (
    ENOUGH,
    FASTEST_RPS,
    FEW,
    KNOWN_YEARS,
    LAST_YEAR,
    LONGEST_S,
    SLOWEST_RPS,
    YEAR_S,
    epoch_units,
    likely_unit,
    year,
)

_MOST_ROWS = 5_000  # rows considered: a format is wrong from its beginning


def doubted_clock(trace: Trace) -> tuple[str, ...]:
    """A note if the rate, the span or the year is absurd; it names the unit that would make sense."""
    if not trace.clock.unit or trace.clock.unit == DRAWN or len(trace) < 1:
        return ()
    odd = _oddity(trace)
    if not odd:
        return ()
    unit = trace.clock.unit
    if unit == DATE:
        return (f"{odd}; are the dates right?",)
    per_s = TICKS_PER_S[unit]
    _, span_s = _rate_and_span(trace, 1.0)
    better = likely_unit(per_s * trace.clock.starts_at_s, per_s * span_s, len(trace), but=unit)
    advice = (
        f"as {better} it would be {_seen(trace, better)}: set trace.unit={better}" if better else "is the unit right?"
    )
    return (f"arrivals are read as {unit}: {odd}; {advice}",)


def _oddity(trace: Trace) -> str:
    """What is absurd about the arrivals; empty if nothing is."""
    rate, span_s = _rate_and_span(trace, 1.0)
    began, clock = year(trace.clock.starts_at_s), trace.clock
    least, most = KNOWN_YEARS if clock.unit == DATE else (0.0, LAST_YEAR)
    if not least <= began <= most:
        return f"the first is of the year {began:{',' if began > 9999 else ''}.0f}"
    if clock.unit in TICKS_PER_S and (epochs := _epochs(clock)) and clock.unit not in epochs:
        return f"the first is {clock.starts_at_s:,.6g} s from the start of the clock"
    if len(trace) >= ENOUGH and rate >= FASTEST_RPS:
        return f"{rate:,.0f} requests/s"
    if span_s > LONGEST_S:
        return f"{rate:.3g} requests/s over {span_s / YEAR_S:,.1f} years"
    if len(trace) >= FEW and rate < SLOWEST_RPS:
        return f"{rate:.3g} requests/s over {_span(span_s)}"
    if clock.unit == "ms" and _has_fractions(trace):
        return "most have fractions of a millisecond"
    return ""


def _seen(trace: Trace, unit: str) -> str:
    factor = TICKS_PER_S[trace.clock.unit] / TICKS_PER_S[unit]
    rate, _ = _rate_and_span(trace, factor)
    when = f" in {year(factor * trace.clock.starts_at_s):.0f}" if _epochs(trace.clock) else ""
    return ("all at once" if math.isinf(rate) else f"{rate:.3g} requests/s") + when


def _epochs(clock: Clock) -> list[str]:
    return epoch_units(clock.starts_at_s * TICKS_PER_S[clock.unit])


def _rate_and_span(trace: Trace, factor: float) -> tuple[float, float]:
    span_s = factor * float(trace.arrival_s[-1] - trace.arrival_s[0])
    return ((len(trace) - 1) / span_s if span_s > 0 else math.inf), span_s


def _span(span_s: float) -> str:
    for size_s, name in ((YEAR_S, "years"), (86400.0, "days"), (3600.0, "hours")):
        if span_s >= 2 * size_s:
            return f"{span_s / size_s:,.1f} {name}"
    return f"{span_s:,.0f} s"


def _has_fractions(trace: Trace) -> bool:
    ticks = 1000.0 * (trace.arrival_s + trace.clock.starts_at_s)
    return float(np.mean(np.abs(ticks - np.round(ticks)) > 1e-4)) > 0.5


def doubted_chain(rows: pl.DataFrame) -> tuple[str, ...]:
    """A note if one hash id follows two others: ids must name whole prefixes, not single blocks."""
    if "hash_ids" not in rows.columns:
        return ()
    ids, spans = flat_ids(rows["hash_ids"].head(_MOST_ROWS).get_chunks())
    begins = spans[:, 0]
    if not len(ids):
        return ()
    before: NDArray[np.int64] = np.empty(len(ids), np.int64)
    before[1:] = ids[:-1]
    before[begins[begins < len(ids)]] = -1
    first = np.full(int(ids.max()) + 1, -2, np.int64)
    first[ids] = before
    split = np.flatnonzero(first[ids] != before)
    if not len(split):
        return ()
    one = int(ids[split[0]])
    count = len(np.unique(ids[split]))
    where = f"{count:,} hash ids stand behind several others, such as {one}"
    return (f"{where}: where ids name blocks and not prefixes, reuse is counted too high",)
