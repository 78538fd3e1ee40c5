"""Decisions of a policy about requests that already run, and all its actions (SEMANTICS.md: Ticks, Decisions)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from framework.codes import PREFILL, ROLES
from framework.reference.arrivals import take_place
from framework.reference.asking import ask_route_prefill, checked
from framework.reference.copies.links import withdraw_copy
from framework.reference.copies.transfers import (
    cancel_migration,
    give_up_place,
    migrate,
    start_decoding,
    start_transfers,
    stop_decoding,
)
from framework.reference.faults.parking import park
from framework.reference.giving_up import GAVE_UP, end_cancelled
from framework.reference.kv import evict
from framework.reference.prefixes import free_kv
from framework.reference.roles import scale, set_role
from framework.reference.simulation import Simulation
from framework.reference.spans.waiting import await_span
from framework.reference.state import FAILED, FINISHED, Instance, Postponed, Request

Action = tuple[Any, ...]  # an action of `Hooks.on_tick`


def decision_is_due(s: Simulation, i: Instance) -> bool:
    """Whether the policy decides before i, whose turn it is, and its group schedule."""
    decides = "decide" in s.hooks.overrides or s.postponed
    is_in_step = i.busy or i.group_steps
    return bool(decides) and i.woken and not is_in_step and any(k.changed and not k.asked for k in i.group)


def decide(s: Simulation, i: Instance) -> None:
    """Carry out what was postponed to this turn of i and its group, then ask the policy, instance by instance."""
    due = [entry for entry in s.postponed if entry.instance in i.group]
    s.postponed = [entry for entry in s.postponed if entry.instance not in i.group]
    for entry in due:
        decide_about(s, s.requests[entry.action[1]], entry.action, i.group)
    for k in i.group:
        if k.changed and not k.asked:
            k.asked = True
            for action in s.hooks.decide(s, k) if "decide" in s.hooks.overrides else ():
                carry_out(s, "decide", action, i.group)


def tell(s: Simulation) -> None:
    """Tell the policy of finished requests, in the order of their ends; the actions of each answer follow at once."""
    while s.finished_seen < len(s.ended) and "on_finish" in s.hooks.overrides:
        r = s.ended[s.finished_seen]
        s.finished_seen += 1
        if r.state == FINISHED:
            for action in s.hooks.on_finish(s, r):
                carry_out(s, "on_finish", action)


def carry_out(s: Simulation, hook: str, action: Action, scheduling: Sequence[Instance] = ()) -> None:
    """Carry out one action of a hook; `scheduling` are the instances that are about to schedule."""
    kind, a, *rest = action
    if kind == "role":
        set_role(s, checked(s, hook, a, ""), ROLES[rest[0]], rest[1])
    elif kind == "scale":
        scale(s, a, rest[0])
    elif kind == "migrate":
        migrate(s, s.requests[a], checked(s, hook, rest[0], f" for request {a}"))
    elif kind == "budget":
        i = checked(s, hook, a, "")
        i.token_budget = rest[0]
        if not i.down:
            s.wake(i)
    elif kind == "seats":
        i = checked(s, hook, a, "")
        i.max_batch = rest[0]
        if not i.down:
            start_transfers(s, i)
            s.wake(i)
    elif kind == "drafts":
        i = checked(s, hook, a, "")
        i.most_drafts = rest[0]
        if not i.down:
            s.wake(i)
    else:
        decide_about(s, s.requests[a], action, scheduling)


def decide_about(s: Simulation, r: Request, action: Action, scheduling: Sequence[Instance]) -> None:
    """Preempt, resume, cancel or requeue r now, or at its instance's turn if r leaves or joins a step."""
    if action[0] == "cancel" and action[2] == GAVE_UP and not math.isnan(r.prefill_end_s):
        return
    if r in s.parked:
        if action[0] == "cancel":
            s.parked.remove(r)
            end_cancelled(s, r, action[2])
        return
    if r in s.spans.waiting:
        if action[0] == "cancel":
            s.spans.waiting.remove(r)
            end_cancelled(s, r, action[2])
        return
    if s.gate is not None and r in s.gate.waiting:
        if action[0] == "cancel":
            cancel_at_gateway(s, r, action[2])
        return
    if r.id not in s.present or r.instance < 0:  # it has not come, is in the front end, or has ended
        return
    i = s.instances[r.instance]
    if action[0] == "requeue":
        requeue(s, i, r, s.instances[action[2]])
        return
    there = [entry for entry in s.postponed if entry.action[1] == r.id]
    awaits_turn = r in i.kept if action[0] == "resume" else r in i.running or r in i.prefilling
    if there:
        revise(s, there[0], r, action)
    elif awaits_turn and i not in scheduling:
        s.postponed.append(Postponed(action, i))
        i.asked = False
        s.wake(i)
    elif action[0] == "preempt":
        preempt_by_policy(s, i, r, action[2])
    elif action[0] == "resume":
        resume_by_policy(s, i, r)
    else:
        cancel(s, i, r, action[2])


def cancel_at_gateway(s: Simulation, r: Request, reason: str) -> None:
    """End r, which waits at the gateway."""
    assert s.gate is not None
    s.gate.leave(r, s.now_s)
    end_cancelled(s, r, reason)


def lose_patience(s: Simulation, r: Request) -> None:
    """Let the client of r give up, unless the prompt of r has been computed."""
    decide_about(s, r, ("cancel", r.id, GAVE_UP), ())


def revise(s: Simulation, postponed: Postponed, r: Request, action: Action) -> None:
    """Replace a postponed decision by a later one about the same request; but nothing undoes an end."""
    before, now = postponed.action[0], action[0]
    if before == "cancel" or before == now == "resume":
        return
    if before == "resume":
        s.postponed.remove(postponed)
        decide_about(s, r, action, ())
    elif now == "resume":
        s.postponed.remove(postponed)
    else:
        postponed.action = action


def preempt_by_policy(s: Simulation, i: Instance, r: Request, keep: str) -> None:
    """Take r off i until it is resumed, unless it is on its way; if suspended already, give up more KV."""
    keep = "drop" if r.span is not None else keep
    if r in i.running and keep == "kv":
        i.changed = True
        stop_decoding(s, i, r)
        cancel_migration(s, r)
        i.kept.append(r)
    elif r in i.running or r in i.prefilling:
        decodes = r in i.running
        count_preemption(s, r)
        evict(s, i, r)
        if decodes and keep == "swap":
            swap_out(s, i, r)
    elif r in i.swapped:
        i.swapped.remove(r)
        r.swapped_out = keep != "drop"
    elif waits_on(i, r):
        leave_queue(i, r)
    elif r in i.kept and keep != "kv":
        i.kept.remove(r)
        count_preemption(s, r)
        free_kv(s, i, r)
        if keep == "swap":
            swap_out(s, i, r)
    elif r.swapped_out and keep == "drop":
        r.swapped_out = False
    else:
        return
    r.suspended = True
    start_transfers(s, i)
    s.wake(i)


def count_preemption(s: Simulation, r: Request) -> None:
    """Count the loss of r's KV on its instance."""
    s.preemptions += 1
    r.preemptions += 1


def swap_out(s: Simulation, i: Instance, r: Request) -> None:
    """Move r's KV, freed on i, to host memory with i's next step."""
    i.swap_bytes += r.kv * s.options.kv_bytes_per_token + s.options.state_bytes
    r.swapped_out = True


def resume_by_policy(s: Simulation, i: Instance, r: Request) -> None:
    """Resume r: put it back into its list if its KV is here or in host memory, else into a queue."""
    if not r.suspended or (r in i.kept and i.seats >= i.max_batch):
        return
    r.suspended = False
    if r in i.kept:
        i.kept.remove(r)
        s.give_admission_number(r)
        i.take_in(r)
        start_decoding(s, i, r)
        s.wake(i)
    elif r.swapped_out:
        r.swapped_out = False
        i.swapped.append(r)
        s.wake(i)
    else:
        queue_anew(s, i, r)


def queue_anew(s: Simulation, i: Instance, r: Request) -> None:
    """Queue r by the policy's key on its instance, or on the routed one if its instance no longer prefills."""
    target = i
    if r.spanned:
        await_span(s, r, len(s.spans.waiting))
        return
    if not i.role & PREFILL and not s.recomputes_here(r):
        if s.unserved:
            park(s, r)
            return
        target = ask_route_prefill(s, r)
    if not s.fits(target, r):  # elsewhere, or because its instance has lost GPUs
        s.end_request(r, FAILED, "kv")
        return
    r.instance = target.id
    take_place(s, r)
    target.waiting.append((r.key, r.queue_number, r))
    s.wake(target)


def requeue(s: Simulation, i: Instance, r: Request, target: Instance) -> None:
    """Move r, if it waits on i, to the queue of the target, if that can serve it; key and number are kept."""
    entries = [entry for entry in i.waiting + i.inbox if entry[2] is r]
    if not entries or target is i or not target.role & PREFILL or s.recomputes_here(r) or not s.fits(target, r):
        return
    leave_queue(i, r)
    s.queue_of_arrivals(target).append(entries[0])
    r.instance = target.id
    s.wake(target)
    s.wake(i)


def cancel(s: Simulation, i: Instance, r: Request, reason: str) -> None:
    """End r in any state, and free its KV."""
    if r.fetch is not None:
        r.fetch = None
        withdraw_copy(s, r)
    elif r in i.running or r in i.prefilling:
        evict(s, i, r)
    elif waits_on(i, r):
        leave_queue(i, r)
    elif r in i.swapped:
        i.swapped.remove(r)
    elif r in i.joining or r in i.computed:
        leave_before_joining(s, i, r)
    elif r.destination is not None:
        leave_on_the_way(s, r)
    elif r in i.kept:
        i.kept.remove(r)
        free_kv(s, i, r)
    elif not r.suspended:
        return  # It is in the front end, or its client is about to send it again.
    r.swapped_out = False
    d, r.suspended, r.source, r.destination = r.destination, False, None, None
    end_cancelled(s, r, reason)
    for k in (i, d):
        if k is not None:
            start_transfers(s, k)
            s.wake(k)


def waits_on(i: Instance, r: Request) -> bool:
    """Whether r is in the queue or the inbox of i."""
    return any(other is r for _, _, other in i.waiting + i.inbox)


def leave_queue(i: Instance, r: Request) -> None:
    """Take r out of the queue or the inbox of i."""
    i.waiting = [entry for entry in i.waiting if entry[2] is not r]
    i.inbox = [entry for entry in i.inbox if entry[2] is not r]


def leave_before_joining(s: Simulation, i: Instance, r: Request) -> None:
    """Take r, whose KV is on i, out of those that decode there from the next boundary on."""
    if r in i.computed:
        i.known -= i.computed.index(r) < i.known
        i.computed.remove(r)
    else:
        i.joining.remove(r)
    free_kv(s, i, r)


def leave_on_the_way(s: Simulation, r: Request) -> None:
    """Free what r, which waits for room on another instance or is being copied there, has on both."""
    source, d = r.source, r.destination
    assert source is not None
    assert d is not None
    give_up_place(s, d, r)
    source.leaving.remove(r)
    free_kv(s, source, r)
