"""Data sets of conversations, ShareGPT's and WildChat's: lengths of prompts and answers from their texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from polars.exceptions import PolarsError

from framework.cli.reading import parquet_of
from framework.errors import InputError
from traces.formats.sent import DrawnArrivals, Sent, trace_of
from traces.frame import Trace
from traces.parsing.how import How
from traces.parsing.json_records import records, value_at
from traces.parsing.left_out import Left
from traces.parsing.rows import read_bytes
from traces.settings import MOST_REQUESTS

BYTES_PER_TOKEN = 4  # bytes of a token of text in UTF-8: OpenAI's rule of thumb for English
_ASKING = ("human", "user")
CONVERSATIONS = ("conversations", "messages", "items")


def read_sharegpt(path: Path, how: How) -> Trace:
    """ShareGPT's array of {id, conversations: [{from, value}, ...]}, as benchmarks of vLLM and SGLang take it, and data
    sets of {messages: [{role, content}, ...]}: the first prompt of a conversation and its answer. Lengths are
    estimated; arrivals are drawn.
    """
    return _lengths(path, how, CONVERSATIONS)


def read_wildchat(path: Path, how: How) -> Trace:
    """WildChat, and LMSYS-Chat in its shape: {conversation: [{role, content}, ...]} in JSON lines or Parquet; of each
    conversation the first prompt and its answer. Lengths are estimated; arrivals are drawn.
    """
    return _lengths(path, how, ("conversation",))


def _lengths(path: Path, how: How, keys: Sequence[str]) -> Trace:
    why = f"; set trace.rate. Tokens are estimated from texts, {BYTES_PER_TOKEN} bytes each"
    return trace_of(
        path, how, "s", _records(path, keys), lambda where, row: _first_pair(where, row, keys), DrawnArrivals(None, why)
    )


def _records(path: Path, keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    data = read_bytes(path)
    if not data.startswith(b"PAR1"):
        yield from records(path)
        return
    try:
        frame = parquet_of(data, MOST_REQUESTS)
        column = frame[next(key for key in keys if key in frame.columns)]
    except (PolarsError, OSError, ValueError, StopIteration):
        raise InputError(f"{path}: not a usable Parquet file with a column {' or '.join(keys)}") from None
    for place, turns in enumerate(column, start=1):
        yield f"{path}, row {place}", {column.name: None if turns is None else list(turns)}


def _first_pair(where: str, row: Any, keys: Sequence[str]) -> Sent | Left:
    turns = value_at(row, *keys)
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise InputError(f"{where}: {' or '.join(keys)} must be a list of turns")
    said = [(value_at(turn, "from", "role"), _text(value_at(turn, "value", "content"))) for turn in turns]
    start = next((place for place, (who, _) in enumerate(said) if who in _ASKING), len(said))
    if start + 1 >= len(said) or said[start + 1][0] in _ASKING:
        return Left.EMPTY  # no answer
    prompt, answer = (
        -(-len(said[place][1].encode("utf-8", "replace")) // BYTES_PER_TOKEN) for place in (start, start + 1)
    )
    return Sent(None, prompt, answer) if prompt and answer else Left.EMPTY


def _text(said: Any) -> str:
    """The text of a message, whole or in parts, some of which may be images; empty if there is none."""
    parts = said if isinstance(said, list) else [said]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))
