"""The table that a measurement fills: a user's CSV of kernel times, and a journal that survives an interruption.

Rows are appended to `<out>.part` as they are measured and flushed one by one. `finish` writes all of them, sorted, to
`<out>` under a temporary name, renames it and removes the journal. So a reader of `<out>` sees a whole table, and a
killed measurement continues where it stopped: the last line of the journal may be torn and is then measured again. Rows
outside the schema of kernel tables, such as calls that mix a chunk with decodes, go to `<stem>.steps.csv`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from framework.cli.files import write_whole
from framework.errors import InputError
from framework.timing.kernels.table import OPERATIONS
from framework.timing.microbench.cases import KEYS, NAMED, Case, Identity
from framework.timing.microbench.device import Measured

_LONGEST = "longest"
_KEY_COLUMNS = tuple(dict.fromkeys([*(name for keys in KEYS.values() for name in keys), _LONGEST]))
_ORIGIN = ("gpu", "backend", "version", "licence")
COLUMNS = ("op", *_KEY_COLUMNS, "latency_us", "spread_us", "kernel", *_ORIGIN)
_US = 1e6


@dataclass(frozen=True)
class Origin:
    """What all rows of one table have in common."""

    gpu: str
    version: str
    licence: str
    backend: str = "torch"


class Table:
    """The rows of the table at `path` and of its journal.

    Raises InputError for files that cannot be read, and for those of another origin.
    """

    def __init__(self, path: Path, origin: Origin) -> None:
        self._path = path
        self._origin = origin
        self._journal_path = path.with_name(path.name + ".part")
        self._steps_path = path.with_name(f"{path.stem}.steps{path.suffix}")
        self._rows: dict[Identity, dict[str, str]] = {}
        for file in (path, self._steps_path, self._journal_path):
            self._take(file, _read(file, torn=file == self._journal_path))
        self._journal = self._begin_journal()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, case: Case) -> bool:
        return case.identity in self._rows

    def add(self, case: Case, measured: Measured) -> None:
        """Add a row, which is in the journal on disk when this returns."""
        row = {
            "op": case.operation,
            **{name: str(value) for name, value in case.key},
            "latency_us": f"{measured.latency_s * _US:.6g}",
            "spread_us": f"{measured.spread_s * _US:.3g}",
            "kernel": measured.kernel,
            **{name: getattr(self._origin, name) for name in _ORIGIN},
        }
        self._rows[case.identity] = row
        self._journal.write(_text([row]))
        self._journal.flush()

    def finish(self) -> list[Path]:
        """Write the table and the files next to it, remove the journal, and return the files that were written."""
        self._journal.close()
        rows = [self._rows[identity] for identity in sorted(self._rows, key=_order)]
        parts = {
            self._path: [row for row in rows if row["op"] in OPERATIONS],
            self._steps_path: [row for row in rows if row["op"] not in OPERATIONS],
        }
        written = [path for path, part in parts.items() if part]
        for path in written:
            write_whole(path, _text([dict(zip(COLUMNS, COLUMNS, strict=True)), *parts[path]]).encode())
        self._journal_path.unlink(missing_ok=True)
        return written

    def _take(self, file: Path, rows: Iterable[tuple[int, dict[str, str]]]) -> None:
        for number, row in rows:
            where = f"{file} line {number}"
            for name in ("gpu", "backend", "version"):
                wanted = getattr(self._origin, name)
                if row[name] != wanted:
                    raise InputError(
                        f"{where}: measured with {name} {row[name]}, this machine has {wanted}; choose another out="
                    )
            self._rows[_identity(where, row)] = row

    def _begin_journal(self) -> IO[str]:
        """The journal with the rows already in it, without torn ends, open for more."""
        known = [row for _, row in _read(self._journal_path, torn=True)]
        write_whole(self._journal_path, _text([dict(zip(COLUMNS, COLUMNS, strict=True)), *known]).encode())
        return open(self._journal_path, "a", encoding="utf-8", newline="")


def _text(rows: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue()


def _read(path: Path, *, torn: bool) -> list[tuple[int, dict[str, str]]]:
    """Line numbers and rows of a file, none if there is no file; with `torn`, without an unfinished last line."""
    if not path.exists():
        return []
    try:
        text = path.read_bytes().decode("utf-8", errors="replace" if torn else "strict")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); choose another out=") from error
    lines = text.splitlines()
    if torn and not text.endswith("\n"):
        lines = lines[:-1]
    if not lines:
        return []
    header, *rows = csv.reader(lines)
    if tuple(header) != COLUMNS:
        raise InputError(f"{path} line 1: not the columns of a measurement of this version; choose another out=")
    for number, row in enumerate(rows, 2):
        if len(row) != len(COLUMNS):
            raise InputError(f"{path} line {number}: {len(row)} values for {len(COLUMNS)} columns; remove the line")
    return [(number, dict(zip(COLUMNS, row, strict=True))) for number, row in enumerate(rows, 2)]


def _identity(where: str, row: Mapping[str, str]) -> Identity:
    """`Case.identity` of a row."""
    operation = row["op"]
    if operation not in KEYS:
        raise InputError(f"{where}: unknown op {operation!r}; remove the line")
    names = [*KEYS[operation], *([_LONGEST] if row[_LONGEST] else [])]
    try:
        key = tuple((name, row[name] if name in NAMED else int(row[name])) for name in names)
        latency_us = float(row["latency_us"])
    except ValueError as error:
        raise InputError(f"{where}: {error}; remove the line") from None
    if not (math.isfinite(latency_us) and latency_us > 0):
        raise InputError(f"{where}: latency_us must be above 0, got {row['latency_us']}; remove the line")
    return operation, key


def _order(identity: Identity) -> tuple[int, tuple[str | int, ...]]:
    operation, key = identity
    return list(KEYS).index(operation), tuple(value for _, value in key)
