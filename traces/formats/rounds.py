"""Rounds of coding agents, as TraceLab records them: sessions whose turns users and tools set off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.errors import InputError
from traces.block_ids import list_column
from traces.formats.sent import is_empty, lengths
from traces.frame import Clock, Trace, from_rows, with_notes
from traces.parsing.dates import instant_s
from traces.parsing.how import DATE, How
from traces.parsing.json_records import number_of, records
from traces.parsing.left_out import Count, Left, sifted

_INPUTS = {"user_message": "user", "tool_result": "tool"}  # events that set off a round
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class _Round:
    """`sent_s` is when the last of its inputs was there, `ended_s` its last output; `cached` tokens of its prompt were
    read from the provider's cache; `trunk` names what its first prompt begins with.
    """

    session: str
    number: float
    sent_s: float
    ended_s: float
    trigger: str | None
    trunk: str
    tokens: tuple[int, int]
    cached: int


def read_tracelab(path: Path, how: How) -> Trace:
    """Rounds of TraceLab (arXiv 2606.30560), one JSON object a round: a session is a chain of calls.

    A round is sent when its last input is there, a user's message or a tool's result: `think_s` is the time from the
    last output of the round before, and `trigger` says whose time that was. The prompt is `input_tokens_total`. It
    begins as the prompt before it does: with all of that if it is at least as long as that prompt and its output, else
    (after a compaction, or where reasoning was dropped) with the `prefix_tokens` that the provider found in its cache.
    What the first round of a session found there is common to all sessions of its provider and model.
    """
    how.without_unit("rounds have dates and times")
    count = Count(path)
    rounds = sifted(records(path), _round, count)
    notes = count.notes(how)
    rounds.sort(key=lambda one: (one.session, one.number))  # stable
    block = how.block_tokens or 512
    numbers = {name: number for number, name in enumerate(dict.fromkeys(one.session for one in rounds))}
    first_s = min(one.sent_s for one in rounds)
    arrival_s: list[float] = []
    think_s: list[float] = []
    turns: list[int] = []
    ended_s = 0.0
    for k, one in enumerate(rounds):
        goes_on = k > 0 and rounds[k - 1].session == one.session
        think_s.append(max(one.sent_s - ended_s, 0.0) if goes_on else 0.0)
        arrival_s.append(max(one.sent_s - first_s, arrival_s[-1]) if goes_on else one.sent_s - first_s)
        turns.append(turns[-1] + 1 if goes_on else 0)
        ended_s = one.ended_s
    ids, offsets = _names(rounds, turns, block)
    frame = pl.DataFrame(
        {
            "arrival_s": arrival_s,
            "input_tokens": np.array([one.tokens[0] for one in rounds], np.int64),
            "output_tokens": np.array([one.tokens[1] for one in rounds], np.int64),
            "session_id": np.array([numbers[one.session] for one in rounds], np.int64),
            "turn": np.array(turns, np.int64),
            "think_s": think_s,
            "trigger": pl.Series([one.trigger for one in rounds], dtype=pl.String),
            "hash_ids": list_column(ids, offsets),
        }
    )
    return with_notes(from_rows(frame, path.stem, "real", block, Clock(DATE, first_s)), notes)


def _round(where: str, row: Any) -> _Round | Left:
    tokens = row.get("input_tokens_total"), row.get("output_tokens")
    if is_empty(*tokens):
        return Left.EMPTY
    prompt, output = lengths(where, *tokens)
    number, cached = number_of(row.get("round_index")), number_of(row.get("prefix_tokens"))
    if number is None or not isinstance(row.get("session_id"), str):
        raise InputError(f"{where}: a round needs a session_id and a round_index")
    if cached is None or not 0 <= cached <= prompt:
        raise InputError(
            f"{where}: prefix_tokens is {json.dumps(row.get('prefix_tokens'))[:40]}, must be 0 to {prompt}"
        )
    events = row.get("timing_events")
    if not isinstance(events, list) or not events:
        raise InputError(f"{where}: no timing_events, so nothing says when the round was sent")
    timed = [(_kind(event), _time_s(where, event)) for event in events]
    inputs = [(kind, time_s) for kind, time_s in timed if kind in _INPUTS]
    outputs = [time_s for kind, time_s in timed if kind not in _INPUTS]
    sent_s = max((time_s for _, time_s in inputs), default=min(time_s for _, time_s in timed))
    return _Round(
        row["session_id"],
        number,
        sent_s,
        max([sent_s, *outputs]),
        _INPUTS[max(inputs, key=lambda event: event[1])[0]] if inputs else None,
        f"{row.get('provider')} {row.get('model')}",
        (prompt, output),
        int(cached),
    )


def _kind(event: Any) -> str:
    return str(event.get("event_type")) if isinstance(event, dict) else ""


def _time_s(where: str, event: Any) -> float:
    at = event.get("timestamp") if isinstance(event, dict) else None
    found = instant_s(at) if isinstance(at, str) else None
    if found is None:
        raise InputError(f"{where}: the timestamp of an event is {json.dumps(at)[:40]}, must be a date and time")
    return found


def _names(rounds: Sequence[_Round], turns: Sequence[int], block: int) -> tuple[Integers, Integers]:
    """Ids of the full blocks of all prompts, and where each prompt's begin: (K,), (N + 1,)."""
    trunks: dict[str, Integers] = {}
    parts: list[Integers] = []
    before, used = np.zeros(0, np.int64), 0
    for k, one in enumerate(rounds):
        full = one.tokens[0] // block
        if turns[k] == 0:
            before = trunks.get(one.trunk, before[:0])
            shared = one.cached
        else:
            whole = sum(rounds[k - 1].tokens)
            shared = max(one.cached, whole if one.tokens[0] >= whole else 0)
        kept = before[: min(full, shared // block)]
        before = np.concatenate((kept, used + np.arange(full - len(kept))))
        used += full - len(kept)
        if turns[k] == 0 and one.cached // block > len(trunks.get(one.trunk, ())):
            trunks[one.trunk] = before[: one.cached // block]
        parts.append(before)
    offsets = np.concatenate(([0], np.cumsum([len(part) for part in parts])))
    return np.concatenate(parts).astype(np.int64), offsets
