"""Accepted drafts: draws from the run's seed, the request and the token, made many at a time.

Draft t of a request is its token number t, from 0. Its draw does not depend on the step, the instance or earlier
preemptions, so draws may be made ahead.
"""

from __future__ import annotations

import math

from framework.compiler.decorators import inner, unlikely
from framework.compiler.lanes import MANY, bits_of, leading_ones
from framework.engine.memory.state import State

_WORD = (1 << 32) - 1
MOST_AT_ONCE = MANY // 2  # drafts whose draws are looked up together


def _scattered(x: int) -> int:
    """A hash of 32 bits: lowbias32 (C. Wellons, "Prospecting for hash functions", 2018). The low half of a product is
    the same for int64, which wraps, and for Python's int.
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def _draw(of_request: int, token: int) -> int:
    return _scattered(of_request ^ _scattered(token))


_hash = inner(_scattered)
_right_of_many = bits_of(_draw)


@inner
def right_drafts(s: State, r: int, token: int, depth: int) -> int:
    """The number of right drafts before the first wrong one, among `depth` drafts of r from `token` on."""
    right = 0
    while right < depth:
        count = min(depth - right, MOST_AT_ONCE)
        found = right_of_few(s, r, token + right, count)
        right += found
        if found < count:
            break
    return right


@inner
def right_of_few(s: State, r: int, token: int, depth: int) -> int:
    """The same as `right_drafts`, for a depth of at most MOST_AT_ONCE."""
    at = s.options.draws_at + 2 * r
    until = s.lists[at]  # the MANY tokens before this one have known draws
    if unlikely(token + depth > until):
        until = token + MANY
        s.lists[at] = until
        s.lists[at + 1] = _known_from(s, r, token)
    return leading_ones((s.lists[at + 1] >> (token + MANY - until)) & ((1 << depth) - 1))


@inner
def _known_from(s: State, r: int, token: int) -> int:
    """Whether each of the MANY drafts of r from `token` on is right, as bits."""
    most = math.ceil(s.options.acceptance * 2.0**32) - 1  # a draft is right if its draw is at most this
    if most < 0:
        return 0
    return _right_of_many(_hash(_hash(int(s.options.seed) & _WORD) ^ int(r)), token, most)
