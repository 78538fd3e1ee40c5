"""Clients that give up: each waits so long for its prompt to be computed, and may send its request again later."""

from __future__ import annotations

import numpy as np

from framework.codes import CANCELLED, FINISHED, FUTURE, GATEWAY, GIVE_UP, REASON_GAVE_UP
from framework.compiler.decorators import inner
from framework.engine.kv.backups import forget_backup
from framework.engine.memory.queues import turn_push
from framework.engine.memory.state import State
from framework.engine.requests.lifecycle import end_request
from framework.engine.requests.parking import forget_place


@inner
def begin_to_wait(s: State, r: int) -> None:
    """r has arrived: its client waits from now on, unless it was refused."""
    q, sim = s.requests[r], s.sim
    if q.state == FUTURE or q.state >= FINISHED:
        return
    last = (sim.patient_first + sim.patient) % s.options.requests
    s.lists[s.options.patient_at + last] = r
    s.times[s.options.patient_times_at + last] = sim.now_s + s.options.patience_s
    s.lists[s.options.attempts_at + r] += 1
    sim.patient += 1
    sim.awaited += 1
    if sim.patient == 1:
        note_next_to_give_up(s)


@inner
def note_next_to_give_up(s: State) -> None:
    """Note whose client gives up next, if that comes before what else is known to come."""
    sim = s.sim
    if sim.patient == 0:
        return
    time_s = s.times[s.options.patient_times_at + sim.patient_first]
    if time_s < sim.change_s or (time_s == sim.change_s and sim.change_kind == GATEWAY):
        sim.change_s = time_s
        sim.changing = s.lists[s.options.patient_at + sim.patient_first]
        sim.change_kind = GIVE_UP


@inner
def waits_no_more(s: State) -> None:
    """The client that has waited longest has waited as long as it does."""
    sim = s.sim
    sim.patient_first = (sim.patient_first + 1) % s.options.requests
    sim.patient -= 1
    sim.awaited -= 1


@inner
def has_its_prompt(s: State, r: int) -> bool:
    """Whether the prompt of r has been computed, so that nobody gives it up."""
    return not np.isnan(s.requests[r].prefill_end_s)


@inner
def end_cancelled(s: State, r: int, reason: int) -> None:
    """r, which holds nothing and is in no list, is cancelled; one that its client gave up may be sent again."""
    attempts = s.lists[s.options.attempts_at + r] if reason == REASON_GAVE_UP else 0
    again_s = s.sim.now_s + s.options.retry_backoff_s * 2.0 ** (attempts - 1)
    if 0 < attempts <= s.options.retries and again_s < s.options.horizon_s:
        q = s.requests[r]
        q.state = FUTURE
        q.instance = -1
        q.destination = -1
        q.split = 0
        forget_place(s, r)
        forget_backup(s, r)
        turn_push(s, r, again_s)
    else:
        end_request(s, r, CANCELLED, reason)
