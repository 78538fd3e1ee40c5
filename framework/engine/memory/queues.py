"""Lists of requests and of pending events, linked through the request records: no list has a capacity of its own."""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.memory.state import State

# --- waiting queue of an instance: a pairing heap ordered by (key, number) ------------------------------------------


@inner
def is_before(s: State, a: int, b: int) -> bool:
    """Whether request a is before b in a queue."""
    x, y = s.requests[a], s.requests[b]
    return x.key < y.key or (x.key == y.key and x.queue_number < y.queue_number)


@inner
def _meld(s: State, a: int, b: int) -> int:
    """Join two heaps (-1: empty) whose roots are in no other list."""
    if a < 0:
        return b
    if b < 0:
        return a
    if is_before(s, b, a):
        a, b = b, a
    s.requests[b].next = s.requests[a].child
    s.requests[a].child = b
    return a


@inner
def queue_push(s: State, i: int, r: int) -> None:
    """Put r into i's queue, by its key and queue number."""
    s.requests[r].next = -1
    s.requests[r].child = -1
    s.instances[i].waiting_root = _meld(s, s.instances[i].waiting_root, r)


@inner
def queue_pop(s: State, i: int) -> int:
    """Take the first request out of a nonempty queue."""
    first = s.instances[i].waiting_root
    pairs = -1
    node = s.requests[first].child
    while node >= 0:  # First the children are melded in pairs.
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
    while pairs >= 0:  # Then the pairs are melded into one heap.
        rest = s.requests[pairs].next
        s.requests[pairs].next = -1
        root = _meld(s, root, pairs)
        pairs = rest
    s.instances[i].waiting_root = root
    s.requests[first].next = -1
    s.requests[first].child = -1
    return first


@inner
def queue_drop(s: State, i: int, r: int) -> None:
    """Take r out of i's queue by rebuilding the queue without r."""
    head, tail = -1, -1
    while s.instances[i].waiting_root >= 0:
        other = queue_pop(s, i)
        if other != r:
            head = append(s, head, tail, other)
            tail = other
    while head >= 0:
        other = head
        head = s.requests[other].next
        queue_push(s, i, other)


# --- pending events: a binary heap of requests ordered by (event_s, request) --------------------------------------


@inner
def _earlier(s: State, a: int, b: int) -> bool:
    x, y = s.requests[a].event_s, s.requests[b].event_s
    return x < y or (x == y and a < b)


@inner
def _sift_up(s: State, at: int, j: int) -> None:
    r = s.lists[at + j]
    while j > 0:
        parent = (j - 1) >> 1
        p = s.lists[at + parent]
        if not _earlier(s, r, p):
            break
        s.lists[at + j] = p
        s.requests[p].heap_index = j
        j = parent
    s.lists[at + j] = r
    s.requests[r].heap_index = j


@inner
def _sift_down(s: State, at: int, size: int, j: int) -> None:
    r = s.lists[at + j]
    while True:
        child = 2 * j + 1
        if child >= size:
            break
        if child + 1 < size and _earlier(s, s.lists[at + child + 1], s.lists[at + child]):
            child += 1
        c = s.lists[at + child]
        if not _earlier(s, c, r):
            break
        s.lists[at + j] = c
        s.requests[c].heap_index = j
        j = child
    s.lists[at + j] = r
    s.requests[r].heap_index = j


@inner
def copy_push(s: State, r: int, time_s: float) -> None:
    """Announce the end of r's copy."""
    _heap_push(s, s.options.heap_at, s.sim.heap_size, r, time_s)
    s.sim.heap_size += 1


@inner
def copy_withdraw(s: State, r: int) -> None:
    """Take r's pending copy out of the heap."""
    sim = s.sim
    j = s.requests[r].heap_index
    s.requests[r].heap_index = -1
    sim.heap_size -= 1
    last = s.lists[s.options.heap_at + sim.heap_size]
    if last != r:
        s.lists[s.options.heap_at + j] = last
        s.requests[last].heap_index = j
        _sift_up(s, s.options.heap_at, j)
        _sift_down(s, s.options.heap_at, sim.heap_size, s.requests[last].heap_index)


@inner
def copy_move(s: State, r: int, time_s: float) -> None:
    """Move the announced end of r's copy to another time."""
    s.requests[r].event_s = time_s
    _sift_up(s, s.options.heap_at, s.requests[r].heap_index)
    _sift_down(s, s.options.heap_at, s.sim.heap_size, s.requests[r].heap_index)


@inner
def turn_push(s: State, r: int, time_s: float) -> None:
    """Announce the arrival time of a later turn."""
    _heap_push(s, s.options.turns_at, s.sim.turns_size, r, time_s)
    s.sim.turns_size += 1


@inner
def turn_pop(s: State) -> int:
    """Take the later turn that arrives first."""
    s.sim.turns_size -= 1
    return _heap_pop(s, s.options.turns_at, s.sim.turns_size)


@inner
def pin_end_push(s: State, r: int, time_s: float) -> None:
    """Announce the end of the TTL of r's pin."""
    _heap_push(s, s.options.pin_ends_at, s.sim.pin_ends, r, time_s)
    s.sim.pin_ends += 1


@inner
def pin_end_pop(s: State) -> int:
    """Take the request whose TTL ends first."""
    s.sim.pin_ends -= 1
    return _heap_pop(s, s.options.pin_ends_at, s.sim.pin_ends)


@inner
def _heap_push(s: State, at: int, size: int, r: int, time_s: float) -> None:
    """Add r, whose event comes at that time, to a heap of `size` requests."""
    s.requests[r].event_s = time_s
    s.lists[at + size] = r
    _sift_up(s, at, size)


@inner
def _heap_pop(s: State, at: int, size: int) -> int:
    """Take the first request of a heap, which then has `size` requests."""
    first = s.lists[at]
    if size > 0:
        s.lists[at] = s.lists[at + size]
        _sift_down(s, at, size, 0)
    s.requests[first].heap_index = -1
    return first


# --- first-in-first-out lists of an instance --------------------------------------------------------------------------


@inner
def append(s: State, head: int, tail: int, r: int) -> int:
    """Link r behind `tail` and return the new head; r is the new tail."""
    s.requests[r].next = -1
    if head < 0:
        return r
    s.requests[tail].next = r
    return head


@inner
def take_out(s: State, head: int, tail: int, r: int) -> tuple[int, int]:
    """Take r out of a linked list that has it; return its head and its tail, -1 if it is empty now."""
    before, other = -1, head
    while other != r:
        before, other = other, s.requests[other].next
    if before < 0:
        head = s.requests[r].next
    else:
        s.requests[before].next = s.requests[r].next
    return head, before if tail == r else tail
