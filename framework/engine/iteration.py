"""One iteration of an instance: what joins, is preempted, swapped in and admitted, and what its end brings about."""

from __future__ import annotations

import numpy as np

from framework.engine.hooks import RAISED, Hooks
from framework.engine.kvcache import (
    available,
    blocks_for,
    matched_blocks,
    reference_prefix,
    register_prefix,
    release,
    take,
    unreferenced_among,
)
from framework.engine.leap import catch_up, complete, launch
from framework.engine.lists import (
    end,
    end_with_kv,
    finish_decodes,
    remove_prefilling,
    remove_running,
    start_decoding,
    victim,
)
from framework.engine.network import cancel_migration, poke, seats, send, start_transfers, switch_over
from framework.engine.queues import append, queue_pop, queue_push
from framework.engine.state import (
    BAD_INSTANCE,
    BAD_ROLE,
    BATCHING,
    COPIED,
    DECODE,
    DECODE_FIRST,
    FAILED,
    HELD,
    HOOK_RAISED,
    NOT_MIGRATING,
    PREFILL,
    PREFILL_FIRST,
    PREFILLING,
    PRIORITIZE,
    REASON_KV,
    ROUTE_DECODE,
    ROUTE_PREFILL,
    SWAP,
    SWAPPED,
    TAIL,
    WAITING,
    State,
)
from framework.jit import kernel

_MODES = 8  # a batching plan arrives as token_budget * 8 + mode


@kernel
def fail(s: State, status: int, hook: int, request: int, value: int) -> None:
    """Stop the run because of what a hook did; the first such event is kept."""
    sim = s.sim[0]
    if sim.status == 0:
        sim.status = status
        sim.error_hook = hook
        sim.error_request = request
        sim.error_value = value


@kernel
def choose(s: State, h: Hooks, hook: int, r: int) -> int:
    """Ask a routing hook for r's instance; -1 after stopping the run where the answer cannot be used."""
    sim = s.sim[0]
    if sim.observes:
        catch_up(s)
    if hook == ROUTE_PREFILL:
        i = h.route_prefill(r, h.seen, h.params, h.state)
    else:
        i = h.route_decode(r, h.seen, h.params, h.state)
    if i == RAISED:
        fail(s, HOOK_RAISED, hook, r, i)
        return -1
    if i < 0 or i >= sim.instances:
        fail(s, BAD_INSTANCE, hook, r, i)
        return -1
    unfit = DECODE if hook == ROUTE_PREFILL else PREFILL
    if s.instances[i].role == unfit:
        fail(s, BAD_ROLE, hook, r, i)
        return -1
    return int(i)


@kernel
def fits(s: State, i: int, r: int) -> bool:
    """Whether r's peak KV could ever be admitted to i."""
    inst = s.instances[i]
    peak = s.requests[r].input_tokens + s.arena[s.sim[0].output_at + r] - 1
    return blocks_for(s, peak) <= inst.total_blocks - inst.watermark


@kernel
def enqueue(s: State, h: Hooks, i: int, r: int) -> None:
    """Queue r at i by the policy's key."""
    q, sim = s.requests[r], s.sim[0]
    q.instance = i
    q.state = WAITING
    q.key = 0.0
    if sim.asks_prioritize:
        if sim.observes:
            catch_up(s)
        q.key = _key(s, h, r)
    sim.seq += 1
    q.seq = sim.seq
    _enter_queue(s, i, r)


@kernel
def _key(s: State, h: Hooks, r: int) -> float:
    key = h.prioritize(r, h.seen, h.params, h.state)
    if key != key:
        fail(s, HOOK_RAISED, PRIORITIZE, r, 0)
    return key


@kernel
def _enter_queue(s: State, i: int, r: int) -> None:
    q, inst = s.requests[r], s.instances[i]
    q.target = q.input_tokens + q.emitted
    q.done = 0
    inst.queued += 1
    inst.queued_tokens += q.target
    queue_push(s, i, r)
    poke(s, i)


# --- forming a step -----------------------------------------------------------------------------------------------


@kernel
def begin(s: State, h: Hooks, i: int) -> None:
    """Form i's next step and start it; without anything to do i is idle."""
    inst = s.instances[i]
    inst.preempted = False
    _switch_and_join(s, i)
    if inst.marked:
        inst.marked = False
        _ask_policy(s, h, i)
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


@kernel
def _ask_policy(s: State, h: Hooks, i: int) -> None:
    """The plan of i's coming iterations, and new keys for its queue where they are dynamic."""
    inst, sim = s.instances[i], s.sim[0]
    if sim.asks_batching:
        if sim.observes:
            catch_up(s)
        plan = h.batching(i, h.seen, h.params, h.state)
        if plan <= 0:
            fail(s, HOOK_RAISED, BATCHING, i, plan)
        else:
            inst.token_budget = plan // _MODES
            inst.mode = plan % _MODES
    if sim.dynamic_keys and inst.queued > 0:
        if sim.observes:
            catch_up(s)
        _renew_keys(s, h, i)


@kernel
def _renew_keys(s: State, h: Hooks, i: int) -> None:
    """Empty the queue into a chain, ask for new keys in the queue's order, and queue all again."""
    first = last = -1
    while s.instances[i].waiting_root >= 0:
        r = queue_pop(s, i)
        first = append(s, first, last, r)
        last = r
    while first >= 0:
        r = first
        first = s.requests[r].next
        if s.requests[r].key != -np.inf:
            s.requests[r].key = _key(s, h, r)
        queue_push(s, i, r)


@kernel
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


@kernel
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
    _enter_queue(s, place, r)


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


# --- the end of a step ----------------------------------------------------------------------------------------------


@kernel
def end_step(s: State, h: Hooks, i: int) -> None:
    """i's leap has ended: tokens are emitted, requests finish or move on, the next iteration begins."""
    inst = s.instances[i]
    prefilled = s.progress[i].prefill_tokens > 0
    complete(s, i)
    inst.released = False
    if prefilled:
        inst.marked = True
        for j in range(inst.prefilling):
            chunk = s.arena[inst.chunk_at + j]
            if chunk > 0:
                r = s.arena[inst.prefilling_at + j]
                s.requests[r].done += chunk
                inst.queued_tokens -= chunk
                register_prefix(s, i, r)
    if s.progress[i].decodes > 0 and inst.decode_steps == s.progress[i].next_finish:
        inst.marked = True
        finish_decodes(s, i)
    if prefilled:
        _complete_prefills(s, h, i)
    if inst.released:
        start_transfers(s, i)
    begin(s, h, i)


@kernel
def _complete_prefills(s: State, h: Hooks, i: int) -> None:
    """Requests whose prompt is done emit a token, in chunk order, and decode here or elsewhere."""
    inst = s.instances[i]
    count, kept = inst.prefilling, 0
    for j in range(count):
        r = s.arena[inst.prefilling_at + j]
        if s.requests[r].done == s.requests[r].target:
            inst.prefilling -= 1
            _emit_from_prefill(s, r)
            _decode_somewhere(s, h, i, r)
        else:
            s.arena[inst.prefilling_at + kept] = r
            kept += 1


@kernel
def _emit_from_prefill(s: State, r: int) -> None:
    q, sim = s.requests[r], s.sim[0]
    if q.emitted == 0:
        q.prefill_end_s = sim.now_s
        q.first_token_s = sim.now_s
    else:
        row = s.memberships[sim.memberships]
        row.request = r
        row.instance = -1
        row.first_step = 0
        row.last_step = 0
        row.previous_token_s = sim.now_s - q.previous_token_s
        sim.memberships += 1
    q.previous_token_s = sim.now_s
    q.unstamped = False
    q.emitted += 1
    q.kv = q.target
    q.state = HELD  # its KV is counted by `kv` from here on


@kernel
def _decode_somewhere(s: State, h: Hooks, i: int, r: int) -> None:
    q, inst, sim = s.requests[r], s.instances[i], s.sim[0]
    if q.emitted == s.arena[sim.output_at + r]:
        end_with_kv(s, i, r)
        return
    place = i
    if inst.role == PREFILL or sim.asks_route_decode:
        place = choose(s, h, ROUTE_DECODE, r)
        if place < 0:
            return
    if place == i:
        start_decoding(s, i, r, q.kv)
    elif fits(s, place, r):
        send(s, r, place)
    else:
        release(s, i, r)
        inst.released = True
        end(s, r, FAILED, REASON_KV)
