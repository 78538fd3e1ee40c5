"""Tables read from files; bad rows are left out and counted, with the line of the first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import polars as pl

from framework.checks import MOST_S
from framework.cli.reading import read_file
from framework.errors import InputError
from traces.parsing.how import DATE
from traces.parsing.left_out import Count
from traces.parsing.units import FEW, likely_unit
from traces.settings import MAX_TOKENS

_MANY = 0.25  # share of all times: if as many are far off, the unit is the cause
_BEGINNING = 1 << 16  # bytes, more than the header of a CSV
Check = tuple[pl.Expr, str]  # true for a bad row; the reason, with `{column}` for its values


@dataclass(frozen=True)
class Table:
    """Rows of a file. `place(row)` is the place of a row in it, `line 5`.

    `left`: columns of the file that were left out. `bad`: records that are no rows, with what is wrong with the first.
    `dates`: columns of dates and times, here as ticks.
    """

    path: Path
    frame: pl.DataFrame
    place: Callable[[int], str]
    left: tuple[str, ...] = ()
    bad: int = 0
    first: str = ""
    dates: frozenset[str] = frozenset()

    def sifted(self, checks: Sequence[Check], tokens: Sequence[str], count: Count) -> pl.DataFrame:
        """The rows that are good by every check and have no 0 among their `tokens`; the others are counted.

        A check that gives null counts as bad.
        """
        count.records += self.frame.height + self.bad
        if self.bad:
            count.add_bad(self.first, self.bad)
        is_empty = pl.any_horizontal(pl.col(column) == 0 for column in tokens).fill_null(False)
        flags = [(bad.fill_null(True) & ~is_empty).alias(str(index)) for index, (bad, _) in enumerate(checks)]
        marked = self.frame.select(*flags, is_empty.alias("empty"))
        is_bad = marked.select(pl.any_horizontal(pl.exclude("empty"))).to_series()
        if is_bad.any() and (row := is_bad.arg_max()) is not None:
            index = next(index for index in range(len(checks)) if marked[str(index)][row])
            reason = checks[index][1].format_map(self.frame.row(row, named=True))
            count.add_bad(f"{self.path}, {self.place(row)}: {reason}", int(is_bad.sum()))
        count.empty += int(marked["empty"].sum())
        return self.frame.filter(~is_bad & ~marked["empty"])


def number(column: str, least: float, most: float = math.inf) -> list[Check]:
    """Checks that a float column holds finite numbers from `least` to `most`."""
    value = pl.col(column)
    return [
        (value.is_null(), f"{column} is missing or not a number"),
        (~value.is_finite(), f"{column} is {{{column}}}, must be finite"),
        (value < least, f"{column} is {{{column}:g}}, must be at least {least:g}"),
        (value > most, f"{column} is {{{column}:g}}, must be at most {most:g}"),
    ]


def ticks(times: pl.Series, clock: tuple[str, float]) -> list[Check]:
    """Checks that a column of floats holds times from 0 on, of a unit with that many ticks per second, none far off."""
    is_far, reason = far_off(times, clock, "set trace.unit=")
    return [*number(times.name, 0), (pl.lit(is_far), f"{times.name} is {{{times.name}:g}}, {reason}")]


def far_off(times: pl.Series, clock: tuple[str, float], advice: str, first: float = 0.0) -> tuple[pl.Series, str]:
    """Which times, counted from `first`, lie decades from the median, and the words for it, with the unit if many do.

    One wrong time, such as 0 among times since 1970, leaves the others as they are.
    """
    unit, ticks_per_s = clock
    known = times.filter(times.is_finite().fill_null(False))
    apart = (times - float(known.median() or 0.0)).abs()  # type: ignore[arg-type]
    is_far = (apart > MOST_S / 2 * ticks_per_s).fill_null(False)
    reason = f"more than {MOST_S / 2:g} s from the median of all"
    if unit == DATE:
        return is_far, reason
    if is_far.sum() > _MANY * len(times):
        span = float(known.max() or 0.0) - float(known.min() or 0.0)  # type: ignore[arg-type]
        better = likely_unit(first + float(known.min() or 0.0), span, max(len(known), FEW), but=unit)  # type: ignore[arg-type]
        reason += f"; if it is not in {unit}, {advice}{better}" if better else f"; is it in {unit}?"
    return is_far, reason


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


def beginning(path: Path) -> bytes:
    """The first bytes of a file, without byte order mark. Raises InputError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_BEGINNING).removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def filled_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number."""
    return ((index, line) for index, line in enumerate(data.split(b"\n"), start=1) if line.strip())


def nth(records: Iterator[tuple[int, bytes]], place: int) -> int:
    """The line of the record at `place`, counted from 0; of the last one if there are fewer. There is at least one."""
    return [line for line, _ in islice(records, place + 1)][-1]


def at(frame: pl.DataFrame, place: str) -> pl.Series | None:
    """The column at a place, `usage.prompt_tokens` within an object of that name; None if there is none."""
    if place in frame.columns:
        return frame[place]
    first, *others = place.split(".")
    column = frame[first] if first in frame.columns else None
    for other in others:
        is_there = column is not None and isinstance(column.dtype, pl.Struct) and other in column.struct.fields
        column = column.struct.field(other) if is_there and column is not None else None
    return column
