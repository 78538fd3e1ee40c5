"""Forming one step of an instance: what joins, is preempted, swapped in and admitted."""

from __future__ import annotations

import numpy as np

from framework.engine.asking import ask_plan, choose, enter_queue, fits
from framework.engine.hooks import Hooks
from framework.engine.kvcache import (
    available,
    blocks_for,
    matched_blocks,
    reference_prefix,
    release,
    take,
    unreferenced_among,
)
from framework.engine.leap import launch
from framework.engine.lists import (
    end,
    remove_prefilling,
    remove_running,
    start_decoding,
    victim,
)
from framework.engine.network import cancel_migration, poke, seats, start_transfers, switch_over
from framework.engine.queues import append, queue_pop
from framework.engine.state import (
    COPIED,
    DECODE,
    DECODE_FIRST,
    FAILED,
    NOT_MIGRATING,
    PREFILL_FIRST,
    PREFILLING,
    REASON_KV,
    ROUTE_PREFILL,
    SWAP,
    SWAPPED,
    TAIL,
    WAITING,
    State,
)
from framework.jit import inlined, kernel


@inlined
def begin(s: State, h: Hooks, i: int) -> None:
    """Form i's next step and start it; without anything to do i is idle."""
    inst = s.instances[i]
    inst.preempted = False
    _switch_and_join(s, i)
    if inst.marked:
        inst.marked = False
        ask_plan(s, h, i)
    if inst.gate < 0 and inst.queued > 0:
        inst.gate = inst.decode_steps + s.sim[0].admission_wait_steps
    prefill_tokens, decodes = 0, 0
    if inst.mode == PREFILL_FIRST:
        prefill_tokens = _form_whole_prompts(s, i, inst.token_budget)
        if prefill_tokens == 0:
            decodes = _form_decodes(s, h, i)
    else:
        decodes = _form_decodes(s, h, i)
        if inst.mode == DECODE_FIRST:
            prefill_tokens = _form_chunks(s, i, inst.token_budget - decodes)
        else:
            prefill_tokens = _form_whole_prompts(s, i, inst.token_budget - decodes)
    if inst.queued == 0:
        inst.gate = -1
    if decodes + prefill_tokens > 0:
        launch(s, i, decodes, prefill_tokens)
    inst.swap_bytes = 0.0
    if inst.preempted:
        start_transfers(s, i)
        poke(s, i)


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
        start_decoding(s, i, r, s.requests[r].kv)


@inlined
def _form_decodes(s: State, h: Hooks, i: int) -> int:
    """Room for every running request's next token, then swap-in; the number of decodes in the step."""
    inst, block = s.instances[i], s.sim[0].block_tokens
    while s.arena[inst.growth_at + inst.decode_steps % block] > available(s, i):
        inst.preempted = True
        _preempt(s, h, i, victim(s, i))
    take(s, i, s.arena[inst.growth_at + inst.decode_steps % block])
    if inst.swapped > 0 and not inst.preempted:
        _swap_in(s, i)
    return int(inst.running)


@inlined
def _preempt(s: State, h: Hooks, i: int, r: int) -> None:
    """Drop or swap out r's KV; what it has emitted stays emitted."""
    q, inst, sim = s.requests[r], s.instances[i], s.sim[0]
    inst.marked = True
    q.preemptions += 1
    sim.preemptions += 1
    if q.migration != NOT_MIGRATING:
        cancel_migration(s, r)
    if q.state == PREFILLING:
        remove_prefilling(s, i, r)
        release(s, i, r)
    else:
        remove_running(s, i, r)
        release(s, i, r)
        if sim.preemption == SWAP:
            inst.swap_bytes += q.kv * sim.kv_bytes_per_token
            q.state = SWAPPED
            inst.swapped_head = append(s, inst.swapped_head, inst.swapped_tail, r)
            inst.swapped_tail = r
            inst.swapped += 1
            return
    place = i
    if inst.role == DECODE:
        q.state = WAITING
        place = choose(s, h, ROUTE_PREFILL, r)
        if place < 0:
            return
        if not fits(s, place, r):
            end(s, r, FAILED, REASON_KV)
            return
    q.instance = place
    q.state = WAITING
    q.key = -np.inf
    q.seq = -sim.preemptions
    enter_queue(s, place, r)


@kernel
def _swap_in(s: State, i: int) -> None:
    inst, sim = s.instances[i], s.sim[0]
    while inst.swapped_head >= 0:
        r = inst.swapped_head
        q = s.requests[r]
        if seats(s, i) >= inst.max_batch or available(s, i) - blocks_for(s, q.kv + 1) < inst.watermark:
            break
        inst.swapped_head = q.next
        inst.swapped -= 1
        take(s, i, blocks_for(s, q.kv + 1))  # those of its next token too
        inst.swap_bytes += q.kv * sim.kv_bytes_per_token
        inst.kv_tokens += q.kv
        sim.admissions += 1
        q.admission = sim.admissions
        start_decoding(s, i, r, q.kv)


@kernel
def _form_chunks(s: State, i: int, budget: int) -> int:
    """Prefilling requests in order, then new ones, each as much of its prompt as the budget still allows."""
    inst = s.instances[i]
    left = budget
    for j in range(inst.prefilling):
        q = s.requests[s.arena[inst.prefilling_at + j]]
        chunk = max(0, min(q.target - q.done, left))
        s.arena[inst.chunk_at + j] = chunk
        left -= chunk
    while left > 0:
        chunk = _admit_head(s, i, left, False, False)
        if chunk == 0:
            break
        left -= chunk
    return max(0, budget) - max(0, left)


@kernel
def _form_whole_prompts(s: State, i: int, budget: int) -> int:
    """Whole prompts within the budget; the first of a step may be longer than it."""
    inst = s.instances[i]
    tokens = 0
    for j in range(inst.prefilling):  # left over from a plan with chunks
        q = s.requests[s.arena[inst.prefilling_at + j]]
        s.arena[inst.chunk_at + j] = q.target - q.done
        tokens += q.target - q.done
    while True:
        chunk = _admit_head(s, i, budget - tokens, True, tokens == 0)
        if chunk == 0:
            break
        tokens += chunk
    return tokens


@kernel
def _admit_head(s: State, i: int, budget: int, whole: bool, first: bool) -> int:
    """Admit the first of i's queue if seats, blocks and budget allow; the tokens of its chunk, 0 if not admitted."""
    inst, sim = s.instances[i], s.sim[0]
    r = inst.waiting_root
    if r >= 0 and inst.running > 0 and inst.decode_steps < inst.gate:
        return 0
    if r < 0 or inst.preempted or inst.swapped > 0 or seats(s, i) >= inst.max_batch:
        return 0
    q = s.requests[r]
    run = matched_blocks(s, i, r, q.target)
    cached = run * sim.hash_blocks * sim.block_tokens
    tokens = q.target - cached
    if whole and tokens > budget and not first:
        return 0
    blocks = blocks_for(s, q.target) - run * sim.hash_blocks
    if available(s, i) - unreferenced_among(s, i, r, run) - blocks < inst.watermark:
        return 0
    queue_pop(s, i)
    reference_prefix(s, i, r, run)
    take(s, i, blocks)
    sim.admissions += 1
    q.admission = sim.admissions
    q.state = PREFILLING
    q.done = cached
    chunk = tokens if whole else min(tokens, budget)
    s.arena[inst.prefilling_at + inst.prefilling] = r
    s.arena[inst.chunk_at + inst.prefilling] = chunk
    inst.prefilling += 1
    inst.queued -= 1
    inst.queued_tokens -= cached
    inst.kv_tokens += q.target
    if q.start_s != q.start_s:
        q.start_s = sim.now_s
        q.prefill_instance = i
        q.cached_tokens = cached
    return int(chunk)
