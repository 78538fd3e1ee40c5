"""The store of the runs of sweeps and studies: one record each, safe with many writers and with any of them killed.

A record appears complete under a file name made of its key. Reading gathers loose records into segments, whose names
are made of their contents. A record is removed from its old place only after it can be found at the new one. So a
process that is killed loses nothing, and a concurrent reader finds every record at least once; keys remove duplicates.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from framework.cli.files import write_whole
from framework.cli.reading import parquet_of, parsed_json
from framework.cli.shapes import record_of, texts_of
from framework.errors import InputError, shown

UNSTAMPED = "0.1"  # the version of records that state none
_LOOSE = 64  # loose records that are left ungathered
_MOST_RECORDS = 10**8
_SEGMENTS = 8  # segments that are left unmerged
_COLUMNS = {"key": pl.String, "config": pl.String, "choices": pl.String, "summary": pl.String, "value": pl.Float64}
_PACKED = ("config", "choices", "summary")  # JSON in a cell of a segment


@dataclass(frozen=True)
class Record:
    """One run: its flat settings, the option of each config group, its summary, its objective's value."""

    key: str
    config: dict[str, Any]
    choices: dict[str, str]
    summary: dict[str, Any]
    value: float

    @property
    def version(self) -> str:
        """The version of the project that made it; records state it since 0.2."""
        return str(self.summary.get("versions", {}).get("servelab", UNSTAMPED))


class Store:
    """The records below a directory, which may not exist yet. Raises InputError for what cannot be read or written."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def get(self, key: str) -> Record | None:
        """The record of that key, None if there is none."""
        with suppress(
            FileNotFoundError
        ):  # a record that another process gathers now is in a segment before its own file is deleted
            return read_loose(self._loose_path(key))
        for segment in self._segments():
            try:
                rows = _frame(segment).filter(pl.col("key") == key)
            except FileNotFoundError:  # another process has merged it
                return self.get(key)
            if len(rows):
                return _records(segment, rows)[0]
        return None

    def put(self, record: Record) -> None:
        """Keep a record; it replaces one with the same key."""
        write_whole(self._loose_path(record.key), (json.dumps(asdict(record)) + "\n").encode())

    def read(self) -> list[Record]:
        """All records by key, each once; many loose ones are gathered into a segment."""
        while True:
            try:
                loose = {path: read_loose(path) for path in self._loose()}
                segments = {path: _frame(path) for path in self._segments()}
            except FileNotFoundError:  # another process has gathered a listed file: its records are in a new segment
                continue
            if list(segments) == self._segments():
                break
        kept = [record for path, frame in segments.items() for record in _records(path, frame)]
        if len(loose) > _LOOSE:
            self._gather(list(loose.values()), list(loose))
        if len(segments) > _SEGMENTS:
            self._gather(kept, list(segments))
        found = {record.key: record for record in (*kept, *loose.values())}
        return [found[key] for key in sorted(found)]

    def remove(self, keys: Collection[str]) -> None:
        """Drop the records of these keys; records that other processes add at the same time stay."""
        for key in keys:
            self._loose_path(key).unlink(missing_ok=True)
        for segment in self._segments():
            try:
                rows = _frame(segment)
            except FileNotFoundError:  # another process has merged it
                self.remove(keys)
                return
            left = rows.filter(~pl.col("key").is_in(list(keys)))
            if len(left) < len(rows):
                if len(left):
                    self._write_segment(left)
                segment.unlink(missing_ok=True)

    def _gather(self, records: Sequence[Record], sources: Sequence[Path]) -> None:
        """Write a segment of `records`, then remove the files that they came from."""
        rows = {record.key: [_cell(getattr(record, name)) for name in _COLUMNS] for record in records}
        target = self._write_segment(pl.DataFrame(list(rows.values()), schema=_COLUMNS, orient="row").sort("key"))
        for source in sources:
            if source != target:
                source.unlink(missing_ok=True)

    def _write_segment(self, frame: pl.DataFrame) -> Path:
        content = io.BytesIO()
        frame.write_parquet(content)
        name = hashlib.sha256(content.getvalue()).hexdigest()[:32]
        target = self.directory / "segments" / f"{name}.parquet"
        write_whole(target, content.getvalue())
        return target

    def _loose_path(self, key: str) -> Path:
        return self.directory / "records" / f"{key}.json"

    def files(self) -> tuple[list[Path], list[Path]]:
        """The files that hold records now: of one each (`read_loose`), of many (`read_segment`)."""
        return self._loose(), self._segments()

    def _loose(self) -> list[Path]:
        return sorted((self.directory / "records").glob("[!.]*.json"))

    def _segments(self) -> list[Path]:
        return sorted((self.directory / "segments").glob("[!.]*.parquet"))


def read_loose(path: Path) -> Record:
    """The record in a file of one. Raises InputError for a damaged one, FileNotFoundError if it was gathered."""
    try:
        record = _checked(parsed_json(path.read_bytes()))
    except (ValueError, InputError) as error:
        raise _damaged(path, error) from error
    if record.key != path.stem:
        raise _damaged(path, InputError(f"its key is {shown(record.key)}"))
    return record


def read_segment(path: Path) -> list[Record]:
    """The records in a file of many. Raises the errors of `read_loose`."""
    return _records(path, _read_frame(path))


@functools.lru_cache(maxsize=2 * _SEGMENTS)  # its name is made of its contents: it never changes
def _frame(segment: Path) -> pl.DataFrame:
    return _read_frame(segment)


def _read_frame(segment: Path) -> pl.DataFrame:
    try:
        frame = parquet_of(segment.read_bytes(), _MOST_RECORDS).select(*_COLUMNS)
        if dict(frame.schema) != _COLUMNS or frame.select(pl.any_horizontal(pl.all().is_null()).any()).item():
            raise InputError("columns of other types, or empty cells")
        return frame
    except FileNotFoundError:
        raise
    except (pl.exceptions.PolarsError, OSError, ValueError, InputError) as error:
        raise _damaged(segment, error) from error


def _records(segment: Path, rows: pl.DataFrame) -> list[Record]:
    """The records in rows of a segment."""
    try:
        return [
            _checked({name: parsed_json(cell) if name in _PACKED else cell for name, cell in row.items()})
            for row in rows.iter_rows(named=True)
        ]
    except (ValueError, InputError) as error:
        raise _damaged(segment, error) from error


def _checked(content: Any) -> Record:
    """The record that was read. Raises InputError if it is none."""
    known = record_of("it", content, _COLUMNS)
    for name in ("config", "summary"):
        record_of(name, known[name], (), known[name] if isinstance(known[name], dict) else ())
    texts_of("summary.versions", known["summary"].get("versions", {}))
    texts_of("choices", known["choices"])
    if not isinstance(known["value"], float | int) or isinstance(known["value"], bool):
        raise InputError(f"value must be a number, got {shown(known['value'])}")
    return Record(**known | {"value": float(known["value"])})


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: not a record of runs ({' '.join(str(error).split())}); remove it")
