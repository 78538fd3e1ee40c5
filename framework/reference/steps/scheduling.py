"""The next step of an instance (SEMANTICS.md: Scheduling, SM sharing)."""

from __future__ import annotations

import math

from framework.reference.copies.transfers import send_ahead, start_transfers, switch_over
from framework.reference.kv import free_deferred
from framework.reference.pins import break_pin_if_needed
from framework.reference.pulling import join, join_computed, may_join, pull
from framework.reference.reserve import settle_reserve
from framework.reference.roles import follow_plan, has_drained, proceed
from framework.reference.simulation import Simulation
from framework.reference.state import Instance
from framework.reference.steps.duration import start_step
from framework.reference.steps.forming import Form, form_step, form_stream
from framework.reference.steps.lockstep import begin_together
from framework.reference.steps.running_list import form_in_order, pause_others


def take_turn(s: Simulation, i: Instance) -> None:
    """Take the turn of i to schedule: all events of this time have been processed."""
    if not i.woken:  # it has scheduled with its group
        return
    i.woken = i.looked = False
    if not i.group_steps:
        for rank in i.group:
            rank.woken = False
            look_around(s, rank)
            rank.between = rank.asked = False
            schedule(s, rank)
        if len(i.group) > 1:
            begin_together(s, i.group)
    elif i.may_prefill or i.prefill_ended_s == s.now_s:
        look_around(s, i)
        schedule_prefills(s, i)


def look_around(s: Simulation, i: Instance) -> None:
    """Let each idle stream of i, which is about to schedule, learn which requests have come."""
    if not i.busy and not i.between:
        i.known = len(i.computed)
    if i.prefill_step is None and i.prefill_ended_s < s.now_s and (i.mode == "concurrent" or not i.between):
        i.take_in_arrivals()


def schedule(s: Simulation, i: Instance) -> None:
    """Form i's next step and start it; i is idle if there is nothing to do."""
    i.busy, barred, streamed = True, s.gives_way(i), i.prefill_step is not None
    let_in(s, i)
    if i.draining_role != i.next_role and i.change_event is None and has_drained(s, i):
        proceed(s, i)
    ask_batching(s, i)
    ask_select(s, i)
    i.changed = False
    set_admission(s, i)
    gave_way = s.gave_way
    i.chunk_preempted = False
    in_order = i.mode == "unified" and s.options.engine.step_order == "admission" and i.prefill_step is None
    decodes, chunks = form_in_order(s, i) if in_order else form_and_pull(s, i)
    if not i.waiting:
        i.admission_opens = -1
    came_free = free_deferred(s, i)
    if decodes or chunks:
        start_step(s, i, decodes, chunks)
        if len(i.group) == 1:
            send_ahead(s, i, chunks)
    else:
        i.busy = False
    i.swap_bytes = 0.0
    if came_free:
        start_transfers(s, i)
    if barred and not i.spec.pulls:
        start_transfers(s, i)
    if s.gave_way > gave_way:
        start_transfers(s, i)
        s.wake(i)
    settle_reserve(s, i, s.gave_way > gave_way, bool(chunks) and not decodes)
    if not decodes and not chunks:
        break_pin_if_needed(s, i)
    if s.options.asynchronous:
        (prepare_decodes if streamed else prepare_next)(s, i)
        if i.known < len(i.computed):
            i.known = len(i.computed)
            s.wake(i)


def let_in(s: Simulation, i: Instance) -> None:
    """Let migrated requests leave, and computed or sent ones join, before the step is formed."""
    for r in list(i.running):
        if r.migration is not None and r.migration.ready:
            switch_over(s, i, r)
    while i.known:
        join_computed(s, i)
    while i.joining and not i.spec.pulls:
        join(s, i)


def form_and_pull(s: Simulation, i: Instance) -> Form:
    """The decodes and chunks of i's next step, decodes first; requests with fetched KV come before all else."""
    while i.spec.pulls and may_join(i):
        join(s, i)
    gave_way = s.gave_way
    form = form_step(s, i)
    if form[0]:
        pause_others(s, i, form[0])
    if i.spec.pulls and s.gave_way == gave_way:
        pull(s, i)
    return form


def prepare_next(s: Simulation, i: Instance) -> None:
    """Let the step after the one just formed use the inbox, and the blocks and seats that came free late."""
    came, late = bool(i.inbox), knows_late(i)
    i.take_in_arrivals()
    i.prefill_ended_s = -math.inf
    i.known_room = (i.seats, i.cache.available)
    if came or late:
        s.wake(i)


def prepare_decodes(s: Simulation, i: Instance) -> None:
    """Do the same while a prefill step runs: the inbox is left to the next prefill step."""
    if knows_late(i):
        s.wake(i)


def knows_late(i: Instance) -> bool:
    """Let the next step use the blocks and seats that came free late; whether anyone there waits for them."""
    concerned = bool(i.waiting or i.joining or i.swapped) or i.draining_role != i.next_role
    late = concerned and i.late_seats + i.late_blocks > 0
    i.late_seats = i.late_blocks = 0
    return late


def schedule_prefills(s: Simulation, i: Instance) -> None:
    """Start or continue the prefill stream alone, while decodes are under way."""
    barred, gave_way = s.gives_way(i), s.gave_way
    if i.may_prefill:
        ask_batching(s, i)
        set_admission(s, i)
        i.chunk_preempted = False
        if i.mode == "concurrent":
            form_stream(s, i, barred=False)
        if not i.waiting:
            i.admission_opens = -1
    if free_deferred(s, i):
        start_transfers(s, i)
    if barred and not i.spec.pulls:
        start_transfers(s, i)
    if s.gave_way > gave_way:
        start_transfers(s, i)
        s.wake(i)
    settle_reserve(s, i, s.gave_way > gave_way, False)
    if s.options.asynchronous:
        prepare_next(s, i)


def ask_batching(s: Simulation, i: Instance) -> None:
    """Ask for the plan of i's next steps and, if keys are dynamic, for new keys of its queue."""
    if i.changed and s.gate is not None:
        s.gate.note_turn(s)
    if i.changed and "batching" in s.hooks.overrides:
        follow_plan(i, s.hooks.batching(s, i))
    if i.changed and s.hooks.dynamic_keys:
        renew_keys(s, i)


def ask_select(s: Simulation, i: Instance) -> None:
    """Ask which decodes i's next steps leave out, if i has several; before the answer, none is left out."""
    if i.changed and "select" in s.hooks.overrides:
        for r in i.running:
            r.skips = False
        for id in s.hooks.select(s, i) if len(i.running) > 1 else ():
            s.requests[id].skips = True


def set_admission(s: Simulation, i: Instance) -> None:
    """Close admission for a while if requests begin to wait, and open it if a prompt is partly computed."""
    if i.prefilling:
        i.closed = False
    if i.closed and not i.running and not s.options.asynchronous:
        i.closed, i.opens_after = False, []
    if i.admission_opens < 0 and i.waiting:
        i.admission_opens = int(i.totals["decode_steps"]) + s.options.admission_wait_steps


def renew_keys(s: Simulation, i: Instance) -> None:
    """Ask again for the keys of i's queue, in queue order; preempted requests stay before all others."""
    i.waiting.sort()
    asked = [(number, r) for key, number, r in i.waiting if key > -math.inf]
    if asked:
        keys = s.hooks.prioritize(s, [r for _, r in asked])
        for k, ((number, r), key) in enumerate(zip(asked, keys, strict=True), len(i.waiting) - len(asked)):
            r.key = float(key)
            r.place = r.key, number
            i.waiting[k] = (*r.place, r)
