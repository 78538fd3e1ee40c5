"""Traces of agents: Dynamo's request traces, and Mooncake's rows with sessions and programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from framework.errors import InputError
from traces.formats.call_graphs import Call, program_rows
from traces.formats.hashed import id_of, named_apart
from traces.formats.sent import Sent, is_empty, lengths, time, time_if, trace_of
from traces.formats.sessions import BLOCK_TOKENS, with_history
from traces.frame import Clock, Trace, from_rows, with_notes
from traces.parsing.how import How
from traces.parsing.json_records import records, value_at
from traces.parsing.left_out import Count, Left, sifted

SCHEMA = "dynamo.request.trace"


def read_dynamo(path: Path, how: How) -> Trace:
    """Dynamo's request trace: records request_end of schema dynamo.request.trace.v1, plain or within `event`.

    A session is one agent_context.trajectory_id or session_id; sub-agents have their own, and start when they did.
    input_tokens includes cached tokens. replay.input_sequence_hashes names prompts; a prompt without it is unrelated.
    """
    return trace_of(path, how, "ms", records(path), _of_dynamo)


def _of_dynamo(where: str, row: Any) -> Sent | Left:
    event = row["event"] if isinstance(row.get("event"), dict) else row
    request = event.get("request")
    if event.get("event_type") != "request_end" or not isinstance(request, dict):
        return Left.SILENT
    if request.get("error") or request.get("finish_reason") in ("error", "cancelled"):
        return Left.FAILED
    replay = request["replay"] if isinstance(request.get("replay"), dict) else {}
    tokens = replay.get("input_length", request.get("input_tokens")), request.get("output_tokens")
    if is_empty(*tokens):
        return Left.EMPTY
    prompt, answer = lengths(where, *tokens)
    ended = time(where, "event_time_unix_ms", event.get("event_time_unix_ms"))
    at = request.get("request_received_ms")
    if at is None:
        at = ended - time(where, "total_time_ms", request.get("total_time_ms", 0))
    about = event["agent_context"] if isinstance(event.get("agent_context"), dict) else {}
    session = about.get("trajectory_id") or about.get("session_id")
    size, ids = replay.get("trace_block_size"), replay.get("input_sequence_hashes")
    block = size if isinstance(size, int) and size >= 1 and isinstance(ids, list) else 0
    return Sent(
        time(where, "request_received_ms", at),
        prompt,
        answer,
        ended=ended,
        session=None if session is None else str(session),
        hash_ids=_ids(where, ids or [], -(-prompt // block)) if block else None,
        block_tokens=block,
    )


@dataclass
class _Turn:
    """A row of Mooncake's format that belongs to a session."""

    where: str
    request: str | None
    session: str
    at_ms: float | None
    delay_ms: float | None  # None: it has none of its own
    is_tool: bool  # part of the delay is a tool's
    waits_for: list[str]
    tokens: tuple[int, int]
    ids: list[int] | None


def read_mooncake_sessions(path: Path, how: How) -> Trace:
    """Mooncake JSONL with sessions, in the form of AIPerf and Dynamo, its agentic form included.

    The first row of a session has a timestamp. A later one with `delay` (or `delay_ms`, and `tool_wait_ms`), in ms, is
    sent that long after the answer to the previous row. If later rows have timestamps too, all are sent at these.
    If some row waits (`wait_for`) for others than the row before in its session, the rows are calls of programs: see
    `call_graphs.program_rows`.
    """
    count = Count(path)
    turns = sifted(records(path), _turn, count)
    notes = count.notes(how)
    by_session: dict[str, list[_Turn]] = {}
    for turn in turns:
        by_session.setdefault(turn.session, []).append(turn)
    clock = how.clock("ms")
    is_graph = any(_is_graph(chain) for chain in by_session.values())
    if is_graph:
        rows = program_rows([_call(turn, clock[1]) for turn in turns])
    else:
        rows = [row for number, chain in enumerate(by_session.values()) for row in _chain(number, chain, clock[1])]
    schema = {
        "arrival_s": pl.Float64(),
        "input_tokens": pl.Int64(),
        "output_tokens": pl.Int64(),
        "session_id": pl.Int64(),
        "turn": pl.Int64(),
        "think_s": pl.Float64(),
        "hash_ids": pl.List(pl.Int64()),
        **({"wait_for": pl.List(pl.Int64()), "trigger": pl.String()} if is_graph else {}),
    }
    frame = pl.DataFrame(rows, schema=schema)
    block = (how.block_tokens or 512) if frame["hash_ids"].list.len().sum() else 0
    more: tuple[str, ...] = ()
    if block:
        ids, more = named_apart(frame["hash_ids"], -(-frame["input_tokens"] // block))
        frame = frame.with_columns(ids)
    else:
        frame = frame.drop("hash_ids")
    if is_graph:
        pass
    elif not (frame["turn"] > 0).any():
        frame = frame.drop("session_id", "turn", "think_s")
    elif not block:
        frame, more = with_history(frame.sort("arrival_s", maintain_order=True))
        block = BLOCK_TOKENS
    return with_notes(from_rows(frame, path.stem, "real", block, Clock(clock[0])), (*notes, *more))


def _is_graph(chain: list[_Turn]) -> bool:
    """Whether some row of a session waits for others than the one before it there."""
    before = [None, *(turn.request for turn in chain)]
    return any(turn.waits_for and turn.waits_for != [name] for name, turn in zip(before, chain, strict=False))


def _call(turn: _Turn, ticks_per_s: float) -> Call:
    return Call(
        turn.where,
        turn.request or f"the row at {turn.where}",
        turn.session,
        turn.waits_for,
        None if turn.at_ms is None else turn.at_ms / ticks_per_s,
        (turn.delay_ms or 0.0) / ticks_per_s,
        turn.is_tool,
        {"input_tokens": turn.tokens[0], "output_tokens": turn.tokens[1], "hash_ids": turn.ids},
    )


def _chain(number: int, chain: list[_Turn], ticks_per_s: float) -> list[dict[str, Any]]:
    """The rows of one session that is a chain, in order. Raises InputError if its first has no time."""
    is_closed = any(turn.at_ms is None or turn.waits_for for turn in chain[1:])
    at = chain[0].at_ms
    if at is None:
        raise InputError(f"{chain[0].where}: the first row of session {chain[0].session} has no timestamp")
    rows = []
    for place, turn in enumerate(chain):
        if is_closed:
            at = at + (turn.delay_ms or 0.0) if place else at
        else:
            at = turn.at_ms if turn.at_ms is not None else at
        think_s = (turn.delay_ms or 0.0) / ticks_per_s if is_closed and place else 0.0
        rows.append(
            {
                "arrival_s": at / ticks_per_s,
                "input_tokens": turn.tokens[0],
                "output_tokens": turn.tokens[1],
                "session_id": number if is_closed else None,
                "turn": place if is_closed else 0,
                "think_s": think_s,
                "hash_ids": turn.ids,
            }
        )
    return rows


def _turn(where: str, row: Any) -> _Turn | Left:
    tokens = row.get("input_length"), row.get("output_length")
    if is_empty(*tokens):
        return Left.EMPTY
    checked = lengths(where, *tokens)
    at = value_at(row, "timestamp", "created_time")
    waits = value_at(row, "delay", "delay_ms"), row.get("tool_wait_ms")
    delays = [time(where, "delay", value) for value in waits if value is not None]
    waits_for = row.get("wait_for") or []
    if not isinstance(waits_for, list):
        raise InputError(f"{where}: wait_for is {json.dumps(waits_for)[:40]}, must be a list of request ids")
    ids = row.get("hash_ids")
    session = row.get("session_id")
    return _Turn(
        where,
        None if row.get("request_id") is None else str(row["request_id"]),
        f"request at {where}" if session is None else str(session),
        time_if(where, "timestamp", at),
        sum(delays) if delays else None,
        bool(waits[1]),
        [str(one) for one in waits_for],
        checked,
        _ids(where, ids, None) if isinstance(ids, list) else None,
    )


def has_sessions(record: Mapping[str, Any]) -> bool:
    """Whether a row belongs to a session of Mooncake's format."""
    return "wait_for" in record or "session_id" in record


def _ids(where: str, values: list[Any], most: int | None) -> list[int]:
    ids = [known for value in values if (known := id_of(value)) is not None]
    if len(ids) < len(values):
        raise InputError(f"{where}: hash ids must be whole numbers or names")
    if most is not None and len(ids) > most:
        raise InputError(f"{where}: {len(ids)} hash ids for a prompt of {most} blocks")
    return ids
