"""Any table as a trace: the user says which of its columns is what, `trace.columns={arrival_s: time, ...}`."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from framework.errors import InputError
from traces.frame import OPTIONAL, REQUIRED, Trace, from_rows, seconds
from traces.rows import Check, Table, length, number, read_bytes
from traces.settings import check_whole

TICKS_PER_S = {"arrival_s": 1.0, "arrival_ms": 1e3, "arrival_us": 1e6, "arrival_ns": 1e9}
_DATES = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%d %H:%M:%S%.f%#z")
_NUMBERS = ("session_id", "turn", "think_s", "priority")
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
    table = _table(path)
    kept = [name for name in OPTIONAL if name in table.frame.columns and (name != "hash_ids" or block_tokens)]
    wanted = {name: name for name in kept} | wanted
    arrival = next(name for name in TICKS_PER_S if name in wanted)
    found = {name: _column(path, table.frame, name, place) for name, place in wanted.items()}
    times, is_date = _times(found[arrival])
    floats = {name: _numbers(found[name]) for name in (*REQUIRED, *_NUMBERS) if name in found}
    frame = pl.DataFrame({**floats, arrival: times})
    meant = "a date and time" if is_date else "a number"
    bad_time: Check = (pl.col(arrival).is_null(), f"{wanted[arrival]} is missing or not {meant}")
    checks = [bad_time, *number(arrival, 0), *length("input_tokens"), *length("output_tokens")]
    Table(path, frame, table.line_of, table.unit).refuse(checks)
    start = float(frame[arrival].min() or 0.0)  # type: ignore[arg-type]
    rows = frame.with_columns(seconds(frame[arrival] - start, 1.0 if is_date else TICKS_PER_S[arrival]))
    rows = rows.with_columns(
        *(pl.col(name).cast(dtype) for name, dtype in {**REQUIRED, **OPTIONAL}.items() if name in rows.columns),
        *(found[name].cast(OPTIONAL[name]).alias(name) for name in ("slo_class", "hash_ids") if name in found),
    )
    if "hash_ids" in rows.columns:
        _check_hashes(Table(path, rows, table.line_of, table.unit), block_tokens)
    with path.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    trace = replace(from_rows(rows, path.stem, "real", block_tokens or 0), sha256=sha256)
    left = [name for name in table.frame.columns if name not in {place.split(".")[0] for place in wanted.values()}]
    return trace.with_frame(trace.frame, f"columns left out: {', '.join(left)}") if left else trace


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
            f"trace.columns is {columns!r}, must name columns, as {{arrival_s: time, input_tokens: prompt}}"
        )
    for key in columns:
        if key not in known:
            raise InputError(f"trace.columns: {key!r} is not known; the columns are {', '.join(dict.fromkeys(known))}")
    if len([key for key in columns if key in TICKS_PER_S]) != 1:
        raise InputError(f"trace.columns needs one of {', '.join(TICKS_PER_S)}")
    for key in ("input_tokens", "output_tokens"):
        if key not in columns:
            raise InputError(f"trace.columns needs {key}")
    return dict(columns)


def _table(path: Path) -> Table:
    """The rows of a file as they are; texts where it has no types of its own."""
    data = read_bytes(path)
    start, unit = 1, "line"
    try:
        if data.startswith(_PARQUET):
            frame, unit = pl.read_parquet(io.BytesIO(data)), "row"
        elif data.lstrip().startswith(b"{"):
            frame = pl.read_ndjson(io.BytesIO(data), infer_schema_length=None)
        else:
            frame, start = pl.read_csv(io.BytesIO(data), infer_schema=False).rename(str.strip), 2
    except (PolarsError, OSError, ValueError) as error:
        raise InputError(f"{path}: no CSV, Parquet or JSONL file ({str(error).splitlines()[0][:120]})") from None
    if frame.is_empty():
        raise InputError(f"{path}: the trace file has no rows")
    return Table(path, frame, lambda row: row + start, unit)


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


def _times(column: pl.Series) -> tuple[pl.Series, bool]:
    """Numbers of ticks, or seconds since 1970 of dates and times; and whether it has dates.

    Whole numbers count from the least of them: those of nanoseconds since 1970 are too large for a float.
    """
    if column.dtype.is_temporal():
        return (column.cast(pl.Datetime("ns")).dt.timestamp("ns") / 1e9).alias(column.name), True
    whole = column.str.strip_chars().cast(pl.Int64, strict=False) if column.dtype == pl.String else column
    if whole.dtype.is_integer() and whole.null_count() == 0:
        return (whole - whole.min()).cast(pl.Float64), False
    if column.dtype == pl.String:
        ticks = column.str.strip_chars().cast(pl.Float64, strict=False)
        if ticks.null_count() < len(ticks):
            return ticks, False
        for form in _DATES:
            dates = column.str.strip_chars().str.replace(r"Z$", "+00:00").str.to_datetime(form, strict=False)
            if dates.null_count() < len(dates):
                return (dates.dt.timestamp("us") / 1e6).alias(column.name), True
    return _numbers(column), False


def _numbers(column: pl.Series) -> pl.Series:
    texts = column.str.strip_chars() if column.dtype == pl.String else column
    if column.dtype.is_numeric() or column.dtype == pl.String:
        return texts.cast(pl.Float64, strict=False)
    return pl.Series(column.name, [None] * len(column), pl.Float64)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_MANY]) + (", ..." if len(names) > _MANY else "")
