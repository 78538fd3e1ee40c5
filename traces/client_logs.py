"""What clients and servers wrote down of requests, read as traces: vLLM's benchmark, AIPerf, logs of an OpenAI API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from framework.cli.reading import parsed_json
from framework.cli.terminal import warn_once
from framework.errors import MOST_S, InputError, shown
from traces.frame import Trace, from_rows
from traces.rows import MAX_TOKENS, read_bytes

_NS_PER_S = 10**9


class _Sent(NamedTuple):
    """One request: when it was sent, in the log's own ticks, tokens, and in which conversation, if it was in one."""

    at: float
    input_tokens: int
    output_tokens: int
    ended: float = 0.0
    conversation: str | None = None


def read_vllm(path: Path, block_tokens: int = 0) -> Trace:
    """JSON of `vllm bench serve --save-result --save-detailed`: start_times in s, input_lens, output_lens, errors."""
    result = _parsed(path, read_bytes(path), str(path))
    lists = {name: result.get(name) for name in ("start_times", "input_lens", "output_lens")}
    for name, values in lists.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{path}: no list {name}; vllm bench serve writes it with --save-result --save-detailed")
    counts = {name: len(values) for name, values in lists.items() if values is not None}
    if len(set(counts.values())) > 1:
        raise InputError(f"{path}: {', '.join(f'{name} has {count}' for name, count in counts.items())} entries")
    errors = result.get("errors") or []
    if not isinstance(errors, list):
        raise InputError(f"{path}: errors is {shown(errors)}, must be a list")
    sent, failed = [], 0
    for k, row in enumerate(zip(*lists.values(), strict=True)):
        where = f"{path}, request {k + 1}"
        if (k < len(errors) and errors[k]) or row[2] == 0:
            failed += 1
        else:
            sent.append(_Sent(_time(where, "start_times", row[0]), *_lengths(where, row[1], row[2])))
    return _trace(path, sent, 1.0, _failures(failed, counts["input_lens"]))


def read_aiperf(path: Path, block_tokens: int = 0) -> Trace:
    """AIPerf's profile_export.jsonl: metadata.request_start_ns, and sequence lengths among the metrics; no warm-up.

    Turns of one conversation become a session, whose later turns arrive as long after the one before as they did.
    """
    sent, failed, count = [], 0, 0
    for where, row in _objects(path):
        about, metrics = row.get("metadata"), row.get("metrics")
        if not isinstance(about, dict) or not isinstance(metrics, dict):
            raise InputError(f"{where}: no metadata and metrics, as profile_export.jsonl has them")
        if about.get("benchmark_phase") == "warmup":
            continue
        count += 1
        if row.get("error") or about.get("was_cancelled"):
            failed += 1
            continue
        tokens = [_value(metrics.get(f"{side}_sequence_length")) for side in ("input", "output")]
        start, end = (_time(where, name, about.get(name)) for name in ("request_start_ns", "request_end_ns"))
        talk = about.get("conversation_id")
        sent.append(_Sent(start, *_lengths(where, *tokens), end, None if talk is None else str(talk)))
    return _trace(path, sent, _NS_PER_S, _failures(failed, count))


def read_openai(path: Path, block_tokens: int = 0) -> Trace:
    """Responses of an OpenAI-compatible API, one a line, also as its Batch API has them: created (s since 1970), usage.

    `usage` has prompt_tokens and completion_tokens (chat completions), or input_tokens and output_tokens (responses).
    """
    sent, failed, count = [], 0, 0
    for where, row in _objects(path):
        count += 1
        body = _body(row)
        usage = body.get("usage")
        if row.get("error") or body.get("error") or usage is None:
            failed += 1
            continue
        if not isinstance(usage, dict):
            raise InputError(f"{where}: usage is {json.dumps(usage)[:40]}, must be an object")
        tokens = [usage.get(new, usage.get(old)) for new, old in _USAGE]
        at = next((one[key] for one in (body, row) for key in _CREATED if one.get(key) is not None), None)
        if tokens[1] == 0:
            failed += 1
        else:
            sent.append(_Sent(_time(where, "created", at), *_lengths(where, *tokens)))
    return _trace(path, sent, 1.0, _failures(failed, count, "or have no usage"))


_USAGE = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
_CREATED = ("created", "created_at", "timestamp")


def recognised(data: bytes) -> str | None:
    """Which of these three formats a file is in, by its first object; None: none of them."""
    if not data.lstrip().startswith(b"{"):
        return None
    if b'"input_lens"' in data and b'"output_lens"' in data:
        return "vllm"
    try:
        row = json.loads(data.lstrip().split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return None
    if isinstance(row.get("metadata"), dict) and "request_start_ns" in row["metadata"]:
        return "aiperf"
    return "openai" if "usage" in _body(row) else None


def _body(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The response itself, where a log wraps it."""
    for name in ("response", "body"):
        inner = row.get(name)
        row = inner if isinstance(inner, dict) else row
    return row


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line that is not blank, with where it stands."""
    for line_number, line in enumerate(read_bytes(path).split(b"\n"), start=1):
        if line.strip():
            where = f"{path}, line {line_number}"
            yield where, _parsed(path, line, where)


def _parsed(path: Path, text: bytes, where: str) -> dict[str, Any]:
    try:
        row = parsed_json(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a JSON object")
    return row


def _value(metric: Any) -> Any:
    return metric.get("value") if isinstance(metric, dict) else metric


def _time(where: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputError(f"{where}: {name} is {json.dumps(value)[:40]}, must be a number of at least 0")
    return value


def _lengths(where: str, *tokens: Any) -> tuple[int, int]:
    for name, value in zip(("input", "output"), tokens, strict=True):
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        if not whole or not 1 <= value <= MAX_TOKENS:
            raise InputError(
                f"{where}: {name} tokens are {json.dumps(value)[:40]}, must be a whole number of at least 1"
            )
    return int(tokens[0]), int(tokens[1])


def _failures(failed: int, count: int, also: str = "") -> str:
    return f"{failed} of {count} requests failed{f' {also}' if also else ''}; they are left out" if failed else ""


def _trace(path: Path, sent: list[_Sent], ticks_per_s: float, note: str) -> Trace:
    if not sent:
        raise InputError(f"{path}: no request has finished" + (f" ({note})" if note else ""))
    first = min(one.at for one in sent)
    late_s = (max(one.at for one in sent) - first) / ticks_per_s
    if late_s > MOST_S:
        raise InputError(f"{path}: the last request was sent {late_s:g} s after the first, at most {MOST_S:g} can be")
    columns: dict[str, Any] = {
        "arrival_s": np.array([(one.at - first) / ticks_per_s for one in sent]),
        "input_tokens": np.array([one.input_tokens for one in sent], np.int64),
        "output_tokens": np.array([one.output_tokens for one in sent], np.int64),
    }
    frame = pl.DataFrame(columns)
    talks = [one.conversation for one in sent if one.conversation is not None]
    if len(set(talks)) < len(talks):
        frame = frame.with_columns(*_sessions(sent, ticks_per_s))
    if note:
        warn_once(f"note: trace {path.stem}: {note}")
    trace = from_rows(frame, path.stem, "real")
    return trace.with_frame(trace.frame, note) if note else trace


def _sessions(sent: list[_Sent], ticks_per_s: float) -> list[pl.Series]:
    """Session, turn and think time of each request, in order of arrival within a conversation."""
    numbers: dict[str, int] = {}
    sessions: list[int | None] = [None] * len(sent)
    turns, thinks = [0] * len(sent), [0.0] * len(sent)
    last: dict[str, tuple[int, float]] = {}
    for k in sorted(range(len(sent)), key=lambda k: sent[k].at):
        talk = sent[k].conversation
        if talk is None:
            continue
        sessions[k] = numbers.setdefault(talk, len(numbers))
        if talk in last:
            before, ended = last[talk]
            turns[k], thinks[k] = before + 1, max(0.0, (sent[k].at - ended) / ticks_per_s)
        last[talk] = turns[k], sent[k].ended
    return [
        pl.Series("session_id", sessions, pl.Int64()),
        pl.Series("turn", turns, pl.Int64()),
        pl.Series("think_s", thinks, pl.Float64()),
    ]
