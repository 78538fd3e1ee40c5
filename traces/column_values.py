"""Values of a table's columns, whose types nobody promises, as columns of `traces.frame`: null where they cannot be."""

from __future__ import annotations

import polars as pl

from traces.frame import OPTIONAL

_DATES = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%d %H:%M:%S%.f%#z")
_EXACT = 2**53  # whole numbers up to here are the same as floats
_WIDEST = 2**62  # ticks between two arrivals, so that their difference is a number of 64 bits
_MEANT = {"think_s": "a finite number", "slo_class": "a text", "hash_ids": "a list of whole numbers"}


def times(column: pl.Series) -> tuple[pl.Series, bool]:
    """Numbers of ticks, or seconds since 1970 of dates and times; and whether it has dates.

    Whole numbers count from the least of them: those of nanoseconds since 1970 are too large for a float.
    """
    if column.dtype in (pl.Date, pl.Datetime):
        return (column.cast(pl.Datetime("us"), strict=False).dt.timestamp("us") / 1e6).alias(column.name), True
    texts = _stripped(column)
    if texts.dtype == pl.String or texts.dtype.is_integer():
        whole = texts.cast(pl.Int64, strict=False)
        if whole.null_count() == 0 and int(whole.max()) - int(whole.min()) < _WIDEST:  # type: ignore[arg-type]
            return (whole - whole.min()).cast(pl.Float64), False
    ticks = numbers(column)
    if column.dtype == pl.String and ticks.null_count() == len(ticks):
        for form in _DATES:
            dates = texts.str.replace(r"Z$", "+00:00").str.to_datetime(form, time_unit="us", strict=False)
            if dates.null_count() < len(dates):
                return (dates.dt.timestamp("us") / 1e6).alias(column.name), True
    return ticks, False


def numbers(column: pl.Series) -> pl.Series:
    """Floats, of texts too."""
    if column.dtype.is_numeric() or column.dtype == pl.String:
        return _stripped(column).cast(pl.Float64, strict=False)
    return _nulls(column, pl.Float64())


def values(name: str, column: pl.Series) -> pl.Series:
    """The column `name` of `traces.frame`, one of those that a trace may do without."""
    if name == "think_s":
        floats = numbers(column)
        return floats.set(floats.is_finite().not_(), None)
    if name == "slo_class":
        return _nulls(column, pl.String()) if column.dtype.is_nested() else column.cast(pl.String, strict=False)
    if name == "hash_ids":
        return _lists(column)
    found = _whole(column)
    if name == "session_id" and column.dtype == pl.String and is_lost(column, found).any():
        return _stripped(column).rank("dense").cast(pl.Int64)  # names: any numbers tell them apart
    return found


def is_lost(column: pl.Series, found: pl.Series) -> pl.Series:
    """Which rows of a column hold something of which `values` could make nothing."""
    is_blank = _stripped(column).is_null()
    return ~is_blank & found.is_null()


def meant(name: str) -> str:
    """What a value of the column `name` must be, in words."""
    return _MEANT.get(name, "a whole number")


def _whole(column: pl.Series) -> pl.Series:
    if column.dtype.is_integer():
        return column.cast(pl.Int64, strict=False)
    floats = numbers(column)
    is_whole = floats.is_finite() & (floats == floats.floor()) & (floats.abs() <= _EXACT)
    return floats.set(~is_whole, None).cast(pl.Int64)


def _lists(column: pl.Series) -> pl.Series:
    """Lists of whole numbers of 64 bits; null where one of them is none."""
    inner = column.dtype.inner if isinstance(column.dtype, pl.List) else None
    if inner is None or not (inner == pl.Null or inner.is_integer()):
        return _nulls(column, OPTIONAL["hash_ids"])
    lists = column.cast(pl.List(pl.Int64), strict=False)
    has_null = lists.list.eval(pl.element().is_null()).list.any().fill_null(True)
    return pl.select(pl.when(~has_null).then(lists).alias(column.name)).to_series()


def _stripped(column: pl.Series) -> pl.Series:
    """Texts without blanks around them, and null where nothing is left."""
    if column.dtype != pl.String:
        return column
    texts = column.str.strip_chars()
    return texts.set(texts == "", None)


def _nulls(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    return pl.Series(column.name, [None] * len(column), dtype)
