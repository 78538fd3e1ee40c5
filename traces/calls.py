"""What the calls of a frame wait for: turns of their sessions, by number, as rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.errors import InputError
from framework.workload.programs import TRIGGERS

MAX_THINK_S = 1e9
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Links:
    """Columns of a Workload of N requests: see there."""

    previous: Integers | None = None
    joins: Integers | None = None
    session_id: Integers | None = None
    trigger: NDArray[np.int8] | None = None


def links_of(frame: pl.DataFrame, name: str) -> Links:
    """The links of a trace's frame. A turn that names nothing waits for the turn before it in its session.

    Turns that are named and not there, because the trace was cut, are left out; a turn that names only such ones waits
    for the turn before it, too. Raises InputError, with the first request concerned, for a turn out of order, a turn
    that does not come before the one that waits for it (as in a circle), a later turn without `think_s`, and an
    unknown trigger.
    """
    trigger = _triggers(frame, name)
    if "session_id" not in frame.columns:
        if "wait_for" in frame.columns:
            raise InputError(f"trace {name}: wait_for needs the columns session_id and turn")
        return Links(trigger=trigger)
    if "think_s" not in frame.columns:
        raise InputError(f"trace {name}: session_id needs a column think_s (seconds between turns)")
    in_session = pl.col("session_id").is_not_null()
    turn = pl.col("turn") if "turn" in frame.columns else pl.lit(None, pl.Int64)
    rows = frame.with_row_index("row").select(
        before=pl.when(in_session).then(pl.col("row").shift(1).over("session_id")).cast(pl.Int64).fill_null(-1),
        disordered=in_session & (turn <= turn.shift(1).over("session_id")),
        think_s="think_s",
        session_id="session_id",
    )
    refuse(
        rows,
        rows["disordered"].fill_null(False),
        name,
        "its turn does not follow the turn before it in the order of arrival",
    )
    previous, joins = rows["before"].to_numpy().copy(), None
    if "wait_for" in frame.columns:
        named = awaited(frame, name).filter(pl.col("before").is_not_null())
        refuse(rows, _marked(named.filter(pl.col("before") >= pl.col("row")), len(rows)), name, _NOT_BEFORE)
        previous[frame["wait_for"].list.len().fill_null(1).to_numpy() == 0] = -1
        links = named.select("row", "before").unique(maintain_order=True)
        is_first = links["row"].is_first_distinct()
        first = links.filter(is_first)
        previous[first["row"].to_numpy()] = first["before"].to_numpy()
        further = links.filter(~is_first)
        joins = np.ascontiguousarray(further.to_numpy(), np.int64) if len(further) else None
    later = pl.Series(previous >= 0)
    refuse(
        rows,
        later & ~rows["think_s"].fill_null(-1.0).is_between(0, MAX_THINK_S),
        name,
        "a later turn needs think_s >= 0",
    )
    return Links(previous, joins, rows["session_id"].fill_null(-1).to_numpy(), trigger)


_DISORDERED = "its turn does not follow the turn before it in the order of arrival"
_NOT_BEFORE = "it waits for a turn that does not come before it: calls that wait for each other never begin"


def require_known(frame: pl.DataFrame, name: str) -> None:
    """Raise InputError for a turn of a file that waits for one that its session does not have."""
    if "wait_for" not in frame.columns or "session_id" not in frame.columns:
        return
    unknown = awaited(frame, name).filter(pl.col("before").is_null())
    if len(unknown):
        row, turn = unknown["row"][0], unknown["turn"][0]
        where = f"trace {name}, request {row} (session {frame['session_id'][row]})"
        raise InputError(f"{where}: it waits for turn {turn}, which its session does not have; wait_for names turns")


def awaited(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Each `turn` that a `row` names, in order, and the row `before` which has it in the session; null: none has.

    Raises InputError if turns of sessions have no numbers.
    """
    if "turn" not in frame.columns or frame.filter(pl.col("session_id").is_not_null())["turn"].has_nulls():
        raise InputError(f"trace {name}: wait_for names turns, so each call of a session needs a turn")
    rows = frame.with_row_index("row").select(pl.col("row").cast(pl.Int64), "session_id", "turn", "wait_for")
    rows = rows.filter(pl.col("session_id").is_not_null())
    named = rows.select("row", "session_id", turn="wait_for").explode("turn").drop_nulls("turn")
    known = rows.select("session_id", "turn", before="row").unique(["session_id", "turn"], keep="first")
    return named.join(known, on=["session_id", "turn"], how="left", maintain_order="left")


def refuse(rows: pl.DataFrame, bad: pl.Series, name: str, reason: str) -> None:
    """Raise InputError with the first of the rows that are bad, if any is."""
    first = bad.arg_max()
    if bad.any() and first is not None:
        raise InputError(f"trace {name}, request {first} (session {rows['session_id'][first]}): {reason}")


def _marked(named: pl.DataFrame, count: int) -> pl.Series:
    marks = np.zeros(count, np.bool_)
    marks[named["row"].to_numpy()] = True
    return pl.Series(marks)


def _triggers(frame: pl.DataFrame, name: str) -> NDArray[np.int8] | None:
    if "trigger" not in frame.columns:
        return None
    unknown = frame["trigger"].drop_nulls().filter(~frame["trigger"].drop_nulls().is_in(list(TRIGGERS)))
    if len(unknown):
        raise InputError(f"trace {name}: trigger is {unknown[0]!r}, must be one of {', '.join(TRIGGERS[1:])}, or null")
    numbers = frame["trigger"].fill_null("").replace_strict(list(TRIGGERS), range(len(TRIGGERS)), return_dtype=pl.Int8)
    return numbers.to_numpy()
