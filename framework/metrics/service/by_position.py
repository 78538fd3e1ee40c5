"""Gaps between tokens by their position in the output: whether a request slows down as it generates more."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.metrics.phases import DecodeClock
from framework.result import FINISHED, Result

Floats = NDArray[np.float64]
_FIRST, _TIMES = 16, 4  # tokens of the first bucket, and the factor from one bucket's end to the next


def by_position(result: Result, clock: DecodeClock | None = None) -> list[dict[str, Any]] | None:
    """One entry for each bucket of positions that has gaps of completed requests, the first tokens first.

    Gap j of a request lies between its tokens j and j + 1. A bucket holds `gaps` gaps, from `from_token` to below
    `to_token`; `mean_itl_ms` is their mean. None if the step log was reduced, and with drafts, since the log does not
    say at which token each was accepted. `clock`: of the run's step log.
    """
    if result.engine.log != "full" or result.engine.speculation.most > 0:
        return None
    finished = result.requests["state"] == FINISHED
    rows = result.token_log[finished[result.token_log["request"]]]
    rows = rows[np.argsort(rows["request"], kind="stable")]
    clock = clock or DecodeClock(result.step_log)
    rows = _with_gaps(rows, clock)
    alone = rows["instance"] < 0
    counts = np.where(alone, 1, rows["last_step"] - rows["first_step"])
    before = _before(rows["request"], counts)
    longest = int((before + counts).max(initial=0))
    found = []
    for low, high in pairwise(_edges(longest)):
        # gaps of each row that lie in the bucket
        first, last = np.maximum(low, before + 1), np.minimum(high - 1, before + counts)
        own = first <= last
        total_s = rows["previous_token_s"][own & alone].sum() + _lasting_s(
            clock, rows, before, first, last, own & ~alone
        )
        gaps = int((last - first + 1)[own].sum())
        if gaps:
            found.append(
                {"from_token": low, "to_token": high, "gaps": gaps, "mean_itl_ms": 1e3 * float(total_s) / gaps}
            )
    return found


def _with_gaps(rows: NDArray[Any], clock: DecodeClock) -> NDArray[Any]:
    """The rows, without the first step of those whose first step gave token 1: no gap precedes token 1."""
    pending = np.isnan(rows["previous_token_s"])
    if not pending.any():
        return rows
    rows = rows.copy()
    own = rows[pending]
    rows["previous_token_s"][pending] = clock.end_s(own["instance"], own["first_step"] + 1)
    rows["first_step"][pending] += 1
    return rows[(rows["instance"] < 0) | (rows["last_step"] > rows["first_step"])]


def _edges(longest: int) -> list[int]:
    edges = [1, 1 + _FIRST]
    while edges[-1] <= longest:
        edges.append(1 + (edges[-1] - 1) * _TIMES)
    return edges


def _before(request: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int64]:
    """The number of gaps of the same request in the rows before each row; rows of one request are adjacent."""
    upto = np.cumsum(counts) - counts
    starts = np.flatnonzero(np.append(True, request[1:] != request[:-1])) if len(request) else np.zeros(0, np.int64)
    lengths = np.diff(np.append(starts, len(request)))
    return (upto - np.repeat(upto[starts], lengths)).astype(np.int64)


def _lasting_s(
    clock: DecodeClock,
    rows: NDArray[Any],
    before: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    own: NDArray[np.bool_],
) -> float:
    """Seconds of the gaps `first` to `last` of the rows that `own` selects."""
    if not own.any():
        return 0.0
    chosen, into = rows[own], (first - before - 1)[own]
    end_s = clock.end_s(chosen["instance"], chosen["first_step"] + (last - before)[own])
    later, begin_s = into > 0, chosen["previous_token_s"].copy()
    begin_s[later] = clock.end_s(chosen["instance"][later], (chosen["first_step"] + into)[later])
    return float((end_s - begin_s).sum())
