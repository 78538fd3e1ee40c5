"""Rows that name the rows they wait for, as programs: a session for each set of rows that are linked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from framework.errors import InputError

_SLACK_S = 1e-6  # clocks that are written as floats


@dataclass(frozen=True)
class Call:
    """A row with its `name` and the names of those that it `waits_for`; `at_s` is when it is sent if it waits for none.

    It is sent `delay_s` after the last of those. `lane` is the session that the file gives it: calls of one lane follow
    each other where they name nothing and have no time. `is_tool`: a tool runs before it. `row` has its other columns.
    """

    where: str
    name: str
    lane: str
    waits_for: Sequence[str]
    at_s: float | None
    delay_s: float
    is_tool: bool
    row: dict[str, Any] = field(default_factory=dict)


def program_rows(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Rows in order of arrival, with `arrival_s`, `session_id`, `turn`, `wait_for`, `think_s` and `trigger`.

    Calls that wait for each other, and those of one lane, are one program. The arrival of a call that waits is that of
    the last that it waits for, plus its delay, so all come in order. Raises InputError for a name that two calls have
    or none has, for a call that nothing sends, and for calls that wait for each other in a circle.
    """
    awaited = _awaited(calls)
    order, at_s = _ordered(calls, awaited)
    programs = _programs(calls, awaited)
    numbers = {program: number for number, program in enumerate(dict.fromkeys(programs[k] for k in order))}
    turns: dict[int, int] = {}
    counts = dict.fromkeys(numbers.values(), 0)
    rows = []
    for k in order:
        session = numbers[programs[k]]
        turns[k] = counts[session]
        counts[session] += 1
        call = calls[k]
        row = {
            "arrival_s": at_s[k],
            "session_id": session,
            "turn": turns[k],
            "wait_for": [turns[other] for other in awaited[k]],
            "think_s": call.delay_s if awaited[k] else 0.0,
            "trigger": _trigger(call, [calls[other].lane for other in awaited[k]]),
        }
        rows.append(row | call.row)
    return rows


def _trigger(call: Call, lanes: Sequence[str]) -> str | None:
    """What sets off a call that waits for calls of these lanes; None for one that joins another lane's to its own."""
    if call.is_tool:
        return "tool"
    if all(lane == call.lane for lane in lanes):
        return "user"
    return None if call.lane in lanes else "spawn"


def _awaited(calls: Sequence[Call]) -> list[list[int]]:
    """The places of those that each call waits for; of its own lane the first, whose context it goes on with."""
    places: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, call in enumerate(calls):
        if places.setdefault(call.name, k) != k:
            raise InputError(f"{call.where}: the request_id {call.name} is that of another row, too")
    found = []
    for k, call in enumerate(calls):
        for name in call.waits_for:
            if name not in places:
                raise InputError(f"{call.where}: it waits for {name}, which is the request_id of no row")
        own = [places[name] for name in dict.fromkeys(call.waits_for)]
        if not own and call.at_s is None:
            if call.lane not in last:
                raise InputError(f"{call.where}: the first row of session {call.lane} has no timestamp")
            own = [last[call.lane]]
        found.append(sorted(own, key=lambda other: calls[other].lane != call.lane))
        last[call.lane] = k
    return found


def _ordered(calls: Sequence[Call], awaited: Sequence[Sequence[int]]) -> tuple[list[int], list[float]]:
    """The calls in order of arrival, each behind all that it waits for, and their times of arrival."""
    followers: list[list[int]] = [[] for _ in calls]
    for k, others in enumerate(awaited):
        for other in others:
            followers[other].append(k)
    left, at_s = [len(others) for others in awaited], [call.at_s or 0.0 for call in calls]
    ready = [k for k in range(len(calls)) if not left[k]]
    for k in ready:  # which grows
        for later in followers[k]:
            left[later] -= 1
            if not left[later]:
                at_s[later] = max(at_s[other] for other in awaited[later]) + calls[later].delay_s
                ready.append(later)
    if len(ready) < len(calls):
        stuck = next(call for k, call in enumerate(calls) if left[k])
        raise InputError(f"{stuck.where}: {stuck.name} waits for calls that wait for it, in a circle")
    places = {k: place for place, k in enumerate(ready)}
    return sorted(ready, key=lambda k: (at_s[k], places[k])), at_s


def _programs(calls: Sequence[Call], awaited: Sequence[Sequence[int]]) -> list[int]:
    """A number for each call, the same for all of its program."""
    parent = list(range(len(calls)))

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    lanes: dict[str, int] = {}
    for k, call in enumerate(calls):
        for other in (*awaited[k], lanes.setdefault(call.lane, k)):
            parent[root(k)] = root(other)
    return [root(k) for k in range(len(calls))]


def awaited_by_time(times: Sequence[tuple[float, float]]) -> list[list[int]]:
    """What each call waits for if only (start, end) in s are known, in order of start: the last calls before it.

    A call comes after all that had ended when it was sent. Of these it names those after whose end no other of them
    began (the transitive reduction of an interval order).
    """
    found: list[list[int]] = []
    running: list[int] = []
    last: list[int] = []  # those that have ended and that no other one follows
    for k, (start_s, _) in enumerate(times):
        over = [other for other in running if times[other][1] <= start_s + _SLACK_S]
        running = [other for other in running if other not in over]
        if over:
            begun_s = max(times[other][0] for other in over)
            last = [other for other in last if times[other][1] > begun_s + _SLACK_S] + over
            newest = max(times[other][0] for other in last)
            last = [other for other in last if times[other][1] > newest + _SLACK_S or times[other][0] == newest]
        found.append(sorted(last))
        running.append(k)
    return found


def program_frame(calls: Sequence[Call]) -> pl.DataFrame:
    """The rows of programs as a frame, with `hash_ids` if the calls have some."""
    rows = program_rows(calls)
    schema = {
        "arrival_s": pl.Float64(),
        "input_tokens": pl.Int64(),
        "output_tokens": pl.Int64(),
        "session_id": pl.Int64(),
        "turn": pl.Int64(),
        "wait_for": pl.List(pl.Int64()),
        "think_s": pl.Float64(),
        "trigger": pl.String(),
    }
    if any(row.get("hash_ids") is not None for row in rows):
        schema["hash_ids"] = pl.List(pl.Int64())
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)
