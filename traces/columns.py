"""Any table as a trace: the user says which of its columns is what, `trace.columns={arrival_s: time, ...}`."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from framework.cli.reading import parquet_of
from framework.cli.terminal import warn_once
from framework.errors import MOST_S, InputError, shown
from traces.column_values import is_lost, meant, numbers, times, values
from traces.frame import OPTIONAL, REQUIRED, Trace, from_rows, seconds
from traces.rows import Check, Table, csv_texts, json_rows, length, number, read_bytes, warn_of_twice
from traces.settings import MOST_REQUESTS, check_whole

TICKS_PER_S = {"arrival_s": 1.0, "arrival_ms": 1e3, "arrival_us": 1e6, "arrival_ns": 1e9}
_PARQUET = b"PAR1"
_MANY = 12  # columns that a message lists
# What columns of logs are often called, for the advice that a message gives.
_ALSO_CALLED: Mapping[str, Sequence[str]] = {
    "arrival_s": ("arrival_s", "arrival", "arrival_time", "timestamp", "time", "start_time", "start_s", "created"),
    "input_tokens": ("input_tokens", "prompt_tokens", "input_length", "prompt_len", "prompt", "isl", "input"),
    "output_tokens": (
        "output_tokens",
        "completion_tokens",
        "output_length",
        "output_len",
        "completion",
        "osl",
        "output",
    ),
}


def read_columns(path: Path, columns: Mapping[str, str], block_tokens: int | None = None) -> Trace:
    """The trace in a CSV, a Parquet or a JSONL file whose columns have the names that `columns` says.

    Its keys are the columns of `traces.frame`; arrivals may be `arrival_ms`, `arrival_us` or `arrival_ns` instead, and
    `arrival_s` may be dates and times. A name with dots reaches into objects of JSON lines. Other columns that have a
    name of `traces.frame` are kept, the rest is left out, as a note says. Raises InputError for what cannot be.
    """
    wanted = _checked(columns)
    if block_tokens is not None:
        check_whole("trace.block_tokens", block_tokens)
    table = _table(path, tuple(wanted.values()))
    kept = [name for name in OPTIONAL if name in table.frame.columns and (name != "hash_ids" or block_tokens)]
    wanted = {name: name for name in kept} | wanted
    found = {name: _column(path, table.frame, name, place) for name, place in wanted.items()}
    rows = replace(table, frame=_rows(table, found, wanted))
    if "hash_ids" in found:
        _check_hashes(rows, block_tokens)
    with path.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    trace = replace(from_rows(rows.frame, path.stem, "real", block_tokens or 0), sha256=sha256)
    left = [name for name in table.frame.columns if name not in {place.split(".")[0] for place in wanted.values()}]
    return without(trace, left)


def without(trace: Trace, left: Sequence[str]) -> Trace:
    """The trace with a note, said on stderr too, of those columns of its file that it was read without."""
    if not left:
        return trace
    note = f"columns left out: {_few(left)}"
    warn_once(f"note: trace {trace.name}: {note}")
    return trace.with_frame(trace.frame, note)


def _rows(table: Table, found: Mapping[str, pl.Series], places: Mapping[str, str]) -> pl.DataFrame:
    """The columns as those of `traces.frame`. Raises InputError for the first row that holds what none of them can."""
    arrival = next(name for name in TICKS_PER_S if name in found)
    ticks, is_date = times(found[arrival])
    ticks_per_s = 1.0 if is_date else TICKS_PER_S[arrival]
    optional = {name: values(name, column) for name, column in found.items() if name in OPTIONAL}
    tokens = {name: numbers(found[name]) for name in ("input_tokens", "output_tokens")}
    frame = pl.DataFrame({**tokens, **optional, arrival: ticks})
    at, since = pl.col(arrival), pl.col(arrival) - pl.col(arrival).min()
    checks: list[Check] = [
        (
            at.is_null(),
            f"{_verbatim(places[arrival])} is missing or not {'a date and time' if is_date else 'a number'}",
        ),
        *number(arrival, -math.inf if is_date else 0),
        (since > MOST_S * ticks_per_s, f"{arrival} is more than {MOST_S:g} s after the first"),
        *(check for name in tokens for check in length(name)),
    ]
    for name, column in optional.items():
        is_bad = pl.lit(is_lost(found[name], column).alias(name))
        checks.append((is_bad, f"{_verbatim(places[name])} is not {meant(name)}"))
    replace(table, frame=frame).refuse(checks)
    start = float(frame[arrival].min() or 0.0)  # type: ignore[arg-type]
    return frame.with_columns(
        seconds(frame[arrival] - start, ticks_per_s), *(pl.col(name).cast(REQUIRED[name]) for name in tokens)
    )


def _verbatim(place: str) -> str:
    """The name of a column as a part of a reason, where braces stand for values."""
    return place.replace("{", "{{").replace("}", "}}")


def _check_hashes(table: Table, block_tokens: int | None) -> None:
    """Raise InputError unless each prompt has an id for each of its blocks; a partial last block may do without."""
    if block_tokens is None:
        raise InputError(f"{table.path}: hash_ids without the tokens in a block; set trace.block_tokens")
    held, blocks = pl.col("hash_ids").list.len().cast(pl.Int64), pl.col("input_tokens") / block_tokens
    reason = f"hash_ids do not fit {{input_tokens}} tokens in blocks of {block_tokens}; set trace.block_tokens"
    table.refuse([((held < blocks.floor()) | (held > blocks.ceil()), reason)])


def column_names(data: bytes) -> list[str]:
    """The columns of a Parquet file, the keys of the first JSON line, or the header of a CSV; none for what is none."""
    try:
        if data.startswith(_PARQUET):
            return list(pl.read_parquet_schema(io.BytesIO(data)))
        first = data.lstrip().split(b"\n", 1)[0].strip()
        if first.startswith(b"{"):
            return [str(key) for key in json.loads(first)]
    except (PolarsError, OSError, ValueError, RecursionError):
        return []
    return [name.strip() for name in first.decode("utf-8", "replace").split(",")]


def advice(names: Sequence[str]) -> str:
    """How to say which of these columns is what; empty where there are none to choose from."""
    if not names:
        return ""
    lower = {name.lower().rpartition(".")[2].replace(" ", "_"): name for name in reversed(names)}
    guess = {key: next((lower[one] for one in also if one in lower), "...") for key, also in _ALSO_CALLED.items()}
    pairs = ", ".join(f"{key}: {name}" for key, name in guess.items())
    return f", or say which column is what: trace.columns='{{{pairs}}}'"


def _checked(columns: Mapping[str, str]) -> dict[str, str]:
    known = (*TICKS_PER_S, *REQUIRED, *OPTIONAL)
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns.values()):
        raise InputError(
            f"trace.columns is {shown(columns)}, must name columns, as {{arrival_s: time, input_tokens: prompt}}"
        )
    for key in columns:
        if key not in known:
            raise InputError(
                f"trace.columns: {shown(key)} is not known; the columns are {', '.join(dict.fromkeys(known))}"
            )
    if len([key for key in columns if key in TICKS_PER_S]) != 1:
        raise InputError(f"trace.columns needs one of {', '.join(TICKS_PER_S)}; name the column that has it")
    for key in ("input_tokens", "output_tokens"):
        if key not in columns:
            raise InputError(f"trace.columns needs {key}; name the column that has it: {{..., {key}: NAME}}")
    return dict(columns)


def _table(path: Path, wanted: Sequence[str]) -> Table:
    """The rows of a file as they are; texts where it has no types of its own."""
    data = read_bytes(path)
    if data.startswith(_PARQUET):
        try:
            table = Table(path, parquet_of(data, MOST_REQUESTS), lambda row: row + 1, "row")
        except (PolarsError, OSError, ValueError) as error:
            reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            raise InputError(f"{path}: not a usable Parquet file ({reason})") from None
    elif data.lstrip().startswith(b"{"):
        table = json_rows(path, data)
        for place in wanted:
            warn_of_twice(path, data, place.rpartition(".")[2])
    else:
        table = csv_texts(path, data, wanted)
    if table.frame.is_empty():
        raise InputError(f"{path}: the trace file has no rows")
    return table


def _column(path: Path, frame: pl.DataFrame, name: str, place: str) -> pl.Series:
    """The column at a place, `usage.prompt_tokens` within an object of that name."""
    if place in frame.columns:
        return frame[place].alias(name)
    first, *others = place.split(".")
    column = frame[first] if first in frame.columns else None
    for other in others:
        is_there = column is not None and isinstance(column.dtype, pl.Struct) and other in column.struct.fields
        column = column.struct.field(other) if is_there and column is not None else None
    if column is None:
        raise InputError(f"{path}: trace.columns: no column {place}; it has {_few(frame.columns)}")
    return column.alias(name)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_MANY]) + (", ..." if len(names) > _MANY else "")
