"""Tables read from text files, whose bad rows are refused with the line they stand on."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from framework.cli.reading import parsed_json, read_file
from framework.cli.terminal import warn_once
from framework.errors import InputError, is_number

MAX_TOKENS = 10**9
_LOOKED_AT = 100  # lines of a file of JSON, for keys that nobody reads
Check = tuple[pl.Expr, str]  # true where a row is bad; the reason, with `{column}` for its values


@dataclass(frozen=True)
class Table:
    """Rows of a file. `line_of(row)` is the 1-based line (or what `unit` names) at which a row stands in it.

    `left`: columns of the file that the rows are read without.
    """

    path: Path
    frame: pl.DataFrame
    line_of: Callable[[int], int]
    unit: str = "line"
    left: tuple[str, ...] = ()

    def refuse(self, checks: Sequence[Check]) -> None:
        """Raise InputError for the first row that is bad by any check; a check that yields null counts as bad."""
        flags = self.frame.select(bad.fill_null(True).alias(str(index)) for index, (bad, _) in enumerate(checks))
        firsts = [(flags[name].arg_max(), int(name)) for name in flags.columns if flags[name].any()]
        found = [(row, index) for row, index in firsts if row is not None]
        if found:
            row, index = min(found)
            reason = checks[index][1].format_map(self.frame.row(row, named=True))
            raise InputError(f"{self.path}, {self.unit} {self.line_of(row)}: {reason}")


def number(column: str, least: float, most: float = math.inf) -> list[Check]:
    """Checks that a float column holds finite numbers from `least` to `most`."""
    value = pl.col(column)
    return [
        (value.is_null(), f"{column} is missing or not a number"),
        (~value.is_finite(), f"{column} is {{{column}}}, must be finite"),
        (value < least, f"{column} is {{{column}:g}}, must be at least {least:g}"),
        (value > most, f"{column} is {{{column}:g}}, must be at most {most:g}"),
    ]


def length(column: str) -> list[Check]:
    """Checks that a float column holds whole numbers of tokens, at least 1."""
    value = pl.col(column)
    return [
        *number(column, 1),
        (value != value.floor(), f"{column} is {{{column}:g}}, must be a whole number"),
        (value > MAX_TOKENS, f"{column} is {{{column}:g}}, more than any request can have"),
    ]


def read_bytes(path: Path) -> bytes:
    """A file's content without byte order mark. Raises InputError if it is missing, unreadable or empty."""
    data = read_file(path, "trace file")
    if not data.strip():
        raise InputError(f"{path}: the trace file is empty")
    return data


def read_jsonl(path: Path, schema: Mapping[str, pl.DataType], required: Sequence[str]) -> Table:
    """One JSON object a line; the columns of `schema` are floats or lists of whole numbers.

    Columns that no row has are left out, unless they are `required`.
    """
    data = read_bytes(path)
    try:
        frame = pl.read_ndjson(data, schema=dict(schema))
    except PolarsError:
        raise InputError(_json_fault(path, data, schema)) from None
    missing = [column for column in schema if frame[column].null_count() == frame.height]
    if lost := [column for column in required if column in missing]:
        raise InputError(f"{path}: no column {', '.join(lost)}; rows need {', '.join(required)}")
    for column in schema:
        if data.count(f'"{column}"'.encode()) > frame.height:
            warn_of_twice(path, data, column)
    return Table(path, frame.drop(missing), lambda row: _nth(_filled_lines(data), row), left=_other_keys(data, schema))


def _other_keys(data: bytes, schema: Mapping[str, pl.DataType]) -> tuple[str, ...]:
    """Keys of the first lines that `schema` does not have."""
    found: dict[str, None] = {}
    for _, line in islice(_filled_lines(data), _LOOKED_AT):
        with suppress(ValueError):
            record = parsed_json(line)
            found |= dict.fromkeys(record) if isinstance(record, dict) else {}
    return tuple(name for name in found if name not in schema)


def read_csv(path: Path, numbers: Sequence[str], texts: Sequence[str] = ()) -> Table:
    """A CSV file with a header line; `numbers` become floats (null where they are not), `texts` stay strings."""
    wanted = (*texts, *numbers)
    table = csv_texts(path, read_bytes(path), wanted)
    if lost := [column for column in wanted if column not in table.frame.columns]:
        raise InputError(f"{path}: no column {', '.join(lost)}; the header is {_few(table.frame.columns)}")
    if table.frame.is_empty():
        raise InputError(f"{path}: the trace file has a header and no rows")
    floats = [pl.col(column).str.strip_chars().cast(pl.Float64, strict=False) for column in numbers]
    left = tuple(column for column in table.frame.columns if column not in wanted)
    return replace(table, frame=table.frame.select(*texts, *floats), left=left)


def csv_texts(path: Path, data: bytes, wanted: Sequence[str]) -> Table:
    """All columns of a CSV as texts. Raises InputError where one of those that are wanted stands twice."""
    try:
        raw = pl.read_csv(_plain(data), infer_schema=False)
        if raw.select(pl.all_horizontal(pl.all().is_null()).any()).item():  # blank lines: rows of nulls to polars
            filled = b"\n".join(line for _, line in _filled_lines(data))
            raw = pl.read_csv(_plain(filled), infer_schema=False)
        raw = raw.rename(str.strip)
    except (PolarsError, OSError, UnicodeDecodeError) as error:
        raise InputError(_csv_fault(path, data, str(error))) from None
    if twice := [column for column in wanted if f"{column}_duplicated_0" in raw.columns]:
        raise InputError(f"{path}: column {twice[0]} stands twice in the header")
    return Table(path, raw, lambda row: _nth(_filled_records(data), row + 1))


def json_rows(path: Path, data: bytes) -> Table:
    """All keys of a file of JSON lines, each of the type that polars finds in it."""
    try:
        frame = pl.read_ndjson(io.BytesIO(data), infer_schema_length=None)
    except (PolarsError, OSError, ValueError, pl.exceptions.PanicException):
        raise InputError(_json_fault(path, data, {})) from None
    return Table(path, frame, lambda row: _nth(_filled_lines(data), row))


def _plain(data: bytes) -> bytes:
    """What polars takes for text whatever it begins with: it would unpack some itself, and without a limit."""
    return b"\xef\xbb\xbf" + data


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _filled_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    return ((index, line) for index, line in enumerate(data.split(b"\n"), start=1) if line.strip())


def _filled_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Records of a CSV, each with the line on which it begins: a field in quotes may hold line ends."""
    begun, is_open, parts = 0, False, list[bytes]()
    for index, line in enumerate(data.split(b"\n"), start=1):
        begun = begun if parts else index
        parts.append(line)
        is_open ^= line.count(b'"') % 2 == 1
        if not is_open:
            if any(part.strip() for part in parts):
                yield begun, b"\n".join(parts)
            parts = []
    if parts:
        yield begun, b"\n".join(parts)


def _nth(records: Iterator[tuple[int, bytes]], place: int) -> int:
    """The line of the record at `place`, counted from 0; of the last one if there are fewer. There is one."""
    return [line for line, _ in islice(records, place + 1)][-1]


def warn_of_twice(path: Path, data: bytes, name: str) -> None:
    """Say which JSON line has the name more than once, if one does; polars takes the first value."""
    quoted = f'"{name}"'.encode()
    for line_number, line in _filled_lines(data):
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


def _json_fault(path: Path, data: bytes, schema: Mapping[str, pl.DataType]) -> str:
    """What is wrong with a file that polars refused: the first line that is no JSON object or has another type."""
    for line_number, line in _filled_lines(data):
        where = f"{path}, line {line_number}"
        try:
            row = parsed_json(line)
        except ValueError as error:
            return f"{where}: not JSON ({error.msg if isinstance(error, json.JSONDecodeError) else error})"
        if not isinstance(row, dict):
            return f"{where}: not a JSON object"
        for column, dtype in schema.items():
            value = row.get(column)
            if value is not None and not _fits(value, dtype):
                return f"{where}: {column} is {json.dumps(value)[:40]}, must be {_words(dtype)}"
    return f"{path}: not a file of JSON lines"


def _fits(value: Any, dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.List):
        return isinstance(value, list) and all(_fits(item, pl.Int64()) for item in value)
    if isinstance(value, bool):
        return False
    if dtype == pl.Float64:
        return is_number(value)
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _words(dtype: pl.DataType) -> str:
    return "a list of whole numbers of 64 bits" if isinstance(dtype, pl.List) else "a finite number"


def _csv_fault(path: Path, data: bytes, detail: str) -> str:
    """What is wrong with a CSV file that polars refused: the first line of another width, where that is the cause."""
    lines = _filled_records(data)
    width = _width(next(lines, (1, b""))[1])
    for line_number, line in lines:
        if line.count(b'"') % 2:
            return f"{path}, line {line_number}: a quoted field begins and does not end"
        if _width(line) != width:
            return f"{path}, line {line_number}: {_width(line)} fields, the header has {width}"
    return f"{path}: not a CSV file ({detail.splitlines()[0] if detail else 'damaged'})"


def _width(record: bytes) -> int:
    """Fields of a record: commas within quotes part none."""
    outside = b"".join(record.split(b'"')[::2])
    return outside.count(b",") + 1
