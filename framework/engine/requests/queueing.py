"""Waiting requests: into the queue of an instance, for the first time or again."""

from __future__ import annotations

import numpy as np

from framework.codes import WAITING
from framework.compiler.decorators import inner, unlikely
from framework.engine.events.order import wake
from framework.engine.memory.queues import queue_push
from framework.engine.memory.state import State
from framework.engine.requests.asynchronous import put_in_inbox


@inner
def enter_queue(s: State, i: int, r: int) -> None:
    """Queue r, whose key and queue number are set, at i; all tokens that it has so far must be prefilled."""
    _count_waiting(s, i, r)
    if unlikely(s.options.asynchronous):
        put_in_inbox(s, i, r)
    else:
        queue_push(s, i, r)
    wake(s, i)


@inner
def _count_waiting(s: State, i: int, r: int) -> None:
    q, inst = s.requests[r], s.instances[i]
    q.prefill_until = q.input_tokens + q.emitted
    if unlikely(0 < q.split < q.prefill_until):
        q.prefill_until = q.split
    q.prefilled = 0
    inst.queued += 1
    inst.queued_tokens += q.prefill_until


@inner
def queue_again(s: State, i: int, r: int) -> None:
    """Queue the preempted r at i: before all others, at its old place, or behind those of its key."""
    q = s.requests[r]
    q.instance = i
    q.state = WAITING
    if unlikely(s.options.waits_last):
        s.sim.queue_number += 1
        q.queue_number = s.sim.queue_number
    elif not unlikely(s.options.least_urgent):
        q.key = -np.inf
        q.queue_number = -s.sim.preemptions
    join_queue(s, i, r)


@inner
def join_queue(s: State, i: int, r: int) -> None:
    """Queue r, which has been in a queue before, at i; it keeps its key and queue number, and skips the inbox."""
    _count_waiting(s, i, r)
    if unlikely(recomputes_here(s, r)):
        s.instances[i].recompute_tokens += s.requests[r].prefill_until
    queue_push(s, i, r)
    wake(s, i)


@inner
def recomputes_here(s: State, r: int) -> bool:
    """Whether r, which waits or prefills, is recomputed on the instance of its decode."""
    q = s.requests[r]
    return bool(s.options.recomputes_there and (q.emitted > 0 or q.first_token_pending) and not q.rerouted)
