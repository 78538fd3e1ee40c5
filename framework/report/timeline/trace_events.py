"""Events of the Chrome trace format as text, singly and by column."""

from __future__ import annotations

import json

import polars as pl


def event(**fields: object) -> str:
    """One event, of the fields of the format."""
    return json.dumps(fields, separators=(",", ":"))


def filled(form: str, *values: pl.Expr | str) -> pl.Expr:
    """`form` with its placeholders filled, one event a row; other braces stay as they are."""
    parts = form.split("{}")
    columns = [pl.col(value) if isinstance(value, str) else value for value in values]
    pieces: list[pl.Expr] = [pl.lit(parts[0])]
    for column, part in zip(columns, parts[1:], strict=True):
        pieces += [column.cast(pl.String), pl.lit(part)]
    return pl.concat_str(pieces).alias("event")


def us(column: str) -> pl.Expr:
    """Nanoseconds as decimal microseconds."""
    whole, rest = pl.col(column) // 1000, pl.col(column) % 1000
    return pl.concat_str([whole.cast(pl.String), pl.lit("."), rest.cast(pl.String).str.zfill(3)])


def thread_name(process: int, number: int, name: str) -> str:
    """The name of a thread of a process."""
    return event(name="thread_name", ph="M", pid=process, tid=number, args={"name": name})
