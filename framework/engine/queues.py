"""Lists of requests and of pending events, linked through the request records: no list has a capacity of its own."""

from __future__ import annotations

from framework.compiler.decorators import kernel
from framework.engine.state import State

# --- waiting queue of an instance: a pairing heap ordered by (key, seq) -------------------------------------------


@kernel
def _before(s: State, a: int, b: int) -> bool:
    x, y = s.requests[a], s.requests[b]
    return x.key < y.key or (x.key == y.key and x.seq < y.seq)


@kernel
def _meld(s: State, a: int, b: int) -> int:
    """Join two heaps (-1: empty); the roots' `next` links must be unused."""
    if a < 0:
        return b
    if b < 0:
        return a
    if _before(s, b, a):
        a, b = b, a
    s.requests[b].next = s.requests[a].child
    s.requests[a].child = b
    return a


@kernel
def queue_push(s: State, i: int, r: int) -> None:
    """Put r into i's queue, by its key and seq."""
    s.requests[r].next = -1
    s.requests[r].child = -1
    s.instances[i].waiting_root = _meld(s, s.instances[i].waiting_root, r)


@kernel
def queue_pop(s: State, i: int) -> int:
    """Take the first request out of a queue that is not empty."""
    first = s.instances[i].waiting_root
    pairs = -1
    node = s.requests[first].child
    while node >= 0:  # meld the children two by two ...
        partner = s.requests[node].next
        rest = -1
        if partner >= 0:
            rest = s.requests[partner].next
            s.requests[partner].next = -1
        s.requests[node].next = -1
        pair = _meld(s, node, partner)
        s.requests[pair].next = pairs
        pairs = pair
        node = rest
    root = -1
    while pairs >= 0:  # ... then all pairs into one heap
        rest = s.requests[pairs].next
        s.requests[pairs].next = -1
        root = _meld(s, root, pairs)
        pairs = rest
    s.instances[i].waiting_root = root
    s.requests[first].next = -1
    s.requests[first].child = -1
    return first


# --- pending events: a binary heap of requests ordered by (event_s, request) --------------------------------------


@kernel
def _earlier(s: State, a: int, b: int) -> bool:
    x, y = s.requests[a].event_s, s.requests[b].event_s
    return x < y or (x == y and a < b)


@kernel
def _sift_up(s: State, at: int, j: int) -> None:
    r = s.arena[at + j]
    while j > 0:
        parent = (j - 1) >> 1
        p = s.arena[at + parent]
        if not _earlier(s, r, p):
            break
        s.arena[at + j] = p
        s.requests[p].heap_index = j
        j = parent
    s.arena[at + j] = r
    s.requests[r].heap_index = j


@kernel
def _sift_down(s: State, at: int, size: int, j: int) -> None:
    r = s.arena[at + j]
    while True:
        child = 2 * j + 1
        if child >= size:
            break
        if child + 1 < size and _earlier(s, s.arena[at + child + 1], s.arena[at + child]):
            child += 1
        c = s.arena[at + child]
        if not _earlier(s, c, r):
            break
        s.arena[at + j] = c
        s.requests[c].heap_index = j
        j = child
    s.arena[at + j] = r
    s.requests[r].heap_index = j


@kernel
def copy_push(s: State, r: int, time_s: float) -> None:
    """Announce the end of r's copy."""
    sim = s.sim[0]
    s.requests[r].event_s = time_s
    s.arena[sim.heap_at + sim.heap_size] = r
    sim.heap_size += 1
    _sift_up(s, sim.heap_at, sim.heap_size - 1)


@kernel
def copy_withdraw(s: State, r: int) -> None:
    """Take r's pending copy out of the heap, wherever it is."""
    sim = s.sim[0]
    j = s.requests[r].heap_index
    s.requests[r].heap_index = -1
    sim.heap_size -= 1
    last = s.arena[sim.heap_at + sim.heap_size]
    if last != r:
        s.arena[sim.heap_at + j] = last
        s.requests[last].heap_index = j
        _sift_up(s, sim.heap_at, j)
        _sift_down(s, sim.heap_at, sim.heap_size, s.requests[last].heap_index)


@kernel
def release_push(s: State, r: int, time_s: float) -> None:
    """Announce the arrival of a later turn."""
    sim = s.sim[0]
    s.requests[r].event_s = time_s
    s.arena[sim.released_at + sim.released_size] = r
    sim.released_size += 1
    _sift_up(s, sim.released_at, sim.released_size - 1)


@kernel
def release_pop(s: State) -> int:
    """Take the earliest later turn."""
    sim = s.sim[0]
    first = s.arena[sim.released_at]
    sim.released_size -= 1
    if sim.released_size > 0:
        last = s.arena[sim.released_at + sim.released_size]
        s.arena[sim.released_at] = last
        _sift_down(s, sim.released_at, sim.released_size, 0)
    s.requests[first].heap_index = -1
    return first


# --- ends of leaps: a winner tree over the instances, ties to the lower number --------------------------------------


@kernel
def tree_update(s: State, i: int) -> None:
    """Instance i's event_s has changed."""
    sim = s.sim[0]
    node = (sim.tree_leaves + i) >> 1
    while node >= 1:
        left = s.arena[sim.tree_at + 2 * node]
        right = s.arena[sim.tree_at + 2 * node + 1]
        winner = left
        if right < sim.instances and s.progress[right].event_s < s.progress[left].event_s:
            winner = right
        s.arena[sim.tree_at + node] = winner
        node >>= 1


# --- first-in-first-out lists of an instance --------------------------------------------------------------------------


@kernel
def append(s: State, head: int, tail: int, r: int) -> int:
    """Link r behind `tail`; the new head. The new tail is r."""
    s.requests[r].next = -1
    if head < 0:
        return r
    s.requests[tail].next = r
    return head
