"""Asynchronous scheduling: a step is formed while the one before it runs, from what was known when that one started.

Two things are known a step later than where steps are formed between each other: requests that came while a step ran,
which wait in the inbox of their instance until the next step has been formed, and which requests ended with that step.
These linger: they keep their KV until the next step has been formed, or until they give way like those that run; and
nobody is admitted to their seats. An instance without a step under way knows all at once.
"""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.events import wake
from framework.engine.kv_blocks import available, seats
from framework.engine.kv_cache import free_kv
from framework.engine.queues import append, queue_push
from framework.engine.state import State


@inner
def put_in_inbox(s: State, i: int, r: int) -> None:
    """Let r wait until i's next step has been formed, or until i is found without a step."""
    inst = s.instances[i]
    inst.inbox_head = append(s, inst.inbox_head, inst.inbox_tail, r)
    inst.inbox_tail = r


@inner
def take_in(s: State, i: int) -> None:
    """Put those in i's inbox into its queue, in the order in which they came."""
    inst = s.instances[i]
    while inst.inbox_head >= 0:
        r = inst.inbox_head
        inst.inbox_head = s.requests[r].next
        queue_push(s, i, r)


@inner
def note_late(s: State, i: int, free_blocks: int, taken_seats: int) -> None:
    """A step of i has ended, with so many blocks free and seats taken before requests did: what came free is late."""
    inst = s.instances[i]
    inst.late_blocks = max(0, available(s, i) - free_blocks)
    inst.late_seats = max(0, taken_seats - seats(s, i))


@inner
def linger(s: State, i: int, r: int) -> None:
    """r has ended with a step of i: its KV stays there until the next one has been formed."""
    inst = s.instances[i]
    inst.lingering_head = append(s, inst.lingering_head, inst.lingering_tail, r)
    inst.lingering_tail = r


@inner
def let_go(s: State, i: int) -> bool:
    """Free the KV of those that linger on i; whether there are any."""
    inst = s.instances[i]
    if inst.lingering_head < 0:
        return False
    while inst.lingering_head >= 0:
        r = inst.lingering_head
        inst.lingering_head = s.requests[r].next
        free_kv(s, i, r)
    return True


@inner
def let_go_early(s: State, i: int, r: int) -> None:
    """Free the KV of r, which lingers on i, while the next step is being formed."""
    inst = s.instances[i]
    other, head, tail = inst.lingering_head, -1, -1
    while other >= 0:
        following = s.requests[other].next
        if other != r:
            head = append(s, head, tail, other)
            tail = other
        other = following
    inst.lingering_head, inst.lingering_tail = head, tail
    forget_last(s, i, r)
    free_kv(s, i, r)


@inner
def forget_last(s: State, i: int, r: int) -> None:
    """While i's next step is formed it is not known which token the last one gave r, if r decoded in it: the token
    whose KV that step stored is the last that is known, and no cache has it yet.
    """
    if unlikely(s.options.asynchronous) and s.requests[r].join_step < s.instances[i].decode_steps:
        s.requests[r].accepted += 1


@inner
def last_lingering(s: State, i: int) -> int:
    """Of those that linger on i the one that was admitted last, -1: there are none."""
    r, last = s.instances[i].lingering_head, -1
    while r >= 0:
        if last < 0 or s.requests[r].admission > s.requests[last].admission:
            last = r
        r = s.requests[r].next
    return last


@inner
def prepare_next(s: State, i: int) -> None:
    """i's step has been formed: the next one may hold those that came meanwhile, and count on what came free late."""
    inst = s.instances[i]
    came = inst.inbox_head >= 0
    concerned = inst.waiting_root >= 0 or inst.joining_head >= 0 or inst.swapped > 0
    concerned |= inst.draining_role != inst.next_role
    late = inst.late_seats + inst.late_blocks > 0 and concerned
    inst.late_seats = 0
    inst.late_blocks = 0
    take_in(s, i)
    if came or late:
        wake(s, i)
