"""Spans: the instances that compute a request together, and what each of them keeps of its KV.

The first of them leads: the request prefills and decodes there, and its record counts all of its KV. What the others
keep are whole blocks. A span is a row of numbers in `lists`; the last row holds the policy's answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import inner
from framework.engine.memory.queues import take_out
from framework.engine.memory.state import State
from framework.policy.spans import MOST_INSTANCES, MOST_SPANS

# A row: how many instances, tokens of a pipeline's chunk (0: no pipeline), what has become of it, its request, KV
# tokens on all instances but the first; then the instances, and the KV tokens that each keeps (the first: 0, it keeps
# the rest).
COUNT, CHUNK, PHASE, OWNER, AWAY, INSTANCES = range(6)
_KEPT = INSTANCES + MOST_INSTANCES
_SIZE = _KEPT + MOST_INSTANCES
UNUSED, CLAIMED, BEGUN, GIVEN_UP, OVER = range(5)  # phases; the last two: it has ended before its step, or after that
NEVER_SPANNED, HAS_NO_SPAN = 0, -1  # in place of 1 + the number of a span


def lay_out_spans(options: NDArray[np.void], space: Any) -> None:
    """Lay out the spans of a run, behind all other lists. `clear_spans` writes them if the policy gives any."""
    options["span_slots"] = min(int(options["requests"][0]), MOST_SPANS)
    options["spans_at"] = space.reserve((int(options["span_slots"][0]) + 1) * _SIZE)
    options["span_of_at"] = space.reserve(int(options["requests"][0]))


def clear_spans(lists: NDArray[np.int64], options: NDArray[np.void]) -> None:
    """No request has a span, or ever had one."""
    lists[options["spans_at"][0] :] = 0


def writer(lists: NDArray[np.int64], options: NDArray[np.void]) -> Callable[[Any], int]:
    """A function that writes a policy's answer into the last row; it returns the number of its instances."""
    at = int(options["spans_at"][0]) + int(options["span_slots"][0]) * _SIZE
    row = lists[at:][:_SIZE]

    def write(span: Any) -> int:
        count = len(span.instances)
        row[COUNT], row[CHUNK], row[AWAY] = count, span.chunk_tokens, sum(span.kept)
        row[INSTANCES:][:count] = span.instances
        row[_KEPT:][:count] = span.kept
        return count

    return write


@inner
def at_span(s: State, number: int) -> int:
    """The offset of a span's row."""
    return int(s.options.spans_at + number * _SIZE)


@inner
def instance_of(s: State, number: int, k: int) -> int:
    """Instance k of a span."""
    return int(s.lists[at_span(s, number) + INSTANCES + k])


@inner
def kept_by(s: State, number: int, k: int) -> int:
    """KV tokens that instance k > 0 of a span keeps, a whole number of blocks."""
    return int(s.lists[at_span(s, number) + _KEPT + k])


@inner
def keep(s: State, number: int, k: int, tokens: int) -> None:
    """Set what instance k of a span keeps."""
    s.lists[at_span(s, number) + _KEPT + k] = tokens


@inner
def has_instance(s: State, number: int, i: int) -> bool:
    """Whether i is one of a span's instances."""
    found = False
    for k in range(s.lists[at_span(s, number) + COUNT]):
        found |= instance_of(s, number, k) == i
    return found


@inner
def is_marked(s: State, number: int) -> bool:
    """Whether a span, if it is one, has a marked instance."""
    if number >= 0:
        for k in range(s.lists[at_span(s, number) + COUNT]):
            if s.instances[instance_of(s, number, k)].marked:
                return True
    return False


@inner
def span_of(s: State, r: int) -> int:
    """The number of r's span; below 0: it has none."""
    return int(s.lists[s.options.span_of_at + r] - 1)


@inner
def is_spanned(s: State, r: int) -> bool:
    """Whether r is computed by several instances, now or when it is computed next."""
    return bool(s.lists[s.options.span_of_at + r] != NEVER_SPANNED)


@inner
def kv_elsewhere(s: State, r: int) -> int:
    """KV tokens of r on other instances than the one that leads."""
    number = span_of(s, r)
    return int(s.lists[at_span(s, number) + AWAY]) if number >= 0 else 0


@inner
def lend(s: State, i: int, r: int, sign: int) -> None:
    """r begins (1) or stops (-1) to decode on i: i's steps do not read what other instances keep of its KV."""
    elsewhere = kv_elsewhere(s, r)
    s.instances[i].decode_kv -= sign * elsewhere
    s.instances[i].lending += sign * (elsewhere > 0)


@inner
def store_answer(s: State) -> int:
    """Copy the policy's answer into an unused row; its number, -1: there is none."""
    last = s.options.span_slots
    for number in range(last):
        if s.lists[at_span(s, number) + PHASE] == UNUSED:
            for k in range(_SIZE):
                s.lists[at_span(s, number) + k] = s.lists[at_span(s, last) + k]
            return number
    return -1


@inner
def end_span(s: State, r: int) -> int:
    """End r's span, if it has one, as its KV comes free; what others keep is freed when the event is over.

    Returns the KV tokens that they keep.
    """
    number = span_of(s, r)
    if number < 0:
        return 0
    row = at_span(s, number)
    if s.lists[row + PHASE] == CLAIMED:
        leave_claims(s, r)
    s.lists[row + PHASE] += GIVEN_UP - CLAIMED
    s.lists[s.options.span_of_at + r] = HAS_NO_SPAN
    s.sim.spans_over += 1
    return int(s.lists[row + AWAY])


@inner
def leave_claims(s: State, r: int) -> None:
    """Take r out of those that wait for the step that computes them."""
    sim = s.sim
    sim.claim_head, sim.claim_tail = take_out(s, sim.claim_head, sim.claim_tail, r)
    sim.spanning -= 1
