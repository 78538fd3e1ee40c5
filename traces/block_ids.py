"""Ids of the blocks of prompts: the lists of a frame's column as one array, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.workload import consecutive, dense

_ROWS = 5_000  # rows whose ids are compared at once

Ids = NDArray[np.integer[Any]]
Integers = NDArray[np.int64]


def list_column(values: NDArray[np.integer[Any]], offsets: NDArray[np.int64]) -> pl.Series:
    """A list column of N rows, row r holding values[offsets[r]:offsets[r + 1]]."""
    lengths = np.diff(offsets)
    filled = np.flatnonzero(lengths)
    rows = pl.DataFrame({"row": np.repeat(filled, lengths[filled]), "value": values})
    lists = rows.group_by("row", maintain_order=True).agg("value")
    if len(filled) == len(lengths):
        return lists["value"]
    every = pl.DataFrame({"row": np.arange(len(lengths))}).join(lists, on="row", how="left", maintain_order="left")
    return every["value"].fill_null([])


def flat_ids(lists: list[pl.Series], previous: Integers | None = None) -> tuple[Ids, Integers]:
    """All ids of a list column in one array, and the span (N, 2) of each row in it.

    `lists` are the column's chunks, which are taken out of it one by one, so only one copy is held. `previous` (N,) is
    the row of the previous turn, -1 for none: a turn whose ids are the beginning of its session's last turn has its
    span there.
    """
    counts = np.concatenate([chunk.list.len().fill_null(0).to_numpy() for chunk in lists]).astype(np.int64)
    last = np.arange(len(counts)) if previous is None else _last_turns(previous)
    is_last = last == np.arange(len(counts))
    spans = consecutive(np.where(is_last, counts, 0))
    flat = np.empty(spans[-1, 1], _kind(lists))
    if is_last.all():
        for ids, rows in _taken(lists):
            flat[spans[rows.start, 0] : spans[rows.stop - 1, 1]] = ids
        return dense(flat), spans
    for ids, rows in _taken(lists.copy()):
        flat[spans[rows.start, 0] : spans[rows.stop - 1, 1]] = ids[np.repeat(is_last[rows], counts[rows])]
    apart, end = [flat], len(flat)
    for ids, rows in _taken(lists):
        shares = is_last[rows] | _begin(flat, spans[last[rows]], ids, counts[rows])
        behind = end + consecutive(np.where(shares, 0, counts[rows]))
        begins = np.where(shares, spans[last[rows], 0], behind[:, 0])
        spans[rows] = np.stack((begins, begins + counts[rows]), axis=1)
        end = int(behind[-1, 1])
        if not shares.all():
            apart.append(ids[np.repeat(~shares, counts[rows])])
    return dense(np.concatenate(apart) if len(apart) > 1 else flat), spans


def _taken(lists: list[pl.Series]) -> Iterator[tuple[Ids, slice]]:
    """Take chunks out of `lists`; yields the ids of some rows, one after another, and which rows these are."""
    row = 0
    while lists:
        chunk = lists.pop(0)
        for part in (chunk.slice(at, _ROWS) for at in range(0, len(chunk), _ROWS)):
            ids: Ids = part.explode(empty_as_null=False, keep_nulls=False).to_numpy()
            yield ids, slice(row, row + len(part))
            row += len(part)


def _kind(lists: list[pl.Series]) -> type[np.int32 | np.int64]:
    ends: list[Any] = [end for chunk in lists for end in (chunk.list.min().min(), chunk.list.max().max())]
    fits = all(abs(end) <= np.iinfo(np.int32).max for end in ends if end is not None)
    return np.int32 if fits else np.int64


def _last_turns(previous: Integers) -> Integers:
    """The row of the last turn of each row's session, (N,)."""
    last = np.arange(len(previous))
    later = np.flatnonzero(previous >= 0)
    last[previous[later]] = later
    while not np.array_equal(further := last[last], last):
        last = further
    return last


def _begin(flat: Ids, spans: Integers, ids: Ids, counts: Integers) -> NDArray[np.bool_]:
    """Whether the next `counts` of `ids` are the first of those in `flat` at `spans`, row by row."""
    if not len(flat):
        return counts == 0
    row = np.repeat(np.arange(len(counts)), counts)
    place = spans[row, 0] + np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    differs = flat[np.minimum(place, len(flat) - 1)] != ids
    differ = np.bincount(row, weights=differs, minlength=len(counts))
    return (counts <= spans[:, 1] - spans[:, 0]) & (differ == 0)
