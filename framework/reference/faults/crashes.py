"""Faults of instances (SEMANTICS.md: Faults)."""

from __future__ import annotations

import math

from framework.codes import CALLED_OFF, LOST, OFF, PREFILL_STEP_END, RECOMPUTED, RESTORED, ROLE_CHANGE, STEP_END
from framework.reference.arrivals import serve
from framework.reference.copies.links import withdraw_copy
from framework.reference.copies.transfers import (
    call_back,
    give_up_place,
    start_transfers,
    stop_decoding,
    withdraw_migration,
)
from framework.reference.faults.parking import forget_place, park
from framework.reference.giving_up import end_cancelled
from framework.reference.kv import free_deferred
from framework.reference.options import Spec
from framework.reference.prefixes import end_span, free_kv
from framework.reference.roles import reroute, take_role
from framework.reference.simulation import Simulation
from framework.reference.spans.span import Span
from framework.reference.state import FAILED, Instance, Request
from framework.reference.steps.step_end import resume
from framework.system.faults import FaultEvent


def fail(s: Simulation, i: Instance) -> None:
    """Process the next fault, which is one of i."""
    this = s.options.faults[s.faults]
    s.faults += 1
    if this.what == "crash":
        if crash(s, i, this):
            lose_gpus(s, i, this)
    elif this.what == "hang":
        hang(s, i)
    elif this.what == "detection" and i.hung:
        for rank in i.group:
            rank.hung = False
        if crash(s, i, this):
            lose_gpus(s, i, this)
    elif this.what == "repair":
        repair(s, i, this)
    elif this.what == "link":
        i.link_share, s.links_changed = this.value, True
    elif this.what == "slowdown":
        i.slowness = this.value  # for the steps that start from now on


def hang(s: Simulation, i: Instance) -> None:
    """Let i and its group make no progress from now on; nothing happens if i is off or down."""
    if i.down or i.off_since_s is not None:
        return
    for rank in i.group:
        give_back_growth(s, rank)
        lose_steps(s, rank)
        resume(rank)
        rank.woken = rank.asked = rank.between = False
        rank.hung = True
    for r in [r for rank in i.group for r in rank.prefilling]:
        call_back(s, r)  # its copy sends each layer once computed, and i computes no more


def give_back_growth(s: Simulation, i: Instance) -> None:
    """Free the blocks that the decodes of the step under way took for its tokens."""
    if i.step is None:
        return
    for r in i.step.decodes:
        last = r.input_tokens + r.output_tokens - 1
        i.cache.take(r.id, s.blocks_of(i, r.kv) - s.blocks_of(i, min(r.kv + 1 + i.step.depth, last)))


def crash(s: Simulation, i: Instance, this: FaultEvent) -> bool:
    """Let i and its group lose everything that they hold; False: nothing happens, as i is off or down."""
    if i.down or i.off_since_s is not None:
        return False
    for rank in i.group:
        lose_steps(s, rank)
        resume(rank)
    for r in s.present.values():
        if r.span is not None and any(rank in r.span.instances for rank in i.group):
            lose_steps_of_span(s, r, r.span)
    dropped, freed = drop(s, i.group)
    row = len(s.crash_log)
    s.crash_log.append((this.since_s, this.value, i.id, len(i.group), this.at_s))
    for rank in i.group:
        go_down(s, rank)
    s.role_changes += 1
    i.group[0].change_event = s.push(this.value, ROLE_CHANGE, i.group[0].id)
    for other in s.instances:
        if other in freed and not other.down:
            start_transfers(s, other)
            s.wake(other)
    recoveries = [settle(s, r, lost_tokens) for r, lost_tokens in dropped]
    if "on_failure" in s.hooks.overrides:
        for k, (r, lost_tokens) in enumerate(dropped):
            if recoveries[k] != CALLED_OFF:
                recoveries[k] = recover(s, r, lost_tokens, s.hooks.on_failure(s, r))
    s.drops += [(row, r.id, lost, recovery) for (r, lost), recovery in zip(dropped, recoveries, strict=True)]
    return True


def lose_gpus(s: Simulation, i: Instance, this: FaultEvent) -> None:
    """Let i, which has just crashed, come back with the GPUs that it has left, if it can and if that is chosen."""
    take_spec(s, i, i.whole)
    if this.gpus == 0:
        return
    narrow = s.options.narrow[i.spec.pool, this.gpus]
    i.gpus = narrow.gpus
    ready_s = s.now_s + narrow.shrink_s
    if narrow.total_blocks and ready_s < this.value and reconfigures(s, i):
        take_spec(s, i, narrow)
        come_back_at(s, i, ready_s)


def repair(s: Simulation, i: Instance, this: FaultEvent) -> None:
    """Let all GPUs of i work again; if it runs on fewer, and that is chosen, it goes down to come back with all."""
    i.gpus = i.whole.gpus
    if i.spec is i.whole:
        return
    if i.off_since_s is not None:
        take_spec(s, i, i.whole)
    elif reconfigures(s, i):
        crash(s, i, this._replace(value=s.now_s + i.spec.grow_s))
        take_spec(s, i, i.whole)


def reconfigures(s: Simulation, i: Instance) -> bool:
    """Whether i is to run with the GPUs that work now."""
    if "reconfigure" in s.hooks.overrides:
        return s.hooks.reconfigure(s, i)
    return s.options.engine.faults.fewer.after_loss == "go_on"


def come_back_at(s: Simulation, i: Instance, time_s: float) -> None:
    """Let the crash of i, the last one, end at another time."""
    assert i.change_event is not None
    s.withdrawn.add(i.change_event)
    i.change_event = s.push(time_s, ROLE_CHANGE, i.id)
    began_s, _, first, count, noticed_s = s.crash_log[-1]
    s.crash_log[-1] = began_s, time_s, first, count, noticed_s


def take_spec(s: Simulation, i: Instance, spec: Spec) -> None:
    """Let i, which holds nothing, have the GPUs, the memory and the step times of `spec`."""
    i.spec, i.gpus = spec, spec.gpus
    i.cache.total = i.cache.free = spec.total_blocks
    i.watermark = math.floor(s.options.watermark * spec.total_blocks)


def settle(s: Simulation, r: Request, lost_tokens: int) -> int:
    """Cancel r, which was dropped, if that decision awaited its instance; else park it or let it fail; which of these
    it was.
    """
    there = [entry for entry in s.postponed if entry.action[1] == r.id]
    s.postponed = [entry for entry in s.postponed if entry not in there]
    r.instance = -1
    if there and there[0].action[0] == "cancel":
        end_cancelled(s, r, there[0].action[2])
        return CALLED_OFF
    park(s, r)
    return RECOMPUTED if "on_failure" in s.hooks.overrides else recover(s, r, lost_tokens, None)


def recover(s: Simulation, r: Request, lost_tokens: int, recovery: str | None) -> int:
    """Let r, which is parked, fail, or be restored from whole blocks if there are any; None: as the setting says."""
    recovery = recovery or s.options.engine.faults.recovery
    if recovery == "fail":
        s.parked.remove(r)
        s.end_request(r, FAILED, "crash")
        return LOST
    if recovery == "restore":
        block = s.options.engine.faults.backup_tokens
        r.backed_up = lost_tokens // block * block if lost_tokens > 0 else r.backed_up
        return RESTORED if r.backed_up else RECOMPUTED
    r.backed_up = 0
    return RECOMPUTED


def lose_steps(s: Simulation, i: Instance) -> None:
    """Drop the steps under way on i, which was busy up to now."""
    if i.step is not None or i.prefill_step is not None:
        i.totals["busy_s"] += s.now_s - i.counted_s
        i.counted_s = s.now_s
    i.step = i.prefill_step = None
    i.busy = False
    s.drop_events(STEP_END, i.id)
    s.drop_events(PREFILL_STEP_END, i.id)


def lose_steps_of_span(s: Simulation, r: Request, span: Span) -> None:
    """Drop the step under way that needs all instances of r's span; if r decodes, that of the one that leads."""
    if not span.begun:
        return
    for other in span.instances if r in span.instances[0].prefilling else span.instances[:1]:
        give_back_growth(s, other)
        lose_steps(s, other)


def drop(s: Simulation, crashed: list[Instance]) -> tuple[list[tuple[Request, int]], list[Instance]]:
    """Take off the requests that these instances hold or expect; return them by number, each with its lost tokens, and
    where else room came free.

    Requests that decode or prefill elsewhere continue, and suspended ones stay suspended."""
    dropped: list[tuple[Request, int]] = []
    freed: list[Instance] = []
    for _, r in sorted(s.present.items()):
        if r in s.parked or r.instance < 0:
            continue
        i = s.instances[r.instance]
        lost_tokens = computed_tokens(i, r)
        if r.suspended:
            if i in crashed:
                r.swapped_out = r.caches = False
                r.accepted = 0
                forget_place(r)
            continue
        if r.migration is not None and (i in crashed or r.migration.target in crashed):
            freed.append(withdraw_migration(s, r))
        elif r.destination is not None and (i in crashed or r.destination in crashed):
            freed += withdraw_transfer(s, i, r)
        elif r.fetch is not None and i in crashed:
            withdraw_copy(s, r)
            r.fetch = None
        elif r.span is not None and i not in crashed and any(other in crashed for other in r.span.instances):
            (stop_decoding(s, i, r) if r in i.running else i.prefilling.remove(r))
            free_kv(s, i, r)
            freed.append(i)
            dropped.append((r, lost_tokens))
            continue
        elif i not in crashed:
            continue
        if i in crashed or not (r in i.running or r in i.prefilling):
            dropped.append((r, lost_tokens))
            end_span(s, r)
    for i in crashed:
        free_deferred(s, i)
        for r in list(i.running):
            stop_decoding(s, i, r)
        i.drop_all()
    return dropped, freed


def computed_tokens(i: Instance, r: Request) -> int:
    """KV tokens of r, which is on i, that have been computed or found in a cache."""
    if r.fetch is not None or any(r is other for _, _, other in i.waiting + i.inbox):
        return 0
    if r in i.prefilling or (r.emitted == 0 and r not in i.running):
        return r.prefilled
    return r.input_tokens + r.emitted - 1


def withdraw_transfer(s: Simulation, i: Instance, r: Request) -> list[Instance]:
    """Withdraw the transfer of r, whose KV is on i or is being computed there; return where room came free."""
    d = r.destination
    assert d is not None
    give_up_place(s, d, r)
    r.source, r.destination = None, None
    if r in i.prefilling:
        r.sent_ahead = r.first_token_recomputed = False
        return [d]
    i.leaving.remove(r)
    free_kv(s, i, r)
    return [d, i]


def go_down(s: Simulation, i: Instance) -> None:
    """Take i, which holds nothing any more, down, as if it were starting; its next role and its plan stay."""
    i.cache.clear()
    i.woken = i.asked = i.between = i.looked = i.ready = i.closed = False
    if i.draining_role == i.next_role:
        i.next_plan = None
    if i.change_event is not None:
        s.withdrawn.add(i.change_event)
        i.change_event = None
    i.down = True
    i.role = i.draining_role = OFF
    i.known = i.late_seats = i.late_blocks = 0
    i.opens_after = []
    i.admission_opens = -1
    i.prefill_ended_s = -math.inf
    i.ratio_set = (s.options.engine.output_reserve.ratio, int(i.totals["decode_steps"]))
    i.swap_bytes = i.load_s = 0.0


def come_back(s: Simulation, i: Instance) -> None:
    """Bring i and its group back, empty."""
    for rank in i.group:
        rank.down = False
        take_role(s, rank)
        s.wake(rank)


def route_parked(s: Simulation) -> None:
    """Route parked requests, in order, once each phase has an instance."""
    while s.parked and not s.unserved:
        r = s.parked.pop(0)
        if r.queue_number == 0:  # it has not been in a queue
            serve(s, r)
        else:
            reroute(s, (*r.place, r))
