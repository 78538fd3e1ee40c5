"""Forming one step of an instance: what joins, is preempted and swapped in, and what is computed."""

from __future__ import annotations

from framework.codes import (
    CONCURRENT,
    COPIED,
    DECODE,
    DECODE_FIRST,
    FAILED,
    NOT_MIGRATING,
    PREFILL,
    PREFILL_FIRST,
    PREFILLING,
    REASON_KV,
    ROUTE_DECODE,
    ROUTE_PREFILL,
    STATIC,
    SWAP,
    SWAPPED,
    TAIL,
    UNIFIED,
    WAITING,
    WHOLE_MIXED,
)
from framework.compiler.decorators import inlined, kernel, unlikely
from framework.engine.ask import ask_plan, choose
from framework.engine.hooks import REFUSED, Hooks
from framework.engine.kv_cache import available, fits, held_blocks, hold, release, take
from framework.engine.leap import catch_up_one, launch
from framework.engine.mechanisms.data_parallel import put_on_rank
from framework.engine.mechanisms.roles import proceed
from framework.engine.mechanisms.sm_sharing import launch_prefills, streaming
from framework.engine.mechanisms.speculation import blocks_of_next_step, choose_depth, kv_of_next_step
from framework.engine.prefill import form_batch, form_chunks, form_whole_prompts, queue_again
from framework.engine.queues import append
from framework.engine.requests import end, remove_prefilling, remove_running, start_decoding, start_prefilling, victim
from framework.engine.state import State
from framework.engine.transfers import cancel_migration, poke, seats, send_ahead, start_transfers, switch_over


@inlined
def begin(s: State, h: Hooks, i: int) -> None:
    """Form i's next step and start it; without anything to do i is idle."""
    inst, leap = s.instances[i], s.progress[i]
    inst.preempted = False
    _switch_and_join(s, i)
    if unlikely(inst.settled_role != inst.next_role):
        proceed(s, i)
    if inst.marked:
        inst.marked = False
        ask_plan(s, h, i)
    _set_gate(s, i)
    prefill_tokens, decodes = 0, 0
    beside = inst.mode == CONCURRENT or streaming(s, i)
    if unlikely(beside):
        pass
    elif inst.mode == PREFILL_FIRST:
        prefill_tokens = form_whole_prompts(s, i, inst.token_budget)
    elif inst.mode == STATIC and inst.prefilling > 0:
        prefill_tokens = form_batch(s, i, inst.token_budget)
    if prefill_tokens == 0:
        decodes = _form_decodes(s, h, i)
        if unlikely(beside):
            _form_stream(s, i)
        elif inst.mode == DECODE_FIRST or inst.mode == UNIFIED:
            prefill_tokens = form_chunks(s, i, inst.token_budget - decodes * (1 + leap.depth))
        elif inst.mode == WHOLE_MIXED:
            prefill_tokens = form_whole_prompts(s, i, inst.token_budget - decodes * (1 + leap.depth))
        elif inst.mode == STATIC and decodes == 0:
            prefill_tokens = form_batch(s, i, inst.token_budget)
    if inst.queued == 0:
        inst.gate = -1
    if decodes + prefill_tokens > 0:
        launch(s, i, decodes, prefill_tokens)
        if unlikely(s.sim[0].layerwise_tokens > 0) and prefill_tokens > 0:
            _send_prompts_ahead(s, h, i)
    inst.swap_bytes = 0.0
    if inst.preempted:
        start_transfers(s, i)
        poke(s, i)


@kernel
def _send_prompts_ahead(s: State, h: Hooks, i: int) -> None:
    """Let the KV of long prompts that i's step completes leave layer by layer, where their destination has room."""
    inst, sim = s.instances[i], s.sim[0]
    if inst.role & DECODE and not sim.asks_route_decode:
        return
    for j in range(inst.prefilling):
        r = s.arena[inst.prefilling_at + j]
        q = s.requests[r]
        computes_it = q.done + s.arena[inst.chunk_at + j] == q.target and q.cut == 0
        if computes_it and q.target >= sim.layerwise_tokens:
            place = choose(s, h, ROUTE_DECODE, r)
            if place <= REFUSED:
                continue
            if place < 0:
                return
            if place != i:
                send_ahead(s, r, place, s.progress[i].event_s)


@kernel
def begin_prefills(s: State, h: Hooks, i: int) -> None:
    """While i decodes: form the next step of its prefill stream and start it. The mark stays for the decode stream."""
    inst = s.instances[i]
    inst.preempted = False
    catch_up_one(s, i)
    if inst.marked:
        ask_plan(s, h, i)
    _set_gate(s, i)
    _form_stream(s, i)
    if inst.queued == 0:
        inst.gate = -1
    if inst.preempted:
        start_transfers(s, i)
        poke(s, i)


@kernel
def _form_stream(s: State, i: int) -> None:
    """The next step of i's prefill stream, unless one is under way."""
    if s.instances[i].mode == CONCURRENT and not streaming(s, i):
        tokens = form_chunks(s, i, s.instances[i].token_budget)
        if tokens > 0:
            launch_prefills(s, i, tokens)


@inlined
def _set_gate(s: State, i: int) -> None:
    """Close admission for a while where requests wait, and none did."""
    inst = s.instances[i]
    if inst.gate < 0 and inst.queued > 0:
        inst.gate = inst.decode_steps + s.sim[0].admission_wait_steps


@kernel
def _switch_and_join(s: State, i: int) -> None:
    inst, sim = s.instances[i], s.sim[0]
    if inst.switching:
        inst.switching = False
        j = 0
        while j < inst.running:
            r = s.arena[inst.running_at + j]
            if s.requests[r].migration == COPIED and switch_over(s, r):
                remove_running(s, i, r)
                s.requests[r].state = TAIL
                inst.marked = True
            else:
                j += 1
    while inst.joined_head >= 0:
        r = inst.joined_head
        inst.joined_head = s.requests[r].next
        inst.joined -= 1
        sim.admissions += 1
        s.requests[r].admission = sim.admissions
        if unlikely(inst.ranks > 0):
            put_on_rank(s, i, r)
        if unlikely(s.requests[r].done < s.requests[r].target):
            start_prefilling(s, i, r)
        else:
            start_decoding(s, i, r, s.requests[r].kv)


@inlined
def _form_decodes(s: State, h: Hooks, i: int) -> int:
    """Room for every running request's next token, then swap-in; the number of decodes in the step."""
    inst = s.instances[i]
    if unlikely(s.sim[0].speculates):
        s.progress[i].depth = choose_depth(s, i)
    while blocks_of_next_step(s, i) > available(s, i):
        inst.preempted = True
        _preempt(s, h, i, victim(s, i))
    take(s, i, blocks_of_next_step(s, i))
    if inst.swapped > 0 and not inst.preempted:
        _swap_in(s, i)
    return int(inst.running)


@inlined
def _preempt(s: State, h: Hooks, i: int, r: int) -> None:
    """Drop or swap out r's KV; what it has emitted stays emitted."""
    q, inst, sim = s.requests[r], s.instances[i], s.sim[0]
    inst.marked = True
    prefills = q.state == PREFILLING
    q.preemptions += 1
    sim.preemptions += 1
    if q.migration != NOT_MIGRATING:
        cancel_migration(s, r)
    if prefills:
        remove_prefilling(s, i, r)
    else:
        remove_running(s, i, r)
    release(s, i, r)
    if sim.preemption == SWAP and not prefills:
        inst.swap_bytes += q.kv * sim.kv_bytes_per_token
        q.state = SWAPPED
        inst.swapped_head = append(s, inst.swapped_head, inst.swapped_tail, r)
        inst.swapped_tail = r
        inst.swapped += 1
        return
    place = i
    if inst.role & PREFILL == 0:
        q.state = WAITING
        place = choose(s, h, ROUTE_PREFILL, r)
        if place < 0:
            return
        if not fits(s, place, r):
            end(s, r, FAILED, REASON_KV)
            return
    queue_again(s, place, r)


@kernel
def _swap_in(s: State, i: int) -> None:
    inst, sim = s.instances[i], s.sim[0]
    while inst.swapped_head >= 0:
        r = inst.swapped_head
        q = s.requests[r]
        blocks = held_blocks(s, i, kv_of_next_step(s, i, r, q.kv))  # those of its next tokens too
        if seats(s, i) >= inst.max_batch or available(s, i) - blocks < inst.watermark:
            break
        inst.swapped_head = q.next
        inst.swapped -= 1
        take(s, i, blocks)
        inst.swap_bytes += q.kv * sim.kv_bytes_per_token
        hold(s, i, q.kv, sim.now_s)
        sim.admissions += 1
        q.admission = sim.admissions
        if unlikely(inst.ranks > 0):
            put_on_rank(s, i, r)
        start_decoding(s, i, r, q.kv)
