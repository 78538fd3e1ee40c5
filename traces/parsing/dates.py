"""Dates and times in the forms of people and tools, read as nanoseconds since 1970 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl

_YEARS = (1970, 2200)  # nanoseconds in 64 bits reach from 1677 to 2262
_FORMS = (  # forms tried after `_plain`
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f %#z",
    "%Y/%m/%d %H:%M:%S%.f",
    "%d/%b/%Y:%H:%M:%S",  # the form of web servers
    "%d/%b/%Y:%H:%M:%S %z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M%#z",
    "%Y%m%d %H%M%S%.f",
    "%Y%m%d %H%M%S%.f%#z",
    "%a, %d %b %Y %H:%M:%S",  # the form of HTTP
    "%Y-%m-%d %I:%M:%S %p",
)
EXAMPLE = "2026-01-31T13:00:00.5Z"


def instant_s(text: str) -> float | None:
    """Seconds since 1970 of one date and time, in UTC unless it states a zone; None if it is none."""
    try:
        date = datetime.fromisoformat(text.strip())
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def since_1970_ns(column: pl.Series) -> pl.Series:
    """Nanoseconds since 1970 of dates and times, in UTC unless they state a zone; null for anything else.

    Each text is read by the first form that fits it, so one column may have several forms.
    """
    if column.dtype in (pl.Date, pl.Datetime):
        return _in_reach(column.cast(pl.Datetime("us"), strict=False), column.cast(pl.Datetime("ns"), strict=False))
    found = pl.Series(column.name, [None], pl.Int64).new_from_index(0, len(column))
    if column.dtype != pl.String:
        return found
    texts = _plain(column)
    for form in _FORMS:
        is_open = found.is_null() & texts.is_not_null()
        if not is_open.any():
            break
        rest = texts.filter(is_open)
        coarse, exact = (rest.str.to_datetime(form, time_unit=unit, strict=False) for unit in ("us", "ns"))
        instants = _in_reach(coarse, exact)
        found = instants if len(rest) == len(found) else found.scatter(is_open.arg_true(), instants)
    return found


def _plain(texts: pl.Series) -> pl.Series:
    """The texts with a blank between date and time, a point before fractions, and without the word UTC."""
    texts = texts.str.strip_chars().str.replace(r"^([0-9-]+)T", "$1 ").str.replace(r"(:\d\d),(\d)", "$1.$2")
    return texts.str.replace(r" ?(Z|UTC|GMT|[+]00(:?00)?)$", "")


def _in_reach(coarse: pl.Series, exact: pl.Series) -> pl.Series:
    is_near = coarse.dt.year().is_between(*_YEARS).fill_null(False)
    return exact.dt.timestamp("ns").set(~is_near, None)
