"""Crashes: an instance loses everything that it holds, and later returns empty, perhaps with fewer GPUs."""

from __future__ import annotations

import numpy as np

from framework.codes import CALLED_OFF, CANCEL, FAILED, HOOK_RAISED, LOST, OFF, REASON_CRASH, RECOMPUTED, RESTORED
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.transfers import start_transfers
from framework.engine.durations.lockstep import group_of
from framework.engine.events.ask import ask, fail, is_asked
from framework.engine.events.order import drop_turn, wake
from framework.engine.kv.backups import forget_backup, keep_backup
from framework.engine.kv.cached_blocks import forget_prefixes
from framework.engine.kv.kv_cache import give_back
from framework.engine.kv.pins import end_pins
from framework.engine.kv.spans import COUNT, GIVEN_UP, PHASE, at_span, instance_of
from framework.engine.memory.options import WIDTH_COUNTS, WIDTH_VALUES
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import load_changed
from framework.engine.requests.giving_up import end_cancelled
from framework.engine.requests.lifecycle import end_request
from framework.engine.requests.parking import leave_parked, park
from framework.engine.roles.changes import announce, is_off, is_up, note_phases, take_effect
from framework.engine.roles.inventory import drop_marked
from framework.engine.roles.lost_steps import lose_step, lose_steps_of_spans
from framework.engine.roles.postponing import forget, place_of
from framework.policy.hooks import AS_SET, ON_FAILURE, RECONFIGURE

_COUNTS, _VALUES = len(WIDTH_COUNTS), len(WIDTH_VALUES)


@inner
def crash(s: State, i: int, back_s: float) -> None:
    """Let i and its group lose everything that they hold; nothing happens if i is off or down."""
    sim = s.sim
    if not is_up(s, i):
        return
    first, count = group_of(s, i)
    for j in range(s.options.instances):
        s.instances[j].marked = first <= j < first + count
    for j in range(first, first + count):
        lose_step(s, j)
    if unlikely(s.options.spans):
        lose_steps_of_spans(s)
    dropped = drop_marked(s)
    if unlikely(s.options.spans):
        _drop_shares(s)
    for j in range(first, first + count):
        _go_down(s, j)
    sim.awaited += count
    sim.fell = count
    sim.back_s = back_s
    sim.dropped = dropped
    sim.role_changes += 1
    note_phases(s)
    announce(s, first, back_s)
    for j in range(s.options.instances):
        if s.instances[j].frees_memory and not s.instances[j].down:
            start_transfers(s, j)
            wake(s, j)
    for k in range(dropped):
        _settle(s, k)
    if unlikely(is_asked(s, ON_FAILURE)):
        _ask_about(s, dropped)


@inner
def _drop_shares(s: State) -> None:
    """Free at once what spans kept on marked instances; all of these spans have ended."""
    for number in range(s.options.span_slots):
        for k in range(
            1, s.lists[at_span(s, number) + COUNT] if s.lists[at_span(s, number) + PHASE] >= GIVEN_UP else 1
        ):
            if s.instances[instance_of(s, number, k)].marked:
                give_back(s, number, k)


@inner
def _settle(s: State, k: int) -> None:
    """Cancel the k-th dropped request if that decision awaited its instance; else park it or let it fail."""
    r = s.lists[s.options.dropped_at + k]
    known = place_of(s, r) if unlikely(s.sim.postponed > 0) else -1
    cancelled, reason = False, 0
    if known >= 0:
        cancelled, reason = s.postponed[known].kind == CANCEL, int(s.postponed[known].value)
        forget(s, known)
    s.requests[r].instance = -1
    if cancelled:
        end_cancelled(s, r, reason)
        s.lists[s.options.dropped_at + 2 * s.options.requests + k] = CALLED_OFF
        return
    park(s, r)
    s.lists[s.options.dropped_at + 2 * s.options.requests + k] = RECOMPUTED
    if not is_asked(s, ON_FAILURE):
        _recover(s, k, s.options.recovery)


@inner
def _ask_about(s: State, dropped: int) -> None:
    """Ask what becomes of the dropped requests that are parked, and carry out each answer before the next question."""
    for k in range(dropped):
        if s.error.status == 0 and s.lists[s.options.dropped_at + 2 * s.options.requests + k] != CALLED_OFF:
            r = s.lists[s.options.dropped_at + k]
            answer = ask(s, ON_FAILURE, r)
            if answer < AS_SET or answer > LOST:
                fail(s, HOOK_RAISED, ON_FAILURE, r, answer)
            else:
                _recover(s, k, answer if answer != AS_SET else s.options.recovery)


@inner
def _recover(s: State, k: int, recovery: int) -> None:
    """Let the k-th dropped request, which is parked, fail, or be restored from a backup if it has one."""
    r = s.lists[s.options.dropped_at + k]
    if recovery == RESTORED and keep_backup(s, r, s.lists[s.options.dropped_at + s.options.requests + k]) == 0:
        recovery = RECOMPUTED
    if recovery != RESTORED:
        forget_backup(s, r)
    if recovery == LOST:
        leave_parked(s, r)
        end_request(s, r, FAILED, REASON_CRASH)
    s.lists[s.options.dropped_at + 2 * s.options.requests + k] = recovery


@inner
def _go_down(s: State, i: int) -> None:
    """Take i, which holds nothing any more, down, as if it were starting; its next role and its plan stay."""
    inst = s.instances[i]
    end_pins(s, i)
    forget_prefixes(s, i)
    drop_turn(s, i)
    if inst.draining_role == inst.next_role:
        inst.next_budget = 0
    inst.down = True
    inst.role = inst.draining_role = OFF
    announce(s, i, np.inf)
    inst.asked = inst.between = inst.looked = inst.ready = inst.switching = inst.closed = inst.disordered = False
    inst.freed = 0
    inst.late_seats = inst.late_blocks = 0
    inst.admission_opens = -1
    inst.output_ratio, inst.ratio_since = s.options.first_ratio, inst.decode_steps
    inst.swap_bytes = inst.load_s = 0.0
    load_changed(s, i)


@inner
def come_back(s: State, i: int) -> None:
    """Bring i and its group back, empty."""
    first, count = group_of(s, i)
    for j in range(first, first + count):
        s.instances[j].down = False
        take_effect(s, j)
        wake(s, j)
    s.sim.awaited -= count


@inner
def lose_gpus(s: State, i: int, width: int, back_s: float) -> None:
    """Let i, which has just crashed and would come back whole at `back_s`, come back with the GPUs of `width` before
    that, if it can and if that is chosen; 0: it has lost none.
    """
    take_width(s, i, s.instances[i].pool)
    if width == 0:
        return
    s.instances[i].gpus = s.lists[s.options.widths_at + _COUNTS * width]
    blocks = s.lists[s.options.widths_at + _COUNTS * width + 1]
    ready_s = s.sim.now_s + s.times[s.options.width_values_at + _VALUES * width + 3]
    if blocks > 0 and ready_s < back_s and _reconfigures(s, i):
        take_width(s, i, width)
        s.sim.back_s = ready_s
        announce(s, i, ready_s)


@inner
def repair(s: State, i: int) -> None:
    """Let all GPUs of i work again; if it runs on fewer, and that is chosen, it goes down to come back with all."""
    inst = s.instances[i]
    inst.gpus = s.lists[s.options.widths_at + _COUNTS * inst.pool]
    if inst.row == inst.pool:
        return
    if is_off(s, i):
        take_width(s, i, inst.pool)
    elif _reconfigures(s, i):
        grow_s = s.times[s.options.width_values_at + _VALUES * inst.row + 4]
        crash(s, i, s.sim.now_s + grow_s)
        take_width(s, i, inst.pool)


@inner
def _reconfigures(s: State, i: int) -> bool:
    """Whether i is to run with the GPUs that work now."""
    if is_asked(s, RECONFIGURE):
        return bool(ask(s, RECONFIGURE, i) > 0)
    return bool(s.options.goes_on)


@inner
def take_width(s: State, i: int, width: int) -> None:
    """Let i, which holds nothing, have the GPUs, the memory and the step times of `width`."""
    inst, at, values = s.instances[i], s.options.widths_at + _COUNTS * width, s.options.width_values_at
    inst.row = width
    inst.gpus = s.lists[at]
    inst.total_blocks = inst.free_blocks = s.lists[at + 1]
    inst.watermark = s.lists[at + 2]
    inst.reserve_blocks = s.lists[at + 3]
    inst.host_bytes_s = s.times[values + _VALUES * width]
    inst.memory_bytes_s = s.times[values + _VALUES * width + 1]
    inst.unpack_s = s.times[values + _VALUES * width + 2]
    for tier in range(i * s.options.tiers, (i + 1) * s.options.tiers):
        if s.tiers[tier].over_pcie:
            s.tiers[tier].bandwidth_bytes_s = inst.host_bytes_s
