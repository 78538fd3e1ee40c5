"""Asynchronous scheduling: a step is formed while the one before it runs, from what was known when that one started.

Two things are known a step later than where steps are formed between each other: requests that came while a step ran,
which wait in the inbox of their instance until the next step has been formed, and the seats and blocks of requests that
ended with that step, which the next one cannot count on. An instance without a step under way knows all at once.
"""

from __future__ import annotations

from framework.compiler.decorators import inner
from framework.engine.events import wake
from framework.engine.kv_blocks import available, seats
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
def prepare_next(s: State, i: int) -> None:
    """i's step has been formed: the next one may hold those that came meanwhile, and count on what came free late."""
    inst = s.instances[i]
    came = inst.inbox_head >= 0
    late = inst.late_seats + inst.late_blocks > 0 and inst.waiting_root >= 0
    inst.late_seats = 0
    inst.late_blocks = 0
    take_in(s, i)
    if came or late:
        wake(s, i)
