"""The prefills of one step: which prompts are admitted, and the size of each chunk."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.kv.kv_cache import allocate
from framework.engine.kv.pins import break_pins
from framework.engine.memory.kv_blocks import add_kv_tokens, available, blocks_of
from framework.engine.memory.state import State
from framework.engine.parallel.data_parallel import (
    choose_rank,
    left_on,
    share_budget,
    spend,
)
from framework.engine.parallel.pipeline_parallel import begin_step, load_after, share
from framework.engine.requests.preemption import preempt_prefill
from framework.engine.steps.admission import admit_chunk, admit_prompt
from framework.engine.steps.chunks import largest_chunk, note_chunk

NO_LIMIT = 2**62  # tokens


@inner
def form_chunks(s: State, i: int, budget: int) -> int:
    """Form chunks of prefilling requests, in order, and then of new ones, each as large as the budget still allows."""
    inst = s.instances[i]
    if unlikely(inst.ranks > 0):
        return _form_chunks_on_ranks(s, i)
    if unlikely(inst.stages > 0):
        return _form_chunks_in_pipeline(s, i, budget)
    left, j = budget, 0
    while j < inst.prefilling:
        r = s.lists[inst.prefilling_at + j]
        q = s.requests[r]
        chunk = max(0, min(q.prefill_until - q.prefilled, largest_chunk(s, i, q.prefilled, left)))
        if chunk > 0 and not _extend(s, i, r, q.prefilled + chunk):
            break
        note_chunk(s, i, j, chunk)
        left -= chunk
        j += 1
    while left > 0:
        chunk = admit_chunk(s, i, left)
        if chunk == 0:
            break
        left -= chunk
    return budget - left


@inner
def _form_chunks_on_ranks(s: State, i: int) -> int:
    """Form chunks on ranks that have a budget each; return the tokens of all chunks."""
    inst = s.instances[i]
    share_budget(s, i)
    tokens, j = 0, 0
    while j < inst.prefilling:
        r = s.lists[inst.prefilling_at + j]
        q = s.requests[r]
        chunk = max(0, min(q.prefill_until - q.prefilled, largest_chunk(s, i, q.prefilled, left_on(s, i, q.rank))))
        if chunk > 0 and not _extend(s, i, r, q.prefilled + chunk):
            break
        note_chunk(s, i, j, chunk)
        spend(s, i, q.rank, chunk)
        tokens += chunk
        j += 1
    while True:
        rank = choose_rank(s, i)
        chunk = admit_chunk(s, i, left_on(s, i, rank))
        if chunk == 0:
            break
        spend(s, i, rank, chunk)
        tokens += chunk
    return tokens


@inner
def _form_chunks_in_pipeline(s: State, i: int, budget: int) -> int:
    """Form chunks, each in one of several micro-batches with equal parts of the budget."""
    inst = s.instances[i]
    begin_step(s, i)
    most = share(s, i, budget)
    s.step[i].decode_tokens = inst.token_budget - budget
    tokens, load, j = 0, 0, 0
    while j < inst.prefilling:
        r = s.lists[inst.prefilling_at + j]
        q = s.requests[r]
        chunk = max(0, min(q.prefill_until - q.prefilled, largest_chunk(s, i, q.prefilled, most - load)))
        if chunk > 0 and not _extend(s, i, r, q.prefilled + chunk):
            break
        note_chunk(s, i, j, chunk)
        tokens += chunk
        load = load_after(s, i, load, chunk)
        j += 1
    while load < most:
        chunk = admit_chunk(s, i, most - load)
        if chunk == 0:
            break
        tokens += chunk
        load = load_after(s, i, load, chunk)
    return tokens


@inner
def _extend(s: State, i: int, r: int, tokens: int) -> bool:
    """Allocate blocks for r's first `tokens` tokens; the last prefilling request gives way. False if r itself did."""
    inst, q = s.instances[i], s.requests[r]
    if tokens <= q.kv:
        return True
    blocks = blocks_of(s, i, tokens) - blocks_of(s, i, q.kv)
    if unlikely(inst.pinned_head >= 0):
        break_pins(s, i, blocks)
    while blocks > available(s, i):
        last = s.lists[inst.prefilling_at + inst.prefilling - 1]
        preempt_prefill(s, i, last)
        if last == r:
            return False
    allocate(s, i, blocks)
    add_kv_tokens(s, i, tokens - q.kv, s.sim.now_s)
    q.kv = tokens
    return True


@inner
def form_whole_prompts(s: State, i: int, budget: int) -> int:
    """Form whole prompts within the budget; the first of a step may exceed it."""
    inst = s.instances[i]
    begin_step(s, i)
    tokens, load, j = 0, 0, 0
    while j < inst.prefilling:  # these are left over from another plan
        r = s.lists[inst.prefilling_at + j]
        q = s.requests[r]
        if not _extend(s, i, r, q.prefill_until):
            break
        note_chunk(s, i, j, q.prefill_until - q.prefilled)
        tokens += q.prefill_until - q.prefilled
        load = load_after(s, i, load, q.prefill_until - q.prefilled)
        j += 1
    while True:
        chunk = admit_prompt(s, i, share(s, i, budget) - load if load > 0 else NO_LIMIT)
        if chunk == 0:
            break
        tokens += chunk
        load = load_after(s, i, load, chunk)
    return tokens


@inner
def form_batch(s: State, i: int, budget: int) -> int:
    """Form whole prompts of the batch in order, at least one, within the budget; makes the batch if there is none."""
    inst = s.instances[i]
    if inst.prefilling == 0:
        while admit_prompt(s, i, NO_LIMIT) > 0:
            pass
    begin_step(s, i)
    most = share(s, i, budget)
    tokens, load, j, full = 0, 0, 0, False
    while j < inst.prefilling:
        r = s.lists[inst.prefilling_at + j]
        q = s.requests[r]
        chunk = q.prefill_until - q.prefilled
        if full or (load > 0 and load + chunk > most):
            full, chunk = True, 0
        elif not _extend(s, i, r, q.prefill_until):
            break
        note_chunk(s, i, j, chunk)
        tokens += chunk
        load = load_after(s, i, load, chunk)
        j += 1
    return tokens
