"""Made-up text, and its tokens: four bytes of UTF-8 are a token.

A prompt is bytes, four for each token. Every message of a chat begins with a token of its own and with a token
boundary, so a chat that goes on repeats the tokens that it had. A prompt that is given as token ids has one token for
each, exactly. An answer of n tokens is n words of four bytes, which are n tokens again when they are sent back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

BYTES = 4  # of a token
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aeiou"
_WORDS = np.array([f" {a}{b}{c}".encode() for a, b, c in product(_CONSONANTS, _VOWELS, _CONSONANTS)], "S4")
_REMEMBERED = 1 << 21  # names that are remembered, about 400 MB
MOST_NAMES = 2**31 - 1


def of_text(text: str) -> bytes:
    """The tokens of a text; the last one is filled up."""
    data = text.encode("utf-8", "surrogatepass")
    return data + bytes(-len(data) % BYTES)


def of_ids(ids: Sequence[int]) -> bytes:
    """The tokens of these ids, each from 0 to 2^31 - 1."""
    return np.asarray(ids, "<i4").tobytes()


def of_chat(messages: Iterable[tuple[str, str]]) -> bytes:
    """The tokens of (role, content) messages, and of the beginning of the answer."""
    return b"".join([*(_head(role) + of_text(content) for role, content in messages), _head("assistant")])


def count(prompt: bytes) -> int:
    """Tokens of a prompt."""
    return len(prompt) // BYTES


def answer(seed: int, request: int, tokens: int) -> bytes:
    """The made-up answer of a request: words that need no escapes in JSON."""
    return _WORDS[np.random.default_rng([seed, request]).integers(0, len(_WORDS), tokens)].tobytes()


def ids_of(answer: bytes) -> list[int]:
    """The ids of an answer's tokens."""
    return np.frombuffer(answer, "<i4").tolist()


def _head(role: str) -> bytes:
    return b"\0" + role.encode("utf-8", "surrogatepass")[:3].ljust(3, b"\0")


class Blocks:
    """Names of the blocks of prompts: equal if all tokens up to the end of the block are equal.

    There are `most` names; blocks that come later have none, and are not shared.
    """

    def __init__(self, block_tokens: int, most: int = MOST_NAMES) -> None:
        self._bytes, self._most = block_tokens * BYTES, most
        self._names: dict[tuple[int, bytes], int] = {}
        self._blocks: dict[int, tuple[int, bytes]] = {}
        self._given = 0

    def block(self, name: int) -> tuple[int, bytes]:
        """The name of the block before (-1: none), and the tokens, of a block; nothing of one that is forgotten."""
        return self._blocks.get(name, (-1, b""))

    def names(self, prompt: bytes) -> NDArray[np.int32]:
        """The names of a prompt's full blocks, from the first one on."""
        if len(self._names) > _REMEMBERED:
            self._names.clear()  # what was said long ago is a new prefix then
            self._blocks.clear()
        known, size, before = self._names, self._bytes, -1
        found = np.empty(len(prompt) // size, np.int32)
        for k in range(len(found)):
            key = before, prompt[k * size : (k + 1) * size]
            name = known.get(key)
            if name is None:
                if self._given == self._most:
                    return found[:k]
                name = known[key] = self._given
                self._blocks[name] = key
                self._given += 1
            found[k] = before = name
        return found
