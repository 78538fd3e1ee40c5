"""Asynchronous scheduling: a step is formed while the previous one runs, from the state at the start of that one.

The scheduler learns two things one step later than a synchronous one:

1. Requests that arrive while a step runs. They wait in the inbox of their instance until the next step is formed.
2. Requests that end with that step. Their free is deferred: they keep their KV until the next step is formed, or until
   they are preempted as running requests are. No request is admitted to their seats.

An instance without a step under way learns both at once. An instance with two streams forms the next step of each
stream while the present one runs. The prefill stream has the queue and the inbox. The decode stream learns one step
later which prompts that stream has computed.
"""

from __future__ import annotations

import numpy as np

from framework.codes import CONCURRENT, JOINING
from framework.compiler.decorators import inner, unlikely
from framework.engine.events.ask import is_asked
from framework.engine.events.order import await_turn, stores_gained, wake
from framework.engine.kv.kv_cache import free_ended
from framework.engine.memory.kv_blocks import available, seats
from framework.engine.memory.queues import append, queue_push
from framework.engine.memory.state import State
from framework.engine.parallel.sm_sharing import streaming
from framework.engine.requests.notices import note_call_end
from framework.policy.hooks import ON_CALL_END

_NEVER = -np.inf


@inner
def put_in_inbox(s: State, i: int, r: int) -> None:
    """Put r in i's inbox until i's next step is formed, or until i has no step."""
    inst = s.instances[i]
    inst.inbox_head = append(s, inst.inbox_head, inst.inbox_tail, r)
    inst.inbox_tail = r


@inner
def take_in(s: State, i: int) -> None:
    """Move the requests of i's inbox into its queue, in order of arrival."""
    inst = s.instances[i]
    while inst.inbox_head >= 0:
        r = inst.inbox_head
        inst.inbox_head = s.requests[r].next
        queue_push(s, i, r)


@inner
def note_late(s: State, i: int, free_blocks: int, taken_seats: int) -> None:
    """Note blocks and seats that this step of i freed as late; `free_blocks`, `taken_seats`: before requests ended."""
    inst = s.instances[i]
    inst.late_blocks = max(0, available(s, i) - free_blocks)
    inst.late_seats = max(0, taken_seats - seats(s, i))


@inner
def defer_free(s: State, i: int, r: int) -> None:
    """Keep r's KV until the next step is formed: r has ended with a step of i."""
    inst = s.instances[i]
    inst.deferred_head = append(s, inst.deferred_head, inst.deferred_tail, r)
    inst.deferred_tail = r


@inner
def free_deferred(s: State, i: int) -> bool:
    """Free the KV whose free is deferred on i; whether there was any."""
    inst = s.instances[i]
    if inst.deferred_head < 0:
        return False
    while inst.deferred_head >= 0:
        r = inst.deferred_head
        inst.deferred_head = s.requests[r].next
        _free(s, i, r)
    return True


@inner
def _free(s: State, i: int, r: int) -> None:
    """Free the deferred KV of r on i."""
    free_now(s, i, r)
    if unlikely(is_asked(s, ON_CALL_END)):
        note_call_end(s, r)


@inner
def free_now(s: State, i: int, r: int) -> None:
    """Free the KV of r, which has ended on i; of prompts that wait, less may be left with what tiers took of it."""
    free_ended(s, i, r)
    if unlikely(s.options.keeps_outputs):
        stores_gained(s)


@inner
def free_deferred_early(s: State, i: int, r: int) -> None:
    """Free the deferred KV of r on i early, while the next step is being formed."""
    inst = s.instances[i]
    other, head, tail = inst.deferred_head, -1, -1
    while other >= 0:
        following = s.requests[other].next
        if other != r:
            head = append(s, head, tail, other)
            tail = other
        other = following
    inst.deferred_head, inst.deferred_tail = head, tail
    forget_last(s, i, r)
    _free(s, i, r)


@inner
def forget_last(s: State, i: int, r: int) -> None:
    """Keep the last token of r out of the prefix cache.

    The scheduler does not know yet which token r got in the step of i that still runs, so the KV that this step stores
    must not enter the prefix cache.
    """
    if unlikely(s.options.asynchronous) and s.requests[r].join_step < s.instances[i].decode_steps:
        s.requests[r].accepted += 1


@inner
def last_deferred(s: State, i: int) -> int:
    """The request with a deferred free on i that was admitted last; -1: there is none."""
    r, last = s.instances[i].deferred_head, -1
    while r >= 0:
        if last < 0 or s.requests[r].admission > s.requests[last].admission:
            last = r
        r = s.requests[r].next
    return last


@inner
def prepare_next(s: State, i: int) -> None:
    """Let the next step use the inbox, and the blocks and seats that came free late: i's step has been formed."""
    came, late = s.instances[i].inbox_head >= 0, _know_late(s, i)
    take_in(s, i)
    _note_known(s, i)
    if came or late:
        wake(s, i)


@inner
def prepare_decodes(s: State, i: int) -> None:
    """Leave the inbox to the next prefill step: i's decode step was formed while a prefill step ran."""
    if _know_late(s, i):
        wake(s, i)


@inner
def _know_late(s: State, i: int) -> bool:
    """Let the next step use the blocks and seats of i that came free late; whether anyone there waits for them."""
    inst = s.instances[i]
    concerned = inst.waiting_root >= 0 or inst.joining_head >= 0 or inst.swapped > 0
    concerned |= inst.draining_role != inst.next_role
    late = inst.late_seats + inst.late_blocks > 0 and concerned
    inst.late_seats = 0
    inst.late_blocks = 0
    return bool(late)


# --- two streams ------------------------------------------------------------------------------------------------------


@inner
def look_around(s: State, i: int) -> None:
    """Let each idle stream of i, which is about to schedule, learn which requests have come."""
    inst = s.instances[i]
    if not inst.busy and not inst.between:
        inst.computed_known = inst.computed
    is_idle = inst.mode == CONCURRENT or not inst.between
    if is_idle and not streaming(s, i) and not has_just_prefilled(s, i):
        take_in(s, i)


@inner
def has_just_prefilled(s: State, i: int) -> bool:
    """Whether a prefill step of i has ended at this time, and the next one, formed while it ran, has not begun."""
    return bool(s.options.asynchronous and s.prefill_step[i].ended_s == s.sim.now_s)


@inner
def _note_known(s: State, i: int) -> None:
    """Form the next prefill step of i if one has begun: it cannot count on more room than there is now."""
    stream = s.prefill_step[i]
    stream.ended_s = _NEVER
    if unlikely(streaming(s, i)):
        stream.available_blocks = available(s, i)
        stream.seats = seats(s, i)


@inner
def note_prefill_end(s: State, i: int) -> None:
    """Note as late what came free during i's prefill step, which has ended; the next one begins at this time."""
    inst, stream = s.instances[i], s.prefill_step[i]
    inst.late_blocks = max(inst.late_blocks, available(s, i) - stream.available_blocks)
    inst.late_seats = max(inst.late_seats, stream.seats - seats(s, i))
    stream.ended_s = s.sim.now_s
    await_turn(s, i)


@inner
def await_decodes(s: State, i: int, r: int) -> None:
    """Let r, whose prompt i's prefill stream has computed, decode on i from the first step on that is formed now."""
    inst = s.instances[i]
    inst.computed_head = append(s, inst.computed_head, inst.computed_tail, r)
    inst.computed_tail = r
    inst.computed += 1
    inst.joining += 1
    s.requests[r].state = JOINING
    if not s.options.asynchronous:
        inst.computed_known = inst.computed


@inner
def make_known(s: State, i: int) -> None:
    """Let the next decode step of i hold the prompts computed by now, as a decode step has been formed."""
    inst = s.instances[i]
    if unlikely(inst.computed_known < inst.computed):
        inst.computed_known = inst.computed
        wake(s, i)
