"""Calls of models as OpenTelemetry records them: spans by the semantic conventions for generative AI."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.errors import InputError
from traces.formats.call_graphs import Call, awaited_by_time, program_frame
from traces.formats.hashed import named_apart
from traces.formats.sent import is_empty, lengths
from traces.formats.sessions import BLOCK_TOKENS, with_history
from traces.frame import Clock, Trace, from_rows, with_notes
from traces.parsing.dates import instant_s
from traces.parsing.how import DATE, How
from traces.parsing.json_records import number_of, records, value_at
from traces.parsing.left_out import Count, Left, sifted

# Names of the conventions and of what came before them: OpenLLMetry's, OpenInference's.
_INPUT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens",
    "llm.token_count.prompt",
)
_OUTPUT = (
    *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens"),
    "llm.token_count.completion",
)
_TEXT = ("gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages", "input.value")
_CONVERSATION = ("gen_ai.conversation.id", "session.id")
_TOOL = ("gen_ai.tool.name", "tool.name")
_TICKS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))  # from so many ticks since 1970 on, so many are a second


@dataclass(frozen=True, eq=False)
class _Span:
    """A call of a model, or a tool's run if `tokens` is None. `text`: its prompt, if it was recorded."""

    where: str
    program: str
    start_s: float
    end_s: float
    tokens: tuple[int, int] | None = None
    text: bytes = b""


def read_otel(path: Path, how: How) -> Trace:
    """Spans in OTLP's JSON (`resourceSpans`), in objects with a list `spans`, as inference-perf replays them, or an
    object each.

    A call is a span that says its input and output tokens. The calls of a conversation (`gen_ai.conversation.id`), else
    of a trace, are a program: each waits for the calls that had ended when it was sent and that no other one followed,
    and is sent as long after the last of them as it was recorded. If a tool's span lies in that time, the tool set it
    off. Calls share the beginnings of their prompts if all have texts (blocks of `trace.block_tokens` tokens, of as
    many bytes as the file has for a token), or, in a chain of calls, as far as their lengths allow.
    """
    how.without_unit("spans have dates and times")
    count = Count(path)
    spans = sifted(_spans(path), _span, count)
    calls = [one for one in spans if one.tokens is not None]
    count.records -= len(spans) - len(calls)  # tools
    notes = count.notes(how)
    first_s = min(one.start_s for one in calls)
    tools: dict[str, list[_Span]] = {}
    programs: dict[str, list[_Span]] = {}
    for one in sorted(spans, key=lambda one: one.start_s):  # stable
        (tools if one.tokens is None else programs).setdefault(one.program, []).append(one)
    block = how.block_tokens or BLOCK_TOKENS
    ids = _ids(calls, block) if all(one.text for one in calls) else {}
    rows = [call for name, own in programs.items() for call in _calls(own, tools.get(name, []), first_s, ids)]
    frame = program_frame(rows)
    if "hash_ids" in frame.columns:
        named, more = named_apart(frame["hash_ids"], frame["input_tokens"] // block)
        frame, notes = frame.with_columns(named), (*notes, *more)
    elif all(waits in ([], [turn - 1]) for waits, turn in frame.select("wait_for", "turn").iter_rows()):
        frame, more = with_history(frame.drop("wait_for").sort("arrival_s", maintain_order=True))
        notes, block = (*notes, *more), BLOCK_TOKENS
    return with_notes(from_rows(frame, path.stem, "real", block, Clock(DATE, first_s)), notes)


def _spans(path: Path) -> Iterator[tuple[str, Any]]:
    """Each span of a file with its place, in any of the forms; unreadable records as they are."""
    for where, record in records(path):
        if isinstance(record, InputError):
            yield where, record
            continue
        found = _within(record)
        for number, span in enumerate(found, start=1):
            here = where if found == [record] else f"{where}, span {number}"
            shared = {"trace_id": record["trace_id"]} if "trace_id" in record else {}
            yield here, {**shared, **span} if isinstance(span, dict) else InputError(f"{here}: not a JSON object")


def _within(record: Mapping[str, Any]) -> list[Any]:
    """The spans of one object: a list of its own, those of OTLP, or the object itself."""
    if isinstance(record.get("spans"), list):
        return list(record["spans"])
    if not isinstance(record.get("resourceSpans"), list):
        return [record]
    found: list[Any] = []
    for resource in record["resourceSpans"]:
        scopes = value_at(resource, "scopeSpans", "instrumentationLibrarySpans")
        for scope in scopes if isinstance(scopes, list) else []:
            spans = scope.get("spans") if isinstance(scope, dict) else None
            found += spans if isinstance(spans, list) else []
    return found


def _span(where: str, row: Any) -> _Span | Left:
    about = _attributes(row.get("attributes"))
    tokens = _first(about, _INPUT), _first(about, _OUTPUT)
    is_tool = about.get("gen_ai.operation.name") == "execute_tool" or _first(about, _TOOL) is not None
    if tokens == (None, None) and not is_tool:
        return Left.SILENT
    status = row.get("status")
    if isinstance(status, dict) and status.get("code") in (2, "ERROR", "STATUS_CODE_ERROR"):
        return Left.SILENT if is_tool else Left.FAILED
    program = str(_first(about, _CONVERSATION) or value_at(row, "trace_id", "traceId") or where)
    start_s = _instant_s(where, value_at(row, "start_time", "startTimeUnixNano", "start_time_unix_nano"))
    end_s = _instant_s(where, value_at(row, "end_time", "endTimeUnixNano", "end_time_unix_nano"))
    if end_s < start_s:
        raise InputError(f"{where}: it ends before it begins")
    if tokens == (None, None):
        return _Span(where, program, start_s, end_s)
    if is_empty(*tokens):
        return Left.EMPTY
    text = _first(about, _TEXT)
    said = text if isinstance(text, str) else "" if text is None else json.dumps(text)
    return _Span(where, program, start_s, end_s, lengths(where, *tokens), said.encode("utf-8", "replace"))


def _attributes(given: Any) -> dict[str, Any]:
    """Attributes by name, of an object or of OTLP's list of {key, value: {intValue: ...}}."""
    if isinstance(given, dict):
        return given
    found = {}
    for one in given if isinstance(given, list) else []:
        value = one.get("value") if isinstance(one, dict) else None
        if isinstance(value, dict) and value and isinstance(one.get("key"), str):
            found[one["key"]] = next(iter(value.values()))
    return found


def _first(about: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((about[name] for name in names if about.get(name) is not None), None)


def _instant_s(where: str, value: Any) -> float:
    """Seconds since 1970 of a date and time, or of a number of ns, us, ms or s."""
    found = number_of(value)
    if found is not None and found >= 0:
        return found / next((per_s for least, per_s in _TICKS if found >= least), 1.0)
    date_s = instant_s(value) if isinstance(value, str) else None
    if date_s is None:
        raise InputError(f"{where}: a span begins or ends at {json.dumps(value)[:40]}, must be a date and time")
    return date_s


def _calls(
    own: Sequence[_Span], tools: Sequence[_Span], first_s: float, ids: Mapping[_Span, list[int]]
) -> Iterator[Call]:
    """The calls of one program, in order of their start."""
    awaited = awaited_by_time([(one.start_s, one.end_s) for one in own])
    for one, places in zip(own, awaited, strict=True):
        ended_s = max((own[k].end_s for k in places), default=one.start_s)
        assert one.tokens is not None
        yield Call(
            one.where,
            one.where,
            one.program,
            [own[k].where for k in places],
            None if places else one.start_s - first_s,
            max(one.start_s - ended_s, 0.0),
            bool(places) and any(tool.end_s > ended_s and tool.start_s < one.start_s for tool in tools),
            {"input_tokens": one.tokens[0], "output_tokens": one.tokens[1], "hash_ids": ids.get(one)},
        )


def _ids(calls: Sequence[_Span], block: int) -> dict[_Span, list[int]]:
    """Ids of the blocks of prompts by their texts: equal where a prompt begins as another does, to the block's end."""
    tokens = sum(one.tokens[0] for one in calls if one.tokens is not None)
    size = max(1, round(block * sum(len(one.text) for one in calls) / tokens))
    names: dict[bytes, int] = {}
    found = {}
    for one in calls:
        assert one.tokens is not None
        chain, own = hashlib.blake2b(digest_size=16), []
        for place in range(min(len(one.text) // size, one.tokens[0] // block)):
            chain.update(one.text[place * size : (place + 1) * size])
            own.append(names.setdefault(chain.digest(), len(names)))
        found[one] = own
    return found
