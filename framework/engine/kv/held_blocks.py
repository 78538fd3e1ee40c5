"""For each request, the list of the cached blocks that it references: 1 + node by block, 0: none.

A request has a list while it may reference a block. The list's length is the number of the request's blocks, rounded up
to a power of two. A freed list goes to the next request of that length, so memory follows the number of requests that
hold KV at once.
"""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.memory.state import State

LENGTHS = 32  # lengths of lists: 1, 2, 4, ...


@inner
def node_of(s: State, r: int, j: int) -> int:
    """The node that r, which has a list, references as its block j; -1: none."""
    return s.lists[s.options.held_at + s.requests[r].held_at + j] - 1


@inner
def hold(s: State, r: int, j: int, node: int) -> None:
    """Let r, which has a list, reference that node as its block j; -1: no node any more."""
    s.lists[s.options.held_at + s.requests[r].held_at + j] = 1 + node


@inner
def open_list(s: State, r: int) -> None:
    """Give r an empty list, unless it has a list."""
    q = s.requests[r]
    if q.held_at >= 0:
        return
    kind = s.options.held_free_at + _kind(q.hash_count)
    at = s.lists[kind] - 1
    if at < 0:
        unused = s.options.held_free_at + LENGTHS
        at = s.lists[unused]
        s.lists[unused] += 1 << (kind - s.options.held_free_at)
    else:
        s.lists[kind] = s.lists[s.options.held_at + at]
        s.lists[s.options.held_at + at] = 0
    q.held_at = at


@inner
def close_list(s: State, r: int) -> None:
    """Free the list of r, if it has one; r references no block any more."""
    q = s.requests[r]
    if q.held_at < 0:
        return
    kind = s.options.held_free_at + _kind(q.hash_count)
    s.lists[s.options.held_at + q.held_at] = s.lists[kind]
    s.lists[kind] = 1 + q.held_at
    q.held_at = -1


@inner
def _kind(blocks: int) -> int:
    """The logarithm of the length of a list for that number of blocks."""
    kind = 0
    while 1 << kind < blocks:
        kind += 1
    return kind
