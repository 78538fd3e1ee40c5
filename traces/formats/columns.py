"""Any table as a trace: the user names its columns, `trace.columns={arrival_s: time, ...}`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from framework.cli.safe_text import one_line
from framework.cli.terminal import warn_once
from framework.errors import InputError, shown
from traces.formats.sent import DRAWN_RPS, to_be_timed
from traces.formats.sessions import BLOCK_TOKENS, closed_loop, with_history
from traces.formats.tables import table_of, with_fields
from traces.frame import OPTIONAL, REQUIRED, Clock, Trace, from_rows, seconds, with_notes
from traces.parsing.column_values import as_text, is_lost, meant, numbers, spans, summed, times, values
from traces.parsing.dates import EXAMPLE
from traces.parsing.doubts import doubted_clock
from traces.parsing.how import AS_IT_IS, DATE, TICKS_PER_S, How
from traces.parsing.left_out import Count
from traces.parsing.rows import Check, Table, at, far_off, length, number

_ARRIVALS = {f"arrival_{unit}": unit for unit in TICKS_PER_S}
_SPANS = {f"{what}_{unit}": (what, unit) for what in ("think", "duration", "end") for unit in TICKS_PER_S}
_LOW_FIRST = "priority_low_first"
_OTHERS = ("hash_ids", "session_id", "turn", "slo_class", "priority", _LOW_FIRST, "tenant")
_WRITTEN = "as written"
_SLACK_S = 1e-6  # clocks that are written as floats
_MANY = 12  # columns that a message lists


def read_columns(path: Path, columns: Mapping[str, str], how: How = AS_IT_IS) -> Trace:
    """The trace in a CSV, JSON, Parquet or Arrow file whose columns `columns` names.

    Its keys are the columns of `traces.frame`. Arrivals and think times may have other units, `arrival_ms`, `think_us`;
    `arrival_s` may be dates and times. In place of think times `duration_s` says how long requests took, or `end_s`
    when they ended. `priority_low_first` is a priority of which the smallest is served first, as in vLLM. A name with
    dots reaches into objects, and into those of a list, each of which is then a row. Tokens may be a sum of columns,
    `input_tokens + cache_read`. Columns that are not named are left out, and a note says so. If no column of arrivals
    is named, they are drawn when the trace is loaded. Raises InputError for wrong columns.
    """
    wanted = _checked(columns)
    how.without_unit("trace.columns says the unit, as arrival_ms")
    places = {one.strip() for place in wanted.values() for one in (place, *place.split("+"))}
    table = table_of(path, tuple(places))
    found = {name: _column(path, table.frame, name, place) for name, place in wanted.items()}
    is_timed = any(name in _ARRIVALS for name in wanted)
    if not is_timed:
        wanted, found["arrival_s"] = wanted | {"arrival_s": ""}, pl.Series(np.arange(len(table.frame)) / DRAWN_RPS)
    count = Count(path)
    rows, clock = _rows(table, found, (wanted, how.block_tokens), count)
    left_out = count.notes(how)
    rows, notes, block_tokens = _in_sessions(path, rows, how)
    with path.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    trace = replace(from_rows(rows, path.stem, "real", block_tokens, clock), sha256=sha256)
    used = {*places, *(place.split(".")[0] for place in places)}
    trace = with_notes(without(trace, [name for name in table.frame.columns if name not in used]), (*left_out, *notes))
    if not is_timed:
        return to_be_timed(trace)
    doubts = [doubt.replace("set trace.unit=", "name it as arrival_") for doubt in doubted_clock(trace)]
    for doubt in doubts:
        warn_once(f"WARNING: {path}: {doubt}")
    return replace(trace, notes=(*trace.notes, *doubts))


def without(trace: Trace, left: Sequence[str]) -> Trace:
    """The trace with a note, also on stderr, of those columns of its file that were left out."""
    if not left:
        return trace
    known = [name for name in left if name in OPTIONAL]
    how = f" (trace.columns reads {known[0]} where it is named)" if known else ""
    if "priority" in known:
        how = f" (trace.columns reads priority where it is named, larger first; {_LOW_FIRST}: smaller first, as vLLM)"
    return with_notes(trace, (f"columns left out: {_few(left)}{how}",))


def _rows(
    table: Table, found: Mapping[str, pl.Series], said: tuple[Mapping[str, str], int | None], count: Count
) -> tuple[pl.DataFrame, Clock]:
    """The good rows with the columns of `traces.frame`, `ended_s` if durations are known; the others are counted.

    `said` has the places of the columns, and the tokens of a hash block.
    """
    places, block_tokens = said
    arrival = next(name for name in _ARRIVALS if name in found)
    unit = _ARRIVALS[arrival]
    ticks, first, is_date = times(found[arrival], TICKS_PER_S[unit])
    unit, ticks_per_s = (DATE, 1.0) if is_date else (unit, TICKS_PER_S[unit])
    tokens = {name: numbers(found[name]) for name in ("input_tokens", "output_tokens")}
    others = {name: values(name, found[name]) for name in found if name in _OTHERS}
    for name in found.keys() & _SPANS.keys():
        others[name] = _span(name, found[name], ticks / ticks_per_s, first / ticks_per_s)
    frame = pl.DataFrame({**tokens, **others, arrival: ticks, _WRITTEN: as_text(found[arrival])})
    is_far, far = far_off(ticks, (unit, ticks_per_s), "name it as arrival_", first)
    lost = f"{_verbatim(places[arrival])} is missing or not {'a date and time' if is_date else 'a number'}"
    checks: list[Check] = [
        (pl.col(_WRITTEN).is_null(), lost),
        (pl.col(arrival).is_null(), f"{lost}: {{{_WRITTEN}}} (dates and times are read as {EXAMPLE})"),
        *number(arrival, -math.inf if is_date else 0),
        (pl.lit(is_far), f"{_verbatim(places[arrival])} is {{{_WRITTEN}}}, {far}"),
        *(check for name in tokens for check in length(name)),
    ]
    for name, column in others.items():
        is_bad = pl.lit(is_lost(found[name], column).alias(name))
        checks.append((is_bad, f"{_verbatim(places[name])} is not {meant(name)}"))
        if name in _SPANS:
            least = 0.0 if _SPANS[name][0] == "think" else pl.col(arrival) / ticks_per_s - _SLACK_S
            is_early = (pl.col(name) < least).fill_null(False)
            checks.append((is_early, f"{_verbatim(places[name])} is negative, or before the arrival"))
    if "hash_ids" in others:
        checks.append(_hash_check(table.path, block_tokens))
    frame = replace(table, frame=frame).sifted(checks, tuple(tokens), count)
    start = float(frame[arrival].min() or 0.0)  # type: ignore[arg-type]
    rows = frame.select(
        seconds(frame[arrival] - start, ticks_per_s),
        *(pl.col(name).cast(REQUIRED[name]) for name in tokens),
        *(_as_named(name) for name in others),
    )
    if "ended_s" in rows.columns:
        rows = rows.with_columns(pl.col("ended_s") - start / ticks_per_s)
    return rows, Clock(unit, (first + start) / ticks_per_s)


def _span(name: str, column: pl.Series, since_s: pl.Series, first_s: float) -> pl.Series:
    """Think times in s; for durations and ends the end, in s on the clock of the arrivals `since_s`, which starts at
    `first_s` of the file's.
    """
    what, ticks_per_s = _SPANS[name][0], TICKS_PER_S[_SPANS[name][1]]
    if what != "end":
        seconds = spans(column, ticks_per_s)
        return seconds if what == "think" else since_s + seconds
    ticks, first, is_date = times(column, ticks_per_s)
    per_s = 1.0 if is_date else ticks_per_s
    return ticks / per_s + (first / per_s - first_s)


def _as_named(name: str) -> pl.Expr:
    """A column under its name in a trace."""
    if name == _LOW_FIRST:
        return (-pl.col(name)).alias("priority")
    if name not in _SPANS:
        return pl.col(name)
    return pl.col(name).alias("think_s" if _SPANS[name][0] == "think" else "ended_s")


def _verbatim(place: str) -> str:
    """The name of a column as a part of a reason, with doubled braces, because reasons have placeholders."""
    return place.replace("{", "{{").replace("}", "}}")


def _hash_check(path: Path, block_tokens: int | None) -> Check:
    """Check that each prompt has an id for each of its blocks; a partial last block may have none."""
    if block_tokens is None:
        raise InputError(f"{path}: hash_ids without the tokens in a block; set trace.block_tokens")
    held, blocks = pl.col("hash_ids").list.len().cast(pl.Int64), pl.col("input_tokens") / block_tokens
    reason = f"hash_ids do not fit {{input_tokens}} tokens in blocks of {block_tokens}; set trace.block_tokens"
    return (held < blocks.floor()) | (held > blocks.ceil()), reason


def _in_sessions(path: Path, rows: pl.DataFrame, how: How) -> tuple[pl.DataFrame, tuple[str, ...], int]:
    """Rows whose turns have think times, what to report of them, and the tokens of a hash block, 0 without ids."""
    notes: tuple[str, ...] = ()
    has_ids, in_sessions = "hash_ids" in rows.columns, "session_id" in rows.columns
    if in_sessions and "think_s" not in rows.columns:
        if "ended_s" not in rows.columns:
            raise InputError(
                f"{path}: session_id needs the time between turns: name a column think_s, or duration_s, which says"
                " how long each request took, or end_s"
            )
        rows, notes = closed_loop(rows)
    if has_ids or not in_sessions:
        return rows, notes, how.block_tokens or 0
    rows = rows.sort("arrival_s", maintain_order=True)
    if "turn" not in rows.columns:
        rows = rows.with_columns(turn=pl.int_range(pl.len(), dtype=pl.Int64).over("session_id"))
    rows, more = with_history(rows)
    return rows, (*notes, *more), BLOCK_TOKENS


def _checked(columns: Mapping[str, str]) -> dict[str, str]:
    known = (*_ARRIVALS, "input_tokens", "output_tokens", *_OTHERS, *_SPANS)
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns.values()):
        raise InputError(
            f"trace.columns is {shown(columns)}, must name columns, as {{arrival_s: time, input_tokens: prompt}}"
        )
    for key in columns:
        if key not in known:
            raise InputError(f"trace.columns: {shown(key)} is not known; the columns are {', '.join(known)}")
    arrivals = [key for key in columns if key in _ARRIVALS]
    if len(arrivals) > 1:
        raise InputError(f"trace.columns: name one of {', '.join(arrivals)}, not both")
    if not arrivals and "session_id" in columns:
        raise InputError(f"trace.columns: sessions need arrivals; name one of {', '.join(_ARRIVALS)}")
    for key in ("input_tokens", "output_tokens"):
        if key not in columns:
            raise InputError(f"trace.columns needs {key}; name the column that has it: {{..., {key}: NAME}}")
    if len([key for key in columns if key in _SPANS]) > 1:
        raise InputError(f"trace.columns: name one of {', '.join(key for key in columns if key in _SPANS)}, not both")
    if any(key in _SPANS or key == "turn" for key in columns) and "session_id" not in columns:
        raise InputError("trace.columns: think times, durations and turns are those of sessions; name session_id too")
    if "priority" in columns and _LOW_FIRST in columns:
        raise InputError(f"trace.columns: name priority or {_LOW_FIRST}, not both")
    return dict(columns)


def _column(path: Path, frame: pl.DataFrame, name: str, place: str) -> pl.Series:
    column = at(frame, place)
    if column is None and name in REQUIRED and "+" in place:
        parts = [_column(path, frame, name, one.strip()) for one in place.split("+")]
        return summed(parts)
    if column is None:
        raise InputError(f"{path}: trace.columns: no column {place}; it has {_few(with_fields(frame.schema))}")
    return column.alias(name)


def _few(names: Sequence[str]) -> str:
    return one_line(", ".join(names[:_MANY])) + (", ..." if len(names) > _MANY else "")
