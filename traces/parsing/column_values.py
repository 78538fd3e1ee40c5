"""Values of a table's columns, of any type, as columns of `traces.frame`: null for invalid values."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traces.frame import OPTIONAL
from traces.parsing.dates import since_1970_ns

_EXACT = 2**53  # whole numbers up to here are exact as floats
_WIDEST = 2**62  # ticks between two arrivals, so that their difference fits 64 bits
_TEXTS = ("slo_class", "tenant")
_KINDS = {pl.Struct: "an object, whose parts are named as OBJECT.PART", pl.List: "a list", pl.Boolean: "true or false"}
_MEANT = {**dict.fromkeys(_TEXTS, "a text"), "hash_ids": "a list of whole numbers or names"}


def times(column: pl.Series, ticks_per_s: float = 1.0) -> tuple[pl.Series, float, bool]:
    """Numbers of ticks from a first one, or seconds of dates and times; the first; whether it has dates.

    Durations become ticks. Whole numbers count from the least of them: nanoseconds since 1970 are too large for a
    float.
    """
    if column.dtype in (pl.Date, pl.Datetime):
        return _since_first(since_1970_ns(column))
    if column.dtype == pl.Duration:
        return column.dt.total_nanoseconds() * (ticks_per_s / 1e9), 0.0, False
    texts = _stripped(column)
    ticks = numbers(column)
    if texts.dtype == pl.String or texts.dtype.is_integer():
        whole = texts.cast(pl.Int64, strict=False)
        is_whole = whole.null_count() < len(whole) and whole.null_count() == ticks.null_count()
        if is_whole and int(whole.max()) - int(whole.min()) < _WIDEST:  # type: ignore[arg-type]
            least = int(whole.min())  # type: ignore[arg-type]
            return (whole - least).cast(pl.Float64), float(least), False
    if column.dtype == pl.String and ticks.null_count() == len(ticks):
        dates = since_1970_ns(texts)
        if dates.null_count() < len(dates):
            return _since_first(dates)
    return ticks, 0.0, False


def _since_first(dates_ns: pl.Series) -> tuple[pl.Series, float, bool]:
    least = int(dates_ns.min() or 0)  # type: ignore[arg-type]
    return ((dates_ns - least) / 1e9).alias(dates_ns.name), least / 1e9, True


def spans(column: pl.Series, ticks_per_s: float) -> pl.Series:
    """Seconds of spans of time, numbers of ticks or durations; null for invalid ones."""
    if column.dtype == pl.Duration:
        return (column.dt.total_microseconds() / 1e6).alias(column.name)
    seconds = numbers(column) / ticks_per_s
    return seconds.set(seconds.is_finite().not_(), None)


def numbers(column: pl.Series) -> pl.Series:
    """Floats, also from texts."""
    if column.dtype.is_numeric() or column.dtype == pl.String:
        return _stripped(column).cast(pl.Float64, strict=False)
    return _nulls(column, pl.Float64())


def values(name: str, column: pl.Series) -> pl.Series:
    """The column `name` of `traces.frame`, an optional one."""
    if name in _TEXTS:
        return _nulls(column, pl.String()) if column.dtype.is_nested() else column.cast(pl.String, strict=False)
    if name == "hash_ids":
        return _lists(column)
    if name == "session_id" and column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return _stripped(column.cast(pl.String)).rank("dense").cast(pl.Int64)  # names: any numbers distinguish them
    return _whole(column)


def is_lost(column: pl.Series, found: pl.Series) -> pl.Series:
    """Which rows of a column hold something that `values` could not use."""
    is_blank = _stripped(column).is_null()
    return ~is_blank & found.is_null()


def meant(name: str) -> str:
    """The required form of a value of the column `name`, as text."""
    return _MEANT.get(name, "a finite number" if name.startswith(("think_", "duration_", "end_")) else "a whole number")


def _whole(column: pl.Series) -> pl.Series:
    if column.dtype.is_integer():
        return column.cast(pl.Int64, strict=False)
    floats = numbers(column)
    is_whole = floats.is_finite() & (floats == floats.floor()) & (floats.abs() <= _EXACT)
    return floats.set(~is_whole, None).cast(pl.Int64)


def _lists(column: pl.Series) -> pl.Series:
    """Lists of signed 64-bit numbers, from whole numbers or names; null if one of them is null. A text is the list of
    its parts between blanks, commas and the like.
    """
    if column.dtype == pl.String:
        column = _stripped(column).str.extract_all(r"[0-9A-Za-z_+-]+")
    inner = column.dtype.inner if isinstance(column.dtype, pl.List) else None
    if inner == pl.UInt64:  # the same bits with a sign
        column = pl.select(pl.lit(column).list.eval(pl.element().reinterpret(signed=True))).to_series()
    elif inner in (pl.String, pl.Categorical, pl.Enum, pl.Int128):  # numbers too long for 64 bits are names
        names = pl.element().cast(pl.String).cast(pl.Categorical).to_physical()
        column = pl.select(pl.lit(column).list.eval(names)).to_series()
    elif inner is None or not (inner == pl.Null or inner.is_integer()):
        return _nulls(column, OPTIONAL["hash_ids"])
    lists = column.cast(pl.List(pl.Int64), strict=False)
    has_null = lists.list.eval(pl.element().is_null()).list.any().fill_null(True)
    return pl.select(pl.when(~has_null).then(lists).alias(column.name)).to_series()


def summed(columns: Sequence[pl.Series]) -> pl.Series:
    """The sum of columns of numbers; null if the first is, missing values of others count as 0."""
    first, *others = (numbers(column) for column in columns)
    return sum((other.fill_null(0.0) for other in others), first)


def as_text(column: pl.Series) -> pl.Series:
    """Values as they would be shown, null if there is none."""
    if column.dtype.is_numeric() or column.dtype in (pl.String, pl.Date, pl.Datetime):
        return _stripped(column.cast(pl.String, strict=False))
    kind = pl.when(pl.lit(column).is_not_null()).then(pl.lit(_KINDS.get(type(column.dtype), "of another type")))
    return pl.select(kind.alias(column.name)).to_series()


def _stripped(column: pl.Series) -> pl.Series:
    """Texts without surrounding blanks, null if nothing is left."""
    if column.dtype != pl.String:
        return column
    texts = column.str.strip_chars()
    return texts.set(texts == "", None)


def _nulls(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    return pl.Series(column.name, [None] * len(column), dtype)
