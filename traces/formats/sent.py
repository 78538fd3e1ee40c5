"""Requests as clients and servers recorded them, one by one, and the trace that they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from framework.errors import InputError
from traces.formats.hashed import named_apart
from traces.formats.sessions import BLOCK_TOKENS, closed_loop, with_history
from traces.frame import DRAWN, Clock, Trace, from_rows, with_notes
from traces.parsing.how import DATE, How
from traces.parsing.json_records import number_of
from traces.parsing.left_out import Count, Left, sifted
from traces.parsing.rows import far_off
from traces.settings import MAX_TOKENS

DRAWN_RPS = 1.0  # rate if a file has neither times nor a rate


@dataclass(frozen=True)
class Sent:
    """One request: when it was sent and ended, in the log's own ticks, its tokens, and its session.

    `at` and `ended` are None if they were not recorded. `hash_ids` are those of its prompt's blocks of `block_tokens`,
    None if the log has none.
    """

    at: float | None
    input_tokens: int
    output_tokens: int
    ended: float | None = None
    session: str | None = None
    turn: int | None = None
    hash_ids: Sequence[int] | None = None
    block_tokens: int = 0
    is_dated: bool = False  # `at` was written as a date and time


@dataclass(frozen=True)
class DrawnArrivals:
    """The rate at which to draw arrivals if a file has none, None: DRAWN_RPS, and the origin of rate or lengths."""

    rate_rps: float | None = None
    why: str = "; set trace.rate"


def trace_of(
    path: Path,
    how: How,
    unit: str,
    records: Iterable[tuple[str, Any]],
    parse: Callable[[str, Any], Sent | Left],
    drawn: DrawnArrivals = DrawnArrivals(),
) -> Trace:
    """The trace of the records that `parse` reads (the place of each, the record); `unit` is that of their times.

    If no request has a time, arrivals are drawn by `drawn`. Raises InputError if more records are bad than `how`
    allows.
    """
    count = Count(path)
    sent = sifted(records, parse, count)
    if sent and all(one.at is None for one in sent):
        how.without_unit("the file has no times of arrival")
        return with_notes(_untimed(path, sent, drawn), count.notes(how))
    unit, ticks_per_s = how.clock(unit)
    if all(one.is_dated for one in sent if one.at is not None) and sent:
        how.without_unit("the file has dates and times")
        unit = DATE
    sent = _together(path, sent, (unit, ticks_per_s), count)
    notes = count.notes(how)
    return with_notes(_timed(path, sent, (unit, ticks_per_s)), notes)


def _together(path: Path, sent: Sequence[Sent], clock: tuple[str, float], count: Count) -> list[Sent]:
    """The rows whose times are known and near the median; the others count as bad."""
    known = [one for one in sent if one.at is not None]
    if lost := len(sent) - len(known):
        count.add_bad(f"{path}: {lost:,} requests have no time of arrival, though others have one", lost)
    times = pl.Series("at", [float(one.at or 0.0) for one in known], pl.Float64())
    is_far, reason = far_off(times, clock, "set trace.unit=")
    if is_far.any():
        count.add_bad(f"{path}: a request was sent at {times.filter(is_far)[0]:.15g}, {reason}", int(is_far.sum()))
    return [one for one, is_off in zip(known, is_far, strict=True) if not is_off]


def _timed(path: Path, sent: Sequence[Sent], clock: tuple[str, float]) -> Trace:
    """The trace of requests whose times are known; `clock` is their unit and its ticks per second.

    Turns of a session follow each other closed-loop if at least two requests belong to one.
    """
    unit, ticks_per_s = clock
    first = min(one.at or 0.0 for one in sent)
    rows = pl.DataFrame(
        {
            "arrival_s": np.array([((one.at or 0.0) - first) / ticks_per_s for one in sent]),
            "input_tokens": np.array([one.input_tokens for one in sent], np.int64),
            "output_tokens": np.array([one.output_tokens for one in sent], np.int64),
        }
    )
    rows, block_tokens, notes = _with_ids(rows, sent)
    named = [one.session for one in sent if one.session is not None]
    if len(set(named)) < len(named):
        numbers = {name: number for number, name in enumerate(dict.fromkeys(named))}
        ended_s = [None if one.ended is None else (one.ended - first) / ticks_per_s for one in sent]
        rows = rows.with_columns(
            pl.Series(
                "session_id", [None if one.session is None else numbers[one.session] for one in sent], pl.Int64()
            ),
            pl.Series("turn", [one.turn for one in sent], pl.Int64()),
            pl.Series("ended_s", ended_s, pl.Float64()),
        )
        rows, more = closed_loop(rows)
        notes = (*notes, *more)
        if not block_tokens:
            rows, more = with_history(rows)
            notes = (*notes, *more)
            block_tokens = BLOCK_TOKENS if "hash_ids" in rows.columns else 0
    trace = from_rows(rows, path.stem, "real", block_tokens, Clock(unit, first / ticks_per_s))
    return with_notes(trace, notes)


def _with_ids(rows: pl.DataFrame, sent: Sequence[Sent]) -> tuple[pl.DataFrame, int, tuple[str, ...]]:
    """Rows with the ids of prompts' blocks if the log has some, the tokens of a block, and what to report of them."""
    if not any(one.hash_ids for one in sent):
        return rows, 0, ()
    sizes = {one.block_tokens for one in sent if one.hash_ids is not None}
    if len(sizes) > 1:
        listed = ", ".join(map(str, sorted(sizes)))
        return rows, 0, (f"hash ids are left out: their blocks have {listed} tokens, not one size",)
    size = sizes.pop()
    lists = pl.Series(
        "hash_ids", [None if one.hash_ids is None else list(one.hash_ids) for one in sent], pl.List(pl.Int64())
    )
    lists, notes = named_apart(lists, -(-rows["input_tokens"] // size))
    return rows.with_columns(lists), size, notes


def _untimed(path: Path, sent: Sequence[Sent], drawn: DrawnArrivals) -> Trace:
    """The trace of requests without times: evenly spaced here, and drawn from a distribution when it is loaded."""
    rate = DRAWN_RPS if drawn.rate_rps is None else drawn.rate_rps
    rows = pl.DataFrame(
        {
            "arrival_s": np.arange(len(sent)) / rate,
            "input_tokens": np.array([one.input_tokens for one in sent], np.int64),
            "output_tokens": np.array([one.output_tokens for one in sent], np.int64),
        }
    )
    return to_be_timed(from_rows(rows, path.stem, "real"), rate, drawn.why)


def to_be_timed(trace: Trace, rate_rps: float = DRAWN_RPS, why: str = "") -> Trace:
    """The trace, evenly spaced at that rate, with arrivals to be drawn; `why` gives the origin of the rate."""
    note = f"the file has no times of arrival: they are drawn, Poisson at {rate_rps:g} requests/s{why}"
    return with_notes(replace(trace, clock=Clock(DRAWN)), (note,))


def time(where: str, name: str, value: Any) -> float:
    """A number of ticks. Raises InputError."""
    number = number_of(value)
    if number is None or number < 0:
        raise InputError(f"{where}: {name} is {json.dumps(value)[:40]}, must be a number of at least 0")
    return number


def time_if(where: str, name: str, value: Any) -> float | None:
    """A number of ticks, or None if it was not recorded. Raises InputError."""
    return None if value is None else time(where, name, value)


def lengths(where: str, *tokens: Any) -> tuple[int, int]:
    """Prompt and output tokens. Raises InputError unless both are whole numbers of at least 1."""
    found = [number_of(value) for value in tokens]
    for name, value, number in zip(("input", "output"), tokens, found, strict=True):
        if number is None or number != number // 1 or not 1 <= number <= MAX_TOKENS:
            raise InputError(
                f"{where}: {name} tokens are {json.dumps(value)[:40]}, must be a whole number of at least 1"
            )
    return int(found[0] or 0), int(found[1] or 0)


def is_empty(*tokens: Any) -> bool:
    """Whether one of the numbers of tokens is 0."""
    return any(number_of(value) == 0 for value in tokens)
