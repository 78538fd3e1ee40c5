"""A file of any table: its rows, its columns' names, and advice on the meaning of columns."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from framework.cli.reading import panics_withheld, parquet_of
from framework.errors import InputError
from traces.formats.json_rows import json_rows, warn_of_twice
from traces.parsing.column_values import times
from traces.parsing.csv_rows import Part, csv_texts, header_names
from traces.parsing.json_records import first_records
from traces.parsing.rows import Table, at, read_bytes
from traces.parsing.units import FEW, likely_unit
from traces.settings import MOST_REQUESTS

PARQUET = b"PAR1"
_ARROW_FILE, _ARROW_STREAM = b"ARROW1", b"\xff\xff\xff\xff"
_BROKEN = (PolarsError, OSError, ValueError, pl.exceptions.PanicException)
_ROW = "row of the file"
_SAMPLE = 1000  # rows that advice on the unit considers
# Common names of columns in logs, for the advice in a message.
_ALSO_CALLED: Mapping[str, Sequence[str]] = {
    "arrival": (
        *("arrival_s", "arrival", "arrival_time", "arrived_at", "arrival_timestamp", "timestamp", "time", "start_time"),
        *("start_s", "request_start_time", "launch_time", "arrival_time_ns", "arrival_time_us", "arrival_time_ms"),
        *(
            "ts_start_ns",
            "created",
            "created_at",
            "timestamp_start_unix_ms",
            "request_received_ms",
            "starttime",
            "createtime",
            "ts",
            "t",
        ),
    ),
    "input_tokens": (
        *("input_tokens", "prompt_tokens", "input_length", "prompt_length", "input_len", "prompt_len", "input_toks"),
        *("input_token_len", "prompt_size", "num_prefill_tokens", "contexttokens", "context_tokens", "request_tokens"),
        *("prompttokencount", "inputtokencount", "inputtokens", "num_input_tokens", "number_input_tokens"),
        *("prompt", "isl", "input", "in"),
    ),
    "output_tokens": (
        *("output_tokens", "completion_tokens", "output_length", "response_length", "output_len", "output_toks"),
        *("output_token_len", "token_size", "num_decode_tokens", "generatedtokens", "generated_tokens"),
        *("response_tokens", "candidatestokencount", "outputtokencount", "outputtokens", "num_output_tokens"),
        *("number_output_tokens", "completion", "osl", "output", "out"),
    ),
}


def table_of(path: Path, wanted: Sequence[str]) -> Table:
    """The rows of a file as they are; texts if it has no types of its own. Raises InputError."""
    data = read_bytes(path)
    if data.startswith((PARQUET, _ARROW_FILE, _ARROW_STREAM)):
        kind = "Parquet" if data.startswith(PARQUET) else "Arrow"
        try:
            table = Table(path, _binary(data), lambda row: f"row {row + 1}")
        except _BROKEN as error:
            reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            raise InputError(f"{path}: not a usable {kind} file ({reason})") from None
    elif data.lstrip().startswith((b"[", b"{")):
        table = json_rows(path, data, wanted)
        for place in wanted:
            warn_of_twice(path, data, place.rpartition(".")[2])
    else:
        table = csv_texts(path, Part(data), wanted)
    if table.frame.is_empty():
        raise InputError(f"{path}: the trace file has no rows")
    return _unfolded(table, wanted)


def _unfolded(table: Table, wanted: Sequence[str]) -> Table:
    """Each object of a list as its own row, with what stands next to the list, if a place reaches into one."""
    firsts = dict.fromkeys(place.split(".")[0] for place in wanted if "." in place and place not in table.frame.columns)
    lists = [name for name in firsts if _holds_objects(table.frame.schema.get(name))]
    if len(lists) != 1:
        return table
    frame = table.frame.with_row_index(_ROW).explode(lists[0])
    rows = frame[_ROW].to_list()
    return replace(table, frame=frame.drop(_ROW), place=lambda row: table.place(rows[row]))


def _holds_objects(dtype: object) -> bool:
    return isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.Struct)


def _binary(data: bytes) -> pl.DataFrame:
    if data.startswith(PARQUET):
        return parquet_of(data, MOST_REQUESTS)
    read = pl.read_ipc if data.startswith(_ARROW_FILE) else pl.read_ipc_stream
    with panics_withheld():
        frame = read(io.BytesIO(data))
    if frame.height > MOST_REQUESTS:
        raise ValueError(f"{frame.height:,} rows, at most {MOST_REQUESTS:,} are read")
    return frame


def column_names(data: bytes) -> list[str]:
    """The columns of a Parquet or Arrow file, the keys of the first JSON object, or the header of a CSV; none for
    another file. A key within an object is written with a dot.
    """
    try:
        with panics_withheld():
            if data.startswith(PARQUET):
                return with_fields(pl.read_parquet_schema(io.BytesIO(data)))
            if data.startswith(_ARROW_FILE):
                return with_fields(pl.read_ipc_schema(io.BytesIO(data)))
        if data.startswith(_ARROW_STREAM):
            return with_fields(_binary(data).schema)
    except _BROKEN:
        return []
    if data.lstrip().startswith((b"{", b"[")):
        return list(dict.fromkeys(path for record in first_records(data) for path in _paths(record)))
    return header_names(data)


def with_fields(schema: Mapping[str, pl.DataType]) -> list[str]:
    """The names of columns; an object's parts, with a dot, replace the object itself."""
    return list(_paths({name: _fields(dtype) for name, dtype in schema.items()}))


def _fields(dtype: object) -> object:
    dtype = dtype.inner if _holds_objects(dtype) else dtype  # type: ignore[attr-defined]
    return {field.name: _fields(field.dtype) for field in dtype.fields} if isinstance(dtype, pl.Struct) else None


def _paths(record: Mapping[str, object], before: str = "") -> list[str]:
    found = []
    for key, value in record.items():
        found += _paths(value, f"{before}{key}.") if isinstance(value, Mapping) and value else [f"{before}{key}"]
    return found


def advice(path: Path, data: bytes) -> str:
    """How to name the columns of a file; empty if there are none to choose from."""
    names = column_names(data)
    if not names:
        return ""
    lower = {name.lower().rpartition(".")[2].replace(" ", "_"): name for name in reversed(names)}
    guess = {key: next((lower[one] for one in also if one in lower), "...") for key, also in _ALSO_CALLED.items()}
    arrival = guess.pop("arrival")
    is_timed = arrival != "..."
    pairs = {f"arrival_{_unit(path, arrival)}": arrival, **guess} if is_timed else guess
    listed = ", ".join(f"{key}: {name}" for key, name in pairs.items())
    drawn = "" if is_timed else " (arrivals, which no column seems to have, are drawn; arrival_s: NAME names one)"
    return f", or say which column is what: trace.columns='{{{listed}}}'{drawn}"


def _unit(path: Path, place: str) -> str:
    """The unit in which the numbers at a place make a likely rate; seconds if none does, or all do."""
    try:
        column = at(table_of(path, ()).frame.head(_SAMPLE), place)
    except InputError:
        column = None
    if column is None:
        return "s"
    ticks, first, is_date = times(column)
    least, most = (float(end or 0.0) for end in (ticks.min(), ticks.max()))  # type: ignore[arg-type]
    if is_date or most <= least:
        return "s"
    return likely_unit(first + least, most - least, max(len(ticks), FEW)) or "s"
