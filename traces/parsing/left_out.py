"""Counts of a file's records that a trace leaves out: unreadable, failed, or without tokens."""

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
    """Why a readable record is left out; SILENT: it is not one of the measured requests."""

    FAILED = "failed"
    EMPTY = "have 0 tokens"
    UNCOUNTED = "do not say their tokens"
    SILENT = ""


@dataclass
class Count:
    """The number of records of a file, and of those left out. `first`: what is wrong with the first bad one."""

    path: Path
    records: int = 0
    bad: int = 0
    failed: int = 0
    empty: int = 0
    uncounted: int = 0
    first: str = ""

    def add_bad(self, reason: str, count: int = 1) -> None:
        """Count unreadable records."""
        self.bad += count
        self.first = self.first or reason

    def add(self, why: Left) -> None:
        """Count a record that is left out for another reason."""
        self.failed += why is Left.FAILED
        self.empty += why is Left.EMPTY
        self.uncounted += why is Left.UNCOUNTED
        self.records -= why is Left.SILENT

    def notes(self, how: How) -> tuple[str, ...]:
        """What to report of it. Raises InputError if more records are bad than `how` allows, or none is left."""
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
    """The results of `parse` for each record (its place, the record); the others are counted.

    A record that is an InputError itself, or for which `parse` raises one, is unreadable.
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
