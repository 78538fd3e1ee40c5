"""Answers in the words of the API: the chunks of a stream, and whole bodies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servelab.serve import tokens

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Form:
    """What all chunks of one answer have in common."""

    id: str
    created: int
    model: str
    is_chat: bool
    token_ids: bool

    def head(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text in each chunk of a choice; the text needs no escapes."""
        mark = "\0"
        text = json.dumps(self._chunk([self._delta(index, {"content": mark}, mark, None)]), separators=(",", ":"))
        before, _, after = text.partition(json.dumps(mark)[1:-1])
        return f"data: {before}".encode(), f"{after}\n\n".encode()

    def opening(self, index: int) -> bytes:
        """The first chunk of a choice of a chat, which says whose words follow; nothing for a completion."""
        delta = self._delta(index, {"role": "assistant", "content": ""}, "", None)
        return self._event([delta]) if self.is_chat else b""

    def words(self, index: int, words: bytes) -> bytes:
        """A chunk with token ids."""
        text = words.decode()
        delta = self._delta(index, {"content": text}, text, None) | {"token_ids": tokens.ids_of(words)}
        return self._event([delta])

    def closing(self, index: int, finish_reason: str) -> bytes:
        """The last chunk of a choice."""
        return self._event([self._delta(index, {}, "", finish_reason)])

    def usage(self, prompt: int, cached: int, completion: int) -> bytes:
        """The chunk that `include_usage` asks for."""
        return self._event([], usage(prompt, cached, completion))

    def whole(self, choices: Sequence[tuple[bytes, str]], used: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer that is not streamed, of the words and the finish reason of each choice."""
        kind = "chat.completion" if self.is_chat else "text_completion"
        listed = [self._choice(index, words, finish) for index, (words, finish) in enumerate(choices)]
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": listed} | {
            "usage": used
        }

    def _choice(self, index: int, words: bytes, finish_reason: str) -> dict[str, Any]:
        text = words.decode()
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        ids = {"token_ids": tokens.ids_of(words)} if self.token_ids else {}
        return {"index": index, **said, "logprobs": None, "finish_reason": finish_reason, **ids}

    def _delta(self, index: int, delta: dict[str, Any], text: str, finish_reason: str | None) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": delta} if self.is_chat else {"text": text}
        return {"index": index, **said, "logprobs": None, "finish_reason": finish_reason}

    def _chunk(self, choices: list[dict[str, Any]], used: dict[str, Any] | None = None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        chunk = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return chunk if used is None else chunk | {"usage": used}

    def _event(self, choices: list[dict[str, Any]], used: dict[str, Any] | None = None) -> bytes:
        return event(self._chunk(choices, used))


def event(content: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


def usage(prompt: int, cached: int, completion: int) -> dict[str, Any]:
    """Tokens of prompts, of these those found in the prefix cache, and tokens of answers."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
