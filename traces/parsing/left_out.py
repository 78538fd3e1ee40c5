"""Records of a file that a trace does without, counted: those that cannot be read, that failed, or have no tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from framework.errors import InputError
from traces.parsing.how import How

T = TypeVar("T")


class Left(Enum):
    """Why a record that can be read is left out; SILENT: it is none of the requests that were measured."""

    FAILED = "failed"
    EMPTY = "have 0 tokens"
    UNCOUNTED = "do not say their tokens"
    SILENT = ""


@dataclass
class Count:
    """How many records a file has, and how many of them are left out. `first`: what is wrong with the first bad one."""

    path: Path
    records: int = 0
    bad: int = 0
    failed: int = 0
    empty: int = 0
    uncounted: int = 0
    first: str = ""

    def add_bad(self, reason: str, count: int = 1) -> None:
        """Count records that cannot be read."""
        self.bad += count
        self.first = self.first or reason

    def add(self, why: Left) -> None:
        """Count a record that is left out for another reason."""
        self.failed += why is Left.FAILED
        self.empty += why is Left.EMPTY
        self.uncounted += why is Left.UNCOUNTED
        self.records -= why is Left.SILENT

    def notes(self, how: How) -> tuple[str, ...]:
        """What to report of it. Raises InputError where more records are bad than `how` allows, or none is left."""
        if self.bad > how.bad_records * self.records:
            share = f"{self.bad:,} of {self.records:,} records cannot be read"
            raise InputError(f"{self.first} ({share}; trace.bad_records={how.bad_records:g} is the share that may be)")
        notes = []
        if self.failed:
            notes.append(f"{self.failed:,} of {self.records:,} requests failed; they are left out")
        if self.empty:
            notes.append(f"{self.empty:,} of {self.records:,} requests have 0 tokens; they are left out")
        if self.uncounted:
            notes.append(f"{self.uncounted:,} of {self.records:,} records have no usage; they are left out")
        if self.bad:
            first = self.first.removeprefix(f"{self.path}, ").removeprefix(f"{self.path}: ")
            notes.append(f"{self.bad:,} of {self.records:,} records cannot be read; they are left out (first: {first})")
        if self.bad + self.failed + self.empty + self.uncounted >= self.records:
            why = "; ".join(notes) if notes else "no record is a request"
            raise InputError(f"{self.path}: no request has finished ({why})")
        return tuple(notes)


def sifted(records: Iterable[tuple[str, Any]], parse: Callable[[str, Any], T | Left], count: Count) -> list[T]:
    """What `parse` makes of each record (where it stands, the record); the others are counted.

    A record that is an InputError itself, or for which `parse` raises one, cannot be read.
    """
    kept: list[T] = []
    for where, record in records:
        count.records += 1
        try:
            if isinstance(record, InputError):
                raise record
            one = parse(where, record)
        except InputError as error:
            count.add_bad(str(error))
            continue
        if isinstance(one, Left):
            count.add(one)
        else:
            kept.append(one)
    return kept
