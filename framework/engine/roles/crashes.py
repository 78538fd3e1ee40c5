"""An instance crashes, and comes back, or is slow for a while; what it had is routed anew once each phase has an
instance.

The loop returns to Python for each of these events. So a run in which nothing fails compiles nothing of this module.
"""

from __future__ import annotations

import numba
import numpy as np

from framework.codes import (
    CANCEL,
    CRASH,
    DETECTION,
    FAILED,
    FAULT,
    FUTURE,
    HANG,
    LINK_FAULT,
    OFF,
    REASON_CRASH,
    ROLE_CHANGE,
    YIELDED,
)
from framework.compiler.decorators import entry, inner, unlikely
from framework.compiler.fields import fields_on_stack
from framework.engine.copies.link_sharing import note_change, share_links
from framework.engine.copies.transfers import call_back, start_transfers
from framework.engine.durations.leap import boundary_s, catch_up_one, end_leap, end_leap_early
from framework.engine.durations.speculation import blocks_of_next_step
from framework.engine.durations.totals import count_fixed_depth, count_steps
from framework.engine.events.ask import keep_seen
from framework.engine.events.order import drop_turn, wake
from framework.engine.kv.kv_cache import free
from framework.engine.kv.prefix_cache import forget_prefixes
from framework.engine.memory.attach import FLOATS, VIEW, attach
from framework.engine.memory.queues import load_changed
from framework.engine.memory.state import Memory, State, sample_memory
from framework.engine.parallel.sm_sharing import count_busy, drop_prefill_step, streaming
from framework.engine.requests.arrivals import serve
from framework.engine.requests.giving_up import end_cancelled
from framework.engine.requests.lifecycle import end_request
from framework.engine.requests.parking import park, unpark
from framework.engine.requests.pausing import resume
from framework.engine.roles.changes import announce, is_off, note_next_change, note_phases, reroute, take_effect
from framework.engine.roles.inventory import drop_marked
from framework.engine.roles.postponing import forget, place_of
from framework.policy.inspection import View


@inner
def _pass_fault(s: State) -> None:
    """Process the event that the loop came back for, if it is a fault, and route those that can be routed again."""
    sim = s.sim
    sim.fell = 0
    if sim.kind == FAULT:
        _fault(s, sim.id)
    elif sim.kind == ROLE_CHANGE and s.instances[sim.id].down:
        _come_back(s, sim.id)
    while sim.parked > 0 and sim.unserved == 0 and s.error.status == 0:
        r = unpark(s)
        if s.requests[r].queue_number == 0:  # it has not been in a queue
            s.requests[r].state = FUTURE
            serve(s, r)
        else:
            reroute(s, r)
    if unlikely(sim.changed_links > 0):
        share_links(s)


@inner
def _is_up(s: State, i: int) -> bool:
    """Whether i is neither down nor off."""
    return not (s.instances[i].down or is_off(s, i))


@inner
def _fault(s: State, i: int) -> None:
    """Process the fault that is due: it happens to i."""
    sim = s.sim
    value = s.times[s.options.fault_values_at + sim.next_fault]
    what = s.lists[s.options.fault_at + s.options.faults + sim.next_fault]
    sim.next_fault += 1
    note_next_change(s)
    if what == CRASH:
        _crash(s, i, value)
    elif what == HANG:
        _hang(s, i)
    elif what == DETECTION:
        _notice(s, i, value)
    elif what == LINK_FAULT:
        _limit_network(s, i, value)
    else:
        _slow_down(s, i, value)


@inner
def _hang(s: State, i: int) -> None:
    """i, and those that step together with it, make no progress from now on; nothing happens to one that is off."""
    if not _is_up(s, i):
        return
    first, count = _group_of(s, i)
    for j in range(first, first + count):
        lose_step(s, j)
        resume(s, j)
        drop_turn(s, j)
        s.instances[j].between = s.instances[j].asked = False
        s.instances[j].hung = True
    s.sim.down += count
    for j in range(first, first + count):
        for k in range(s.instances[j].prefilling):
            r = s.lists[s.instances[j].prefilling_at + k]
            if s.requests[r].destination >= 0:  # what is sent layer by layer is not computed
                call_back(s, r)


@inner
def _notice(s: State, i: int, back_s: float) -> None:
    """That i hangs is noticed now; nothing happens if it does not, for it was off."""
    if not s.instances[i].hung:
        return
    first, count = _group_of(s, i)
    for j in range(first, first + count):
        s.instances[j].hung = False
    s.sim.down -= count
    _crash(s, i, back_s)


@inner
def _limit_network(s: State, i: int, bytes_s: float) -> None:
    """The network of i has so much bandwidth from now on, in each direction."""
    s.sim.down += int(bytes_s == 0.0) - int(s.links[i].bandwidth_bytes_s == 0.0)
    for link in (i, s.options.instances + i):
        s.links[link].bandwidth_bytes_s = bytes_s
        note_change(s, link)


@inner
def _slow_down(s: State, i: int, slowness: float) -> None:
    """Steps that i starts from now on take `slowness` times as long as on an instance that is not slow."""
    inst, step = s.instances[i], s.step[i]
    inst.slowness = slowness
    if step.fixed_depth:
        count_fixed_depth(s, i)
    step.repeats = False
    if inst.busy:
        end_leap_early(s, i)


@inner
def _group_of(s: State, i: int) -> tuple[int, int]:
    """The first of the instances that step together with i, and how many they are."""
    inst = s.instances[i]
    return (inst.group_first, inst.group) if inst.group > 0 else (i, 1)


@inner
def _crash(s: State, i: int, back_s: float) -> None:
    """i, and those that step together with it, lose all that they hold; nothing happens to an instance that is off."""
    sim = s.sim
    if not _is_up(s, i):
        return
    first, count = _group_of(s, i)
    for j in range(s.options.instances):
        s.instances[j].marked = first <= j < first + count
    for j in range(first, first + count):
        lose_step(s, j)
    dropped = drop_marked(s)
    for j in range(first, first + count):
        _go_down(s, j)
    sim.down += count
    sim.fell = count
    sim.dropped = dropped
    sim.role_changes += 1
    note_phases(s)
    announce(s, first, back_s)
    for j in range(s.options.instances):
        if s.instances[j].frees_memory and not s.instances[j].down:
            start_transfers(s, j)
            wake(s, j)
    for k in range(dropped):
        _settle(s, s.lists[s.options.dropped_at + k])


@inner
def _settle(s: State, r: int) -> None:
    """r is dropped: it is cancelled if that was decided and awaited its instance; else it fails, or is routed anew."""
    known = place_of(s, r) if unlikely(s.sim.postponed > 0) else -1
    cancelled, reason = False, 0
    if known >= 0:
        cancelled, reason = s.postponed[known].kind == CANCEL, int(s.postponed[known].value)
        forget(s, known)
    s.requests[r].instance = -1
    if cancelled:
        end_cancelled(s, r, reason)
    elif s.options.fails_dropped:
        end_request(s, r, FAILED, REASON_CRASH)
    else:
        park(s, r)


@inner
def lose_step(s: State, i: int) -> None:
    """Count the steps of i that have ended, and give up the one under way."""
    inst, step = s.instances[i], s.step[i]
    catch_up_one(s, i)
    if inst.busy or streaming(s, i):
        count_busy(s, i, 0.0)
    if inst.busy:
        if step.fixed_depth:
            count_fixed_depth(s, i)
        if step.decodes > 0 and step.grown > step.done:
            free(s, i, blocks_of_next_step(s, i))
        _take_back_stamps(s, i)
        if step.done > 0:
            step.steps = step.done
            count_steps(s, i, boundary_s(s, i, step.done))
        end_leap(s, i)
        inst.busy = False
    if streaming(s, i):
        drop_prefill_step(s, i)


@inner
def _take_back_stamps(s: State, i: int) -> None:
    """The first tokens that were stamped with the end of the step under way do not come."""
    inst = s.instances[i]
    for j in range(inst.running - inst.paused):
        q = s.requests[s.lists[inst.running_at + j]]
        if q.first_token_s > s.sim.now_s:
            q.first_token_s = np.nan if q.emitted == 0 else q.prefill_end_s
            q.previous_token_s = q.first_token_s


@inner
def _go_down(s: State, i: int) -> None:
    """i, which holds nothing any more, is down, as if it were being started; its next role and its plan stay."""
    inst = s.instances[i]
    forget_prefixes(s, i)
    drop_turn(s, i)
    if inst.draining_role == inst.next_role:
        inst.next_budget = 0
    inst.down = True
    inst.role = inst.draining_role = OFF
    announce(s, i, np.inf)
    inst.asked = inst.between = inst.switching = inst.closed = inst.disordered = False
    inst.freed = 0
    inst.late_seats = inst.late_blocks = 0
    inst.admission_opens = -1
    inst.output_ratio, inst.ratio_since = s.options.first_ratio, inst.decode_steps
    inst.swap_bytes = inst.load_s = 0.0
    load_changed(s, i)


@inner
def _come_back(s: State, i: int) -> None:
    """i, and those that step together with it, are back, with nothing."""
    first, count = _group_of(s, i)
    for j in range(first, first + count):
        s.instances[j].down = False
        take_effect(s, j)
        wake(s, j)
    s.sim.down -= count


@entry(numba.types.int64(numba.typeof(sample_memory()), VIEW, FLOATS, FLOATS))
def pass_fault(memory: Memory, view: View, params: np.ndarray, numbers: np.ndarray) -> int:
    """Process the fault for which `engine.loop.run` came back; YIELDED, or an error of a hook, as that says."""
    s = fields_on_stack(attach(memory, keep_seen((view, params, numbers))))
    _pass_fault(s)
    return int(s.error.status) if s.error.status != 0 else YIELDED
