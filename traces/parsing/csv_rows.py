"""Tables in CSV files, whole or part by part."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from framework.cli.reading import is_packed
from framework.cli.safe_text import one_line
from framework.errors import InputError
from traces.parsing.rows import Table, filled_lines, nth, read_bytes

_PART_BYTES = 1 << 24
_NO_NAME = re.compile(r"(_duplicated_\d+)?")  # polars numbers several columns without a name


@dataclass(frozen=True)
class Part:
    """Records of a CSV below its header; `skipped` lines of the file are between the two."""

    data: bytes
    skipped: int = 0


def csv_parts(path: Path, size: int = _PART_BYTES) -> Iterator[Part]:
    """A CSV of any length part by part, each with the header. A field in quotes must hold no line ends."""
    if path.stat().st_size <= size or is_packed(path):
        yield Part(read_bytes(path))
        return
    with path.open("rb") as file:
        header = file.readline().removeprefix(b"\xef\xbb\xbf")
        skipped = 0
        while data := file.read(size):
            data += file.readline()
            yield Part(header + data, skipped)
            skipped += data.count(b"\n")


def read_csv(path: Path, numbers: Sequence[str], texts: Sequence[str] = (), part: Part | None = None) -> Table:
    """A CSV file with a header line, or a part of it; `numbers` become floats (null if they are not), `texts` stay
    strings.
    """
    wanted = (*texts, *numbers)
    table = csv_texts(path, part or Part(read_bytes(path)), wanted)
    if lost := [column for column in wanted if column not in table.frame.columns]:
        raise InputError(f"{path}: no column {', '.join(lost)}; the header is {_few(table.frame.columns)}")
    if table.frame.is_empty():
        raise InputError(f"{path}: the trace file has a header and no rows")
    floats = [pl.col(column).str.strip_chars().cast(pl.Float64, strict=False) for column in numbers]
    left = tuple(column for column in table.frame.columns if column not in wanted)
    return replace(table, frame=table.frame.select(*texts, *floats), left=left)


def csv_texts(path: Path, part: Part, wanted: Sequence[str]) -> Table:
    """All columns of a CSV as texts. Raises InputError if a wanted one occurs twice."""
    data = part.data if b"\n" in part.data else part.data.replace(b"\r", b"\n")
    by = separator(data)
    lines: tuple[int, ...] | None = None
    bad, first = 0, ""
    try:
        raw = pl.read_csv(_plain(data), infer_schema=False, separator=by)
        if raw.select(pl.all_horizontal(pl.all().is_null()).any()).item():  # blank lines: rows of nulls to polars
            data_lines = b"\n".join(line for _, line in filled_lines(data))
            raw = pl.read_csv(_plain(data_lines), infer_schema=False, separator=by)
    except (PolarsError, OSError, UnicodeDecodeError) as error:
        good, bad, first = _of_one_width(path, data, str(error))
        lines = tuple(line for line, _ in good)
        try:
            records = b"\n".join(record for _, record in good)
            raw = pl.read_csv(_plain(records), infer_schema=False, separator=by)
        except (PolarsError, OSError, UnicodeDecodeError):
            raise InputError(first) from None
    if by == ";":  # A comma may precede fractions there.
        raw = raw.with_columns(pl.all().str.replace(r"^\s*(-?\d+),(\d+)\s*$", "$1.$2"))
    names = _names(raw.columns)
    if len(set(names.values())) < len(names):
        raise InputError(f"{path}: a column stands twice in the header, but for blanks around it")
    raw = raw.rename(names)
    if twice := [column for column in wanted if f"{column}_duplicated_0" in raw.columns]:
        raise InputError(f"{path}: column {twice[0]} stands twice in the header")

    def place(row: int) -> str:
        line = nth(_filled_records(data), row + 1) if lines is None else lines[row + 1]
        return f"line {part.skipped + line}"

    return Table(path, raw, place, bad=bad, first=first)


def separator(data: bytes) -> str:
    """The separator of a CSV's fields: the one in its header, a comma if there is none."""
    header = b"".join(data.lstrip().split(b"\n", 1)[0].split(b'"')[::2])
    return next((one for one in ",;\t|" if one.encode() in header), ",")


def header_names(data: bytes) -> list[str]:
    """The names in the header of a CSV."""
    header = data.lstrip().split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    try:
        return [name.strip() for name in next(csv.reader([header], delimiter=separator(data)), [])]
    except csv.Error:
        return []


def _names(columns: Sequence[str]) -> dict[str, str]:
    """The names without surrounding blanks; a column without one, such as an index, is named by its place."""
    return {
        name: f"(column {place}, no name)" if _NO_NAME.fullmatch(name.strip()) else name.strip()
        for place, name in enumerate(columns, start=1)
    }


def _of_one_width(path: Path, data: bytes, detail: str) -> tuple[list[tuple[int, bytes]], int, str]:
    """The header and the records of its width, with their lines; the number of other records, and what is wrong with
    the first.

    Raises InputError if that is not why polars refused the file.
    """
    every, by = list(_filled_records(data)), separator(data)
    width = _width(by, every[0][1]) if every else 0
    good = [(line, record) for line, record in every if _width(by, record) == width and record.count(b'"') % 2 == 0]
    bad = len(every) - len(good)
    first = _csv_fault(path, data, detail)
    if not bad or len(good) < 2:
        raise InputError(first)
    return good, bad, first


def _plain(data: bytes) -> bytes:
    """The data in a form that polars takes for text: it would unpack some files itself, without a limit."""
    return b"\xef\xbb\xbf" + data


def _few(names: Sequence[str]) -> str:
    return one_line(", ".join(names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


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


def _csv_fault(path: Path, data: bytes, detail: str) -> str:
    """What is wrong with a CSV file that polars refused: the first line of another width, if that is the cause."""
    lines, by = _filled_records(data), separator(data)
    width = _width(by, next(lines, (1, b""))[1])
    for line_number, line in lines:
        if line.count(b'"') % 2:
            return f"{path}, line {line_number}: a quoted field begins and does not end"
        if _width(by, line) != width:
            return f"{path}, line {line_number}: {_width(by, line)} fields, the header has {width}"
    return f"{path}: not a CSV file ({detail.splitlines()[0] if detail else 'damaged'})"


def _width(by: str, record: bytes) -> int:
    """The number of fields of a record with the separator `by`, quotes respected."""
    outside = b"".join(record.split(b'"')[::2])
    return outside.count(by.encode()) + 1
