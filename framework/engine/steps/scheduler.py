"""Scheduling: what the next step of an instance holds, and its start."""

from __future__ import annotations

from framework.codes import (
    CHUNKS_FIRST,
    CONCURRENT,
    COPIED,
    DECODE,
    DECODE_FIRST,
    HANDING_OVER,
    PREFILL_FIRST,
    STATIC,
    STEP_END,
    UNIFIED,
    WHOLE_MIXED,
)
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.migration import switch_over
from framework.engine.copies.transfers import send_ahead, start_transfers
from framework.engine.durations.leap import catch_up_one
from framework.engine.durations.speculation import blocks_of_next_step, choose_depth
from framework.engine.events.ask import ask_batching, ask_route, ask_select, is_asked
from framework.engine.events.order import wake
from framework.engine.kv.kv_cache import allocate
from framework.engine.kv.output_reserve import settle_reserve
from framework.engine.kv.pins import break_pin, break_pins, waits_for_load
from framework.engine.memory.kv_blocks import available
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import time_of
from framework.engine.parallel.sm_sharing import may_prefill, start_prefill_step, streaming
from framework.engine.requests.asynchronous import free_deferred, make_known, prepare_decodes, prepare_next
from framework.engine.requests.gate import note_turn
from framework.engine.requests.lifecycle import remove_running
from framework.engine.requests.preemption import preempt, preemption_victim, swap_in
from framework.engine.requests.queueing import recomputes_here
from framework.engine.requests.selection import blocks_of_selected, pause_others
from framework.engine.roles.changes import proceed
from framework.engine.steps.prefill import form_batch, form_chunks, form_whole_prompts
from framework.engine.steps.pulling import join_computed, join_first, let_join, pull
from framework.engine.steps.running_list import form_in_order
from framework.engine.steps.step import start_step
from framework.policy.hooks import REFUSED, ROUTE_DECODE, SELECT


@inner
def schedule(s: State, i: int) -> None:
    """Form i's next step and start it; i is idle if there is nothing to do."""
    inst = s.instances[i]
    inst.preempted = inst.pins_yielded = False
    recomputed, streamed = inst.recompute_tokens, streaming(s, i)
    _switch_and_join(s, i)
    if unlikely(inst.draining_role != inst.next_role):
        proceed(s, i)
    if inst.changed:
        inst.changed = False
        if unlikely(s.options.flows > 0):
            note_turn(s)
        ask_batching(s, i)
        if unlikely(is_asked(s, SELECT)):
            ask_select(s, i)
    _set_admission(s, i)
    decodes, prefill_tokens = _form(s, i)
    if inst.waiting_root < 0:
        inst.admission_opens = -1
    came_free = unlikely(s.options.asynchronous) and free_deferred(s, i)
    if decodes + prefill_tokens > 0:
        start_step(s, i, decodes, prefill_tokens)
        if unlikely(s.options.layerwise_tokens > 0) and prefill_tokens > 0 and inst.group == 0:
            send_prompts_ahead(s, i)
    if unlikely(came_free):
        start_transfers(s, i)
    inst.swap_bytes = 0.0
    _look_ahead(s, i, recomputed, decodes, prefill_tokens)
    if unlikely(inst.pinned_head >= 0) and decodes + prefill_tokens == 0:
        _break_pin_if_needed(s, i)
    if unlikely(s.options.asynchronous):
        if streamed:
            prepare_decodes(s, i)
        else:
            prepare_next(s, i)
        make_known(s, i)


@inner
def _form(s: State, i: int) -> tuple[int, int]:
    """Form i's next step by its mode; return its decodes, and its prefill tokens."""
    inst, step = s.instances[i], s.step[i]
    prefill_tokens, decodes = 0, 0
    concurrent = inst.mode == CONCURRENT or streaming(s, i)
    in_order = unlikely(s.options.by_admission) and inst.mode == UNIFIED and not concurrent
    if unlikely(s.options.pulls) and not in_order:
        let_join(s, i)
    if not unlikely(concurrent):
        prefill_tokens = _form_prompts_first(s, i)
    if unlikely(in_order):
        decodes, prefill_tokens = form_in_order(s, i)
    elif prefill_tokens == 0:
        decodes = _form_decodes(s, i)
        if unlikely(concurrent):
            _form_stream(s, i)
        elif inst.mode == DECODE_FIRST or inst.mode == UNIFIED:
            prefill_tokens = form_chunks(s, i, inst.token_budget - decodes * (1 + step.depth))
        elif inst.mode == WHOLE_MIXED:
            prefill_tokens = form_whole_prompts(s, i, inst.token_budget - decodes * (1 + step.depth))
        elif inst.mode == STATIC and decodes == 0:
            prefill_tokens = form_batch(s, i, inst.token_budget)
    if unlikely(s.options.pulls) and not in_order and not inst.preempted:
        pull(s, i)
    return decodes, prefill_tokens


@inner
def _form_prompts_first(s: State, i: int) -> int:
    """Form a step of prompts alone, in the modes that take these before decodes; return their tokens."""
    inst = s.instances[i]
    if inst.mode == PREFILL_FIRST:
        return form_whole_prompts(s, i, inst.token_budget)
    if inst.mode == CHUNKS_FIRST:
        return form_chunks(s, i, inst.token_budget)
    if inst.mode == STATIC and inst.prefilling > 0:
        return form_batch(s, i, inst.token_budget)
    return 0


@inner
def send_prompts_ahead(s: State, i: int) -> None:
    """Send the KV of long prompts that i's step completes layer by layer, if their destination has room."""
    inst = s.instances[i]
    if (inst.role & DECODE and not s.options.asks_local_decode) or unlikely(s.sim.unserved & DECODE):
        return
    for j in range(inst.prefilling):
        r = s.lists[inst.prefilling_at + j]
        q = s.requests[r]
        if unlikely(recomputes_here(s, r)):
            continue
        computes_it = q.prefilled + s.lists[inst.chunk_at + j] == q.prefill_until and q.split == 0
        if computes_it and q.prefill_until >= s.options.layerwise_tokens:
            target = ask_route(s, ROUTE_DECODE, r)
            if target <= REFUSED:
                continue
            if target < 0:
                return
            if target != i:
                send_ahead(s, r, target, time_of(s, STEP_END, i))


@inner
def schedule_prefills(s: State, i: int) -> None:
    """Form and start the next step of i's prefill stream while i decodes; `changed` stays for the decode stream."""
    inst = s.instances[i]
    inst.preempted = False
    recomputed = inst.recompute_tokens
    catch_up_one(s, i)
    if may_prefill(s, i):
        if inst.changed:
            if unlikely(s.options.flows > 0):
                note_turn(s)
            ask_batching(s, i)
        _set_admission(s, i)
        _form_stream(s, i)
        if inst.waiting_root < 0:
            inst.admission_opens = -1
    if unlikely(s.options.asynchronous) and free_deferred(s, i):
        start_transfers(s, i)
    _look_ahead(s, i, recomputed, 0, 0)
    if unlikely(s.options.asynchronous):
        prepare_next(s, i)


@inner
def _look_ahead(s: State, i: int, recomputed: int, decodes: int, prefill_tokens: int) -> None:
    """Start transfers, settle the reserve, and wake i if that is due, after i's step has been formed.

    `recomputed`: `recompute_tokens` before the step was formed. Nothing could be sent to i while it was above 0.
    """
    inst = s.instances[i]
    if inst.preempted:
        start_transfers(s, i)
        wake(s, i)
    elif unlikely(recomputed > 0) and inst.recompute_tokens == 0 and not s.options.pulls:
        start_transfers(s, i)
    if unlikely(s.options.reserves) and settle_reserve(s, i, decodes, prefill_tokens):
        wake(s, i)


@inner
def _break_pin_if_needed(s: State, i: int) -> None:
    """Break the oldest pin of i, which found nothing to do, if requests wait there; i then schedules again."""
    inst = s.instances[i]
    waits = inst.swapped > 0 or inst.incoming_head >= 0
    if inst.waiting_root >= 0 and inst.late_seats + inst.late_blocks == 0:
        waits |= inst.loading == 0 or not waits_for_load(s, i, inst.waiting_root)
    if waits and not streaming(s, i):
        break_pin(s, i)
        start_transfers(s, i)
        wake(s, i)


@inner
def _form_stream(s: State, i: int) -> None:
    """Form the next step of i's prefill stream, unless one is under way."""
    if s.instances[i].mode == CONCURRENT and not streaming(s, i):
        tokens = form_chunks(s, i, s.instances[i].token_budget)
        if tokens > 0:
            start_prefill_step(s, i, tokens)


@inner
def _set_admission(s: State, i: int) -> None:
    """Close admission for a while if requests begin to wait, and open it if a prompt is partly computed."""
    inst = s.instances[i]
    if inst.admission_opens < 0 and inst.waiting_root >= 0:
        inst.admission_opens = inst.decode_steps + s.options.admission_wait_steps
    if unlikely(inst.closed) and inst.prefilling > 0:
        inst.closed = False
    if unlikely(inst.closed) and inst.running == 0 and not s.options.asynchronous:
        inst.closed = False
        inst.freed = 0


@inner
def _switch_and_join(s: State, i: int) -> None:
    inst = s.instances[i]
    if inst.switching:
        inst.switching = False
        j = 0
        while j < inst.running:
            r = s.lists[inst.running_at + j]
            if s.requests[r].migration == COPIED and switch_over(s, r):
                remove_running(s, i, r)
                s.requests[r].state = HANDING_OVER
                inst.changed = True
            else:
                j += 1
    while unlikely(inst.computed_known > 0):
        join_computed(s, i)
    while inst.joining_head >= 0 and not unlikely(s.options.pulls):
        join_first(s, i)


@inner
def _form_decodes(s: State, i: int) -> int:
    """Make room for every running request's next token, then swap in; return the number of decodes in the step."""
    inst = s.instances[i]
    if unlikely(s.options.speculates):
        s.step[i].depth = choose_depth(s, i)
    if unlikely(inst.pinned_head >= 0):
        break_pins(s, i, _growth(s, i))
    while _growth(s, i) > available(s, i):
        inst.preempted = True
        preempt(s, i, preemption_victim(s, i))
    allocate(s, i, _growth(s, i))
    if inst.swapped > 0 and not inst.preempted:
        swap_in(s, i)
    if unlikely(is_asked(s, SELECT)):
        return pause_others(s, i)
    return int(inst.running)


@inner
def _growth(s: State, i: int) -> int:
    """New blocks that the decodes of i's next step need."""
    if unlikely(is_asked(s, SELECT)):
        return blocks_of_selected(s, i)
    return blocks_of_next_step(s, i)
