"""The list of the cached blocks that each request references: 1 + node by block, 0: none.

A request has a list while it may reference any block. The length is the next power of two of its number of blocks. A
list that is given back goes to the next request of that length, so memory follows the requests that hold KV at once.
"""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.memory.state import State

LENGTHS = 32  # lengths of lists: 1, 2, 4, ...


@inner
def node_of(s: State, r: int, j: int) -> int:
    """The node that r, which has a list, references as its block j, -1: none."""
    return s.lists[s.options.held_at + s.requests[r].held_at + j] - 1


@inner
def hold(s: State, r: int, j: int, node: int) -> None:
    """r, which has a list, references that node as its block j; -1: none any more."""
    s.lists[s.options.held_at + s.requests[r].held_at + j] = 1 + node


@inner
def open_list(s: State, r: int) -> None:
    """Let r have a list, which is empty, unless it has one."""
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
    """Give back the list of r, in which it references nothing any more, if it has one."""
    q = s.requests[r]
    if q.held_at < 0:
        return
    kind = s.options.held_free_at + _kind(q.hash_count)
    s.lists[s.options.held_at + q.held_at] = s.lists[kind]
    s.lists[kind] = 1 + q.held_at
    q.held_at = -1


@inner
def _kind(blocks: int) -> int:
    """The logarithm of the length of a list for so many blocks."""
    kind = 0
    while 1 << kind < blocks:
        kind += 1
    return kind
