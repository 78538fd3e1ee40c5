"""The next step of an instance (SEMANTICS.md: Scheduling, SM sharing)."""

from __future__ import annotations

import math

from framework.engine.reference.duration import start_step
from framework.engine.reference.forming import Form, form_step, form_stream
from framework.engine.reference.kv import let_go
from framework.engine.reference.lockstep import begin_together
from framework.engine.reference.pulling import join, may_join, pull
from framework.engine.reference.reserve import settle_reserve
from framework.engine.reference.roles import follow_plan, has_drained, proceed
from framework.engine.reference.running_list import form_in_order
from framework.engine.reference.simulation import Simulation
from framework.engine.reference.state import Instance
from framework.engine.reference.transfers import send_ahead, start_transfers, switch_over


def take_turn(s: Simulation, i: Instance) -> None:
    """All events of this time have been processed: it is the turn of i to schedule."""
    if not i.woken:  # it has scheduled with its group
        return
    i.woken = False
    if not i.group_steps:
        for rank in i.group:
            rank.woken = False
            if not rank.between:
                rank.take_in_arrivals()
            rank.between = False
            schedule(s, rank)
        if len(i.group) > 1:
            begin_together(s, i.group)
    elif i.may_prefill:
        schedule_prefills(s, i)


def schedule(s: Simulation, i: Instance) -> None:
    """Form i's next step and start it; without anything to do i is idle."""
    i.busy, barred = True, s.gives_way(i)
    for r in list(i.running):
        if r.migration is not None and r.migration.ready:
            switch_over(s, i, r)
    if not i.spec.pulls:
        while i.joining:
            join(s, i)
    if i.draining_role != i.next_role and i.change_event is None and has_drained(s, i):
        proceed(s, i)
    ask_batching(s, i)
    i.changed = False
    set_admission(s, i)
    gave_way = s.gave_way
    i.chunk_preempted = False
    i.swap_bytes = 0.0
    in_order = i.mode == "unified" and s.options.engine.step_order == "admission" and i.prefill_step is None
    decodes, chunks = form_in_order(s, i) if in_order else form_and_pull(s, i)
    if not i.waiting:
        i.admission_opens = -1
    came_free = let_go(s, i)
    if decodes or chunks:
        start_step(s, i, decodes, chunks)
        if len(i.group) == 1:
            send_ahead(s, i, chunks)
    else:
        i.busy = False
    if came_free:
        start_transfers(s, i)
    if barred and not i.spec.pulls:
        start_transfers(s, i)
    if s.gave_way > gave_way:
        start_transfers(s, i)
        s.wake(i)
    settle_reserve(s, i, s.gave_way > gave_way, bool(chunks) and not decodes)
    if s.options.asynchronous:
        prepare_next(s, i)


def form_and_pull(s: Simulation, i: Instance) -> Form:
    """The decodes and chunks of i's next step, decodes first; those whose KV has been fetched come before all else."""
    while i.spec.pulls and may_join(i):
        join(s, i)
    gave_way = s.gave_way
    form = form_step(s, i)
    if i.spec.pulls and s.gave_way == gave_way:
        pull(s, i)
    return form


def prepare_next(s: Simulation, i: Instance) -> None:
    """The step after the one just formed may hold those that came meanwhile, and count on what came free late."""
    concerned = bool(i.waiting or i.joining or i.swapped) or i.draining_role != i.next_role
    news = bool(i.inbox) or (concerned and i.late_seats + i.late_blocks > 0)
    i.late_seats = i.late_blocks = 0
    i.take_in_arrivals()
    if news:
        s.wake(i)


def schedule_prefills(s: Simulation, i: Instance) -> None:
    """The prefill stream alone begins: decodes are under way."""
    barred = s.gives_way(i)
    ask_batching(s, i)
    set_admission(s, i)
    gave_way = s.gave_way
    i.chunk_preempted = False
    if i.mode == "concurrent":
        form_stream(s, i, barred=False)
    if not i.waiting:
        i.admission_opens = -1
    if barred and not i.spec.pulls:
        start_transfers(s, i)
    if s.gave_way > gave_way:
        start_transfers(s, i)
        s.wake(i)
    settle_reserve(s, i, s.gave_way > gave_way, False)


def ask_batching(s: Simulation, i: Instance) -> None:
    """Ask for the plan of i's coming steps, and for new keys of its queue where they are dynamic."""
    if i.changed and "batching" in s.hooks.overrides:
        follow_plan(i, s.hooks.batching(s, i))
    if i.changed and s.hooks.dynamic_keys:
        renew_keys(s, i)


def set_admission(s: Simulation, i: Instance) -> None:
    """Close admission for a while where requests wait, and none did; open it where a prompt is computed in part."""
    if i.prefilling:
        i.closed = False
    if i.closed and not i.running and not s.options.asynchronous:
        i.closed, i.opens_after = False, []
    if i.admission_opens < 0 and i.waiting:
        i.admission_opens = int(i.totals["decode_steps"]) + s.options.admission_wait_steps


def renew_keys(s: Simulation, i: Instance) -> None:
    """Ask for the keys of i's queue anew, in its order; those preempted stay before all others."""
    i.waiting.sort()
    for k, (key, number, r) in enumerate(i.waiting):
        if key > -math.inf:
            r.key = s.hooks.prioritize(s, r)
            i.waiting[k] = (r.key, number, r)
