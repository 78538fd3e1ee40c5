"""Sessions of coding agents as trees, in the form of WEKA's KV cache tester: requests within a session's object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.errors import InputError
from traces.formats.call_graphs import Call, awaited_by_time, program_frame
from traces.formats.hashed import chained, id_of, named_apart
from traces.formats.sent import is_empty, lengths, time, time_if
from traces.frame import Clock, Trace, from_rows, with_notes
from traces.parsing.how import How
from traces.parsing.json_records import number_of, records
from traces.parsing.left_out import Count, Left, sifted

_SLACK_S = 1e-6
_SPAWNED = "subagent"


@dataclass(frozen=True)
class _Lane:
    """The calls of one agent: its name, that of the agent which started it, and whether that one waits for it.

    `begin_s` is added to the times of its requests; `marker` is the place of its marker among its parent's entries.
    """

    name: str
    parent: str = ""
    is_awaited: bool = False
    begin_s: float = 0.0
    marker: int = 0


@dataclass(frozen=True, eq=False)
class _Request:
    """`place` is that among the entries of its lane; `is_tool`: the result of a tool set it off, None: not said.

    `think_s`: the client's own time before it, if the file has it.
    """

    where: str
    session: int
    lane: _Lane
    place: int
    start_s: float
    end_s: float
    tokens: tuple[int, int]
    ids: list[int]
    is_tool: bool | None
    calls_tools: bool
    think_s: float | None


def read_weka(path: Path, how: How) -> Trace:
    """Sessions of {id, block_size, requests: [{t, type, in, out, hash_ids, api_time}, ...]}, an object each, in which
    {type: subagent, t, agent_id, requests} holds the calls of a sub-agent (WEKA's KV cache tester, AgentX).

    A session is a program. A call waits for the calls of its agent that had ended when it was sent. The first calls of
    a sub-agent wait for the call that spawned it, and the next call of its parent that was sent after the sub-agent had
    ended waits for that, unless it was launched asynchronously. Times of sub-agents count from the session's beginning,
    or, if any lies before its own marker, from the marker. Sessions have no common clock: all begin at 0 s.
    """
    how.without_unit("times are seconds")
    sessions = list(records(path))
    sizes = {row.get("block_size") for _, row in sessions if isinstance(row, dict)}
    block = how.block_tokens or max((int(size) for size in sizes if isinstance(size, int) and size >= 1), default=64)
    if len(sizes) > 1 and how.block_tokens is None:
        raise InputError(f"{path}: sessions have blocks of different sizes; set trace.block_tokens")
    count = Count(path)
    found = sifted(_entries(sessions, 1.0 if _is_relative(sessions) else 0.0), _request, count)
    notes = count.notes(how)
    by_session: dict[int, list[_Request]] = {}
    for one in found:
        by_session.setdefault(one.session, []).append(one)
    calls = [call for rows in by_session.values() for call in _calls(rows, block)]
    frame = program_frame(calls)
    if "hash_ids" in frame.columns:
        ids, more = named_apart(frame["hash_ids"], -(-frame["input_tokens"] // block))
        frame, notes = frame.with_columns(chained(ids)), (*notes, *more)
    if len(by_session) > 1:
        apart = f"{len(by_session):,} sessions have no common clock, and all begin at 0 s"
        notes = (*notes, f"{apart}; load=closed plays load.concurrency of them at a time")
    return with_notes(from_rows(frame, path.stem, "real", block, Clock("s")), notes)


def _is_relative(sessions: Sequence[tuple[str, Any]]) -> bool:
    """Whether the times of sub-agents count from their markers."""
    for _, session in sessions:
        for entry in _listed(session):
            begin_s = number_of(entry.get("t"))
            inner = [number_of(one.get("t")) for one in _listed(entry)]
            if begin_s is not None and any(t is not None and t < begin_s - _SLACK_S for t in inner):
                return True
    return False


def _listed(entry: Any) -> list[dict[str, Any]]:
    rows = entry.get("requests") if isinstance(entry, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _entries(sessions: Sequence[tuple[str, Any]], of_marker: float) -> Iterator[tuple[str, Any]]:
    """Each request with its session's number, its lane and its place there; unreadable sessions as they are.

    `of_marker`: the share of a marker's time that is added to those of its sub-agent, 1 or 0.
    """
    for number, (where, session) in enumerate(sessions):
        if isinstance(session, InputError):
            yield where, session
            continue
        if not isinstance(session.get("requests"), list):
            yield where, InputError(f"{where}: a session needs a list of requests")
            continue
        yield from _of_lane(where, number, _Lane(f"session {number}"), _listed(session), of_marker)


def _of_lane(
    where: str, number: int, lane: _Lane, rows: Sequence[dict[str, Any]], of_marker: float
) -> Iterator[tuple[str, Any]]:
    for place, row in enumerate(rows):
        here = f"{where}, request {place + 1}"
        if row.get("type") != _SPAWNED:
            yield here, (number, lane, place, row)
            continue
        marker_s = lane.begin_s + (number_of(row.get("t")) or 0.0)
        own = _Lane(
            f"{lane.name}/{row.get('agent_id')} {place}",
            lane.name,
            row.get("status") != "async_launched",
            of_marker * marker_s,
            place,
        )
        yield from _of_lane(here, number, own, _listed(row), of_marker)


def _request(where: str, entry: Any) -> _Request | Left:
    number, lane, place, row = entry
    tokens = row.get("in"), row.get("out")
    if is_empty(*tokens):
        return Left.EMPTY
    start_s = lane.begin_s + time(where, "t", row.get("t"))
    ids = row.get("hash_ids") or []
    known = [one for value in ids if (one := id_of(value)) is not None] if isinstance(ids, list) else None
    if known is None or len(known) < len(ids):
        raise InputError(f"{where}: hash_ids are {json.dumps(ids)[:40]}, must be a list of whole numbers or names")
    kinds = row.get("input_types")
    is_tool = "tool_result" in kinds if isinstance(kinds, list) and kinds else None
    took_s = time_if(where, "api_time", row.get("api_time")) or 0.0
    return _Request(
        where,
        number,
        lane,
        place,
        start_s,
        start_s + took_s,
        lengths(where, *tokens),
        known,
        is_tool,
        row.get("stop") == "tool_use",
        time_if(where, "think_time", row.get("think_time")),
    )


def _calls(rows: Sequence[_Request], block: int) -> list[Call]:
    """The calls of one session, which begins at 0 s. Ids of its blocks are its own."""
    first_s = min(one.start_s for one in rows)
    lanes: dict[str, list[_Request]] = {}
    for one in sorted(rows, key=lambda one: one.start_s):  # stable
        lanes.setdefault(one.lane.name, []).append(one)
    awaited = _awaited(lanes)
    names: dict[int, int] = {}
    calls = []
    for lane in lanes.values():
        for one in lane:
            before = awaited[one]
            ended_s = max((other.end_s for other in before), default=one.start_s)
            delay_s = max(one.start_s - ended_s, 0.0)
            if one.think_s is not None and [other.lane for other in before] == [one.lane]:
                delay_s = one.think_s
            ids = [names.setdefault(name, (one.session << 32) + len(names)) for name in one.ids]
            tokens = {"input_tokens": one.tokens[0], "output_tokens": one.tokens[1]}
            calls.append(
                Call(
                    one.where,
                    one.where,
                    one.lane.name,
                    [other.where for other in before],
                    None if before else one.start_s - first_s,
                    delay_s,
                    _is_tools(one, before),
                    {**tokens, "hash_ids": ids[: -(-one.tokens[0] // block)] or None},
                )
            )
    return calls


def _is_tools(one: _Request, before: Sequence[_Request]) -> bool:
    """Whether a tool's result set a call off: as its input says, else as the call before it ended."""
    own = [other for other in before if other.lane == one.lane]
    if not own:
        return False
    return one.is_tool if one.is_tool is not None else any(other.calls_tools for other in own)


def _awaited(lanes: Mapping[str, Sequence[_Request]]) -> dict[_Request, list[_Request]]:
    """What each call waits for, by the times of its own agent, and of those that it started or that started it."""
    found: dict[_Request, list[_Request]] = {}
    for lane in lanes.values():
        for one, before in zip(lane, awaited_by_time([(one.start_s, one.end_s) for one in lane]), strict=True):
            found[one] = [lane[k] for k in before]
    for lane in lanes.values():
        own = lane[0].lane
        parent = lanes.get(own.parent, [])
        if not parent:
            continue
        spawners = [one for one in parent if one.place < own.marker]
        for one in lane:
            if not found[one] and spawners:
                found[one] = [max(spawners, key=lambda other: other.place)]
        ends = set(lane) - {other for one in lane for other in found[one]}
        ended_s = max(one.end_s for one in ends)
        later = [one for one in parent if one.place > own.marker and one.start_s >= ended_s - _SLACK_S]
        if own.is_awaited and later:
            joins = min(later, key=lambda one: one.place)
            found[joins] = [*found[joins], *sorted(ends, key=lambda one: one.start_s)]
    return found
