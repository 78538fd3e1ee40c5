"""Tables in JSON files: one record a line, or an array."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from framework.cli.reading import parsed_json
from framework.cli.terminal import warn_once
from framework.errors import InputError
from traces.formats.hashed import id_of
from traces.parsing.dates import instant_s
from traces.parsing.json_records import first_records, is_array, number_of, placed, value_at
from traces.parsing.rows import Table, at, filled_lines, nth, read_bytes

_NONE: Mapping[str, float] = MappingProxyType({})
_NO_TABLE = (PolarsError, OSError, ValueError, OverflowError, pl.exceptions.PanicException)


def read_jsonl(
    path: Path,
    schema: Mapping[str, pl.DataType],
    required: Sequence[str],
    times: Mapping[str, float] = MappingProxyType({}),
) -> Table:
    """JSON objects, one a line, in an array or over several lines; the columns of `schema` are floats or lists of ids.

    Columns that no row has are left out, unless they are `required`. `times` names the keys that may hold dates and
    times, with the resulting ticks per second.
    """
    data = read_bytes(path)
    table = _of_lines(path, data, lambda text: pl.read_ndjson(text, schema=dict(schema)))
    table = table or _one_by_one(path, data, schema, times)
    frame = table.frame
    missing = [column for column in schema if frame[column].null_count() == frame.height]
    if lost := [column for column in required if column in missing]:
        raise InputError(f"{path}: no column {', '.join(lost)}; rows need {', '.join(required)}")
    for column in schema:
        if data.count(f'"{column}"'.encode()) > frame.height:
            warn_of_twice(path, data, column)
    found = dict.fromkeys(name for record in first_records(data) for name in record)
    left = tuple(name for name in found if name not in schema)
    return replace(table, frame=frame.drop(missing), left=left)


def _of_lines(path: Path, data: bytes, read: Callable[[bytes], pl.DataFrame]) -> Table | None:
    """The result of `read` for a file of lines, without lines that are no JSON; None if `read` fails."""
    if is_array(data):
        return None
    try:
        return Table(path, read(data), lambda row: f"line {nth(filled_lines(data), row)}")
    except _NO_TABLE:
        pass
    lines, places, bad, first = list[bytes](), list[str](), 0, ""
    for line_number, line in filled_lines(data):
        try:
            parsed_json(line)
        except ValueError as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            bad, first = bad + 1, first or f"{path}, line {line_number}: not JSON ({reason})"
        else:
            lines.append(line)
            places.append(f"line {line_number}")
    try:
        return Table(path, read(b"\n".join(lines)), places.__getitem__, bad=bad, first=first) if bad and lines else None
    except _NO_TABLE:
        return None


def _one_by_one(path: Path, data: bytes, schema: Mapping[str, pl.DataType], times: Mapping[str, float]) -> Table:
    """The records that `schema` can hold. Raises InputError if there is none."""
    good: list[dict[str, Any]] = []
    places: list[str] = []
    dates: set[str] = set()
    bad, first = 0, ""
    for place, record in placed(path, data):
        try:
            if isinstance(record, InputError):
                raise record
            row = {name: _in_ticks(record.get(name), times.get(name)) for name in schema}
            dates |= {name for name in times if row[name] is not record.get(name)}
            good.append({name: _value(f"{path}, {place}: {name}", row[name], schema[name]) for name in schema})
            places.append(place)
        except InputError as error:
            bad, first = bad + 1, first or str(error)
    if not good:
        raise InputError(first or f"{path}: the trace file has no rows")
    frame = pl.DataFrame(good, schema=dict(schema))
    return Table(path, frame, places.__getitem__, bad=bad, first=first, dates=frozenset(dates))


def _in_ticks(value: Any, ticks_per_s: float | None) -> Any:
    """A date and time as ticks since 1970 if the value is one; any other value as it is."""
    if ticks_per_s is None or not isinstance(value, str) or number_of(value) is not None:
        return value
    since_s = instant_s(value)
    return value if since_s is None else since_s * ticks_per_s


def _value(what: str, value: Any, dtype: pl.DataType) -> float | list[int | None] | None:
    """A value as `dtype`. Raises InputError, which begins with `what` it is."""
    if value is None:
        return None
    if isinstance(dtype, pl.List):
        ids = [id_of(one) for one in value] if isinstance(value, list) else []
        if not isinstance(value, list) or any(id_of(one) is None for one in value if one is not None):
            raise InputError(f"{what} is {json.dumps(value)[:40]}, must be a list of whole numbers or names")
        return ids
    if (number := number_of(value)) is not None:
        return float(number)
    raise InputError(f"{what} is {json.dumps(value)[:40]}, must be a finite number")


def json_rows(path: Path, data: bytes, wanted: Sequence[str]) -> Table:
    """All keys of the objects in a JSON file, each of the type that polars infers.

    If polars infers none, records are read one by one, and a key is a column of texts unless it holds only numbers.
    """
    table = _of_lines(path, data, lambda text: pl.read_ndjson(io.BytesIO(text), infer_schema_length=None))
    if is_array(data):
        with suppress(*_NO_TABLE):
            frame = pl.read_json(io.BytesIO(data), infer_schema_length=None)
            table = Table(path, frame, lambda row: f"record {row + 1}")
    if table is None:
        return _inferred(path, data, wanted)
    frame = table.frame
    inner = [place for place in wanted if "." in place and place.split(".")[0] in frame.columns]
    has_lists = any(isinstance(dtype, pl.List) for dtype in frame.dtypes)
    is_lost = not has_lists and any(at(frame, place) is None for place in inner)
    return _inferred(path, data, wanted) if is_lost else table


def _inferred(path: Path, data: bytes, wanted: Sequence[str]) -> Table:
    """The columns of records that are objects: those at the `wanted` places, and those of other keys."""
    good: list[dict[str, Any]] = []
    places: list[str] = []
    bad, first = 0, ""
    for place, record in placed(path, data):
        if isinstance(record, InputError):
            bad, first = bad + 1, first or str(record)
        else:
            good.append(record)
            places.append(place)
    if not good:
        raise InputError(first or f"{path}: the trace file has no rows")
    names = dict.fromkeys([*wanted, *(name for record in good for name in record)])
    found = {name: [value_at(record, name) for record in good] for name in names}
    columns = [_column(name, values) for name, values in found.items() if any(one is not None for one in values)]
    return Table(path, pl.DataFrame(columns), places.__getitem__, bad=bad, first=first)


def _column(name: str, values: Sequence[Any]) -> pl.Series:
    """Lists of texts if all are lists, else numbers if all are, else texts; anything else is null."""
    if all(one is None or isinstance(one, list) for one in values):
        return pl.Series(
            name, [None if one is None else [_text(item) for item in one] for one in values], pl.List(pl.String())
        )
    if all(one is None or (isinstance(one, int | float) and not isinstance(one, bool)) for one in values):
        return pl.Series(name, values, strict=False)
    return pl.Series(name, [_text(one) for one in values], pl.String())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, dict | list):
        return None
    return str(value).encode("utf-8", "replace").decode()  # half a surrogate pair is no text to polars


def warn_of_twice(path: Path, data: bytes, name: str) -> None:
    """Report a JSON line that has the name more than once, if there is one; polars takes the first value."""
    quoted = f'"{name}"'.encode()
    for line_number, line in filled_lines(data):
        if line.count(quoted) > 1 and _is_twice(line, name):
            warn_once(f"WARNING: {path}, line {line_number}: {name} stands twice in one object; the first value counts")
            return


def _is_twice(line: bytes, name: str) -> bool:
    tops: list[list[tuple[str, Any]]] = []
    try:
        json.loads(line, object_pairs_hook=tops.append)
    except (ValueError, RecursionError):
        return False
    return bool(tops) and [key for key, _ in tops[-1]].count(name) > 1
