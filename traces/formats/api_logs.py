"""Logs of API responses: those of OpenAI's and of Anthropic's, and of compatible servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.errors import InputError
from traces.formats.sent import Sent, is_empty, lengths, time, trace_of
from traces.frame import Trace
from traces.parsing.dates import instant_s
from traces.parsing.how import How
from traces.parsing.json_records import number_of, records, value_at
from traces.parsing.left_out import Left

_USAGE = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
_CREATED = ("created", "created_at", "timestamp")
# What Anthropic counts in addition to its input_tokens: prompts that were read from its cache, or written there.
_CACHED_KEYS = ("cache_read_input_tokens", "cache_creation_input_tokens")


def read_openai(path: Path, how: How) -> Trace:
    """Responses of an OpenAI-compatible API, one a line, also as its Batch API has them: created (s since 1970), usage.

    `usage` has prompt_tokens and completion_tokens (chat completions), or input_tokens and output_tokens (responses).
    OpenAI and vLLM include cached prompt tokens in these. Anthropic counts them in addition to its input_tokens, so
    there the prompt is the sum. The same holds wherever more tokens are cached than the prompt would have. A line of a
    log of Claude Code has the response as `message`.
    """
    ticks_per_s = how.clock("s")[1]
    seen: set[str] = set()

    def once(where: str, row: Any) -> Sent | Left:
        """A log with a line for each part of a message repeats the same usage in all of them."""
        message = row.get("message")
        name = message.get("id") if isinstance(message, dict) else None
        if isinstance(name, str) and name in seen:
            return Left.SILENT
        seen.add(str(name))
        return _sent(where, row, ticks_per_s)

    return trace_of(path, how, "s", records(path), once)


def _sent(where: str, row: Any, ticks_per_s: float) -> Sent | Left:
    inner = body(row)
    usage = inner.get("usage")
    if row.get("error") or inner.get("error"):
        return Left.FAILED
    if usage is None:
        return Left.UNCOUNTED
    if not isinstance(usage, dict):
        raise InputError(f"{where}: usage is {json.dumps(usage)[:40]}, must be an object")
    tokens = [value_at(usage, new, old) for new, old in _USAGE]
    prompt, cached = number_of(tokens[0]), sum(number_of(usage.get(key)) or 0 for key in _CACHED_KEYS)
    if prompt is not None and ("prompt_tokens" not in usage or cached > prompt):
        tokens[0] = prompt + cached
    if tokens[1] is None and prompt is not None and number_of(usage.get("total_tokens")) == prompt:
        return Left.EMPTY  # an embedding
    if is_empty(*tokens):
        return Left.EMPTY
    at = next((one[key] for one in (inner, row) for key in _CREATED if one.get(key) is not None), None)
    sent_at = None if at is None else _at(where, at, ticks_per_s)
    return Sent(sent_at, *lengths(where, *tokens), is_dated=isinstance(at, str) and number_of(at) is None)


def _at(where: str, value: Any, ticks_per_s: float) -> float:
    """Ticks since 1970, from a number of them or from a date and time."""
    if isinstance(value, str) and number_of(value) is None and (date_s := instant_s(value)) is not None:
        return ticks_per_s * date_s
    return time(where, "created", value)


def body(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The response itself, unwrapped from its log."""
    for name in ("response", "body", "message"):
        inner = row.get(name)
        row = inner if isinstance(inner, dict) else row
    return row
