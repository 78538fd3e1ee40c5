"""The prefills of one step: which prompts are admitted, and how large a chunk of each is computed."""

from __future__ import annotations

from framework.codes import PREFILLING, UNIFIED
from framework.compiler.decorators import inner, unlikely
from framework.engine.kv_blocks import add_kv_tokens, available, blocks_of, seats, watermark_of
from framework.engine.kv_cache import allocate
from framework.engine.mechanisms.data_parallel import (
    choose_rank,
    count_prefill,
    left_on,
    put_on_rank,
    share_budget,
    spend,
)
from framework.engine.mechanisms.output_reserve import close_admission, keeps_reserve
from framework.engine.mechanisms.pipeline_parallel import begin_step, load_after, share
from framework.engine.mechanisms.prefix_cache import (
    cached_among,
    load_prefix,
    matched_blocks,
    reference_prefix,
    share_chunk,
    unreferenced_among,
)
from framework.engine.preemption import preempt_prefill
from framework.engine.queues import load_changed, queue_pop
from framework.engine.requests import goes_on_there
from framework.engine.state import State


@inner
def form_chunks(s: State, i: int, budget: int) -> int:
    """Prefilling requests in order, then new ones, each as much of its prompt as the budget still allows."""
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
        chunk = admit_head(s, i, left, False, False)
        if chunk == 0:
            break
        left -= chunk
    return budget - left


@inner
def _form_chunks_on_ranks(s: State, i: int) -> int:
    """The same where each rank has a budget of its own; the tokens of all chunks."""
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
        chunk = admit_head(s, i, left_on(s, i, rank), False, False)
        if chunk == 0:
            break
        spend(s, i, rank, chunk)
        tokens += chunk
    return tokens


@inner
def _form_chunks_in_pipeline(s: State, i: int, budget: int) -> int:
    """The same where each chunk is in one of several micro-batches, which have equal parts of the budget."""
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
        chunk = admit_head(s, i, most - load, False, False)
        if chunk == 0:
            break
        tokens += chunk
        load = load_after(s, i, load, chunk)
    return tokens


@inner
def largest_chunk(s: State, i: int, done: int, left: int) -> int:
    """Tokens that a request with `done` prefilled may add, by the schedule, where its step's budget has `left`."""
    inst = s.instances[i]
    most = min(left, s.options.longest_chunk)
    if inst.chunk_stages == 0:
        return most
    stage = min(done // inst.stage_tokens, inst.chunk_stages - 1)
    size = s.lists[inst.chunk_sizes_at + stage]
    if unlikely(inst.stages > 0):
        decodes = s.step[i].decode_tokens
        return min(most, share(s, i, size - decodes) - (share(s, i, inst.token_budget - decodes) - left))
    return min(most, size - (inst.token_budget // max(1, inst.ranks) - left))


@inner
def _extend(s: State, i: int, r: int, tokens: int) -> bool:
    """Blocks for r's first `tokens` tokens, whoever prefills last giving way; False if that was r itself."""
    inst, q = s.instances[i], s.requests[r]
    if tokens <= q.kv:
        return True
    blocks = blocks_of(s, i, tokens) - blocks_of(s, i, q.kv)
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
def note_chunk(s: State, i: int, j: int, chunk: int) -> None:
    """The step that is being formed computes so many tokens of number j of i's prefilling order."""
    inst = s.instances[i]
    r = s.lists[inst.prefilling_at + j]
    s.lists[inst.chunk_at + j] = chunk
    if chunk > 0:
        share_chunk(s, i, r, s.requests[r].prefilled + chunk)


@inner
def form_whole_prompts(s: State, i: int, budget: int) -> int:
    """Whole prompts within the budget; the first of a step may be longer than it."""
    inst = s.instances[i]
    begin_step(s, i)
    tokens, load, j = 0, 0, 0
    while j < inst.prefilling:  # left over from another plan
        r = s.lists[inst.prefilling_at + j]
        q = s.requests[r]
        if not _extend(s, i, r, q.prefill_until):
            break
        note_chunk(s, i, j, q.prefill_until - q.prefilled)
        tokens += q.prefill_until - q.prefilled
        load = load_after(s, i, load, q.prefill_until - q.prefilled)
        j += 1
    while True:
        chunk = admit_head(s, i, share(s, i, budget) - load, True, load == 0)
        if chunk == 0:
            break
        tokens += chunk
        load = load_after(s, i, load, chunk)
    return tokens


@inner
def form_batch(s: State, i: int, budget: int) -> int:
    """Whole prompts of the batch in order, within the budget or one; the batch is made here if there is none."""
    inst = s.instances[i]
    if inst.prefilling == 0:
        while admit_head(s, i, 0, True, True) > 0:
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


@inner
def admit_head(s: State, i: int, budget: int, whole: bool, first: bool) -> int:
    """Admit the first of i's queue if seats, blocks and budget allow; the tokens of its chunk, 0 if not admitted."""
    inst, sim = s.instances[i], s.sim
    r = inst.waiting_root
    if r >= 0 and inst.running > 0 and inst.decode_steps < inst.admission_opens:
        return 0
    full = seats(s, i) + inst.late_seats >= inst.max_batch
    if r < 0 or inst.preempted or inst.swapped > 0 or (full and not unlikely(s.options.reserves)):
        return 0
    if unlikely(inst.closed) and inst.running > 0:
        return 0
    q = s.requests[r]
    run = matched_blocks(s, i, r, q.prefill_until)
    cached = run * s.options.hash_blocks * s.options.block_tokens
    tokens = q.prefill_until - cached
    if whole and tokens > budget and not first:
        return 0
    chunk = tokens if whole else min(tokens, largest_chunk(s, i, cached, budget))
    if unlikely(s.options.unchunked) and not whole:
        chunk = _unbroken(s, i, tokens, budget)
    if chunk <= 0:
        return 0
    if full:
        close_admission(s, i)
        return 0
    kv = cached + chunk if inst.mode == UNIFIED else q.prefill_until
    shared = cached_among(s, i, r, run) * s.options.hash_blocks
    left = available(s, i) - inst.late_blocks - unreferenced_among(s, i, r, run)
    needed = q.prefill_until
    if unlikely(s.options.room_for_chunk) and inst.running + inst.prefilling > 0:
        needed = kv
    left -= blocks_of(s, i, needed) - shared
    if left < watermark_of(s, i) or (unlikely(s.options.reserves) and not keeps_reserve(s, i, r, left)):
        close_admission(s, i)
        return 0
    inst.closed = False
    queue_pop(s, i)
    if unlikely(inst.recompute_tokens > 0) and goes_on_there(s, r):
        inst.recompute_tokens -= q.prefill_until
    reference_prefix(s, i, r, run)
    q.kv = kv
    allocate(s, i, blocks_of(s, i, q.kv) - shared)
    if unlikely(s.options.tiers > 0):
        load_prefix(s, i, r)
    sim.admissions += 1
    q.admission = sim.admissions
    q.state = PREFILLING
    q.prefilled = cached
    q.caches = True
    s.lists[inst.prefilling_at + inst.prefilling] = r
    note_chunk(s, i, inst.prefilling, chunk)
    inst.prefilling += 1
    if unlikely(inst.ranks > 0):
        put_on_rank(s, i, r)
        count_prefill(s, i, r, 1)
    inst.queued -= 1
    inst.queued_tokens -= cached
    load_changed(s, i)
    add_kv_tokens(s, i, q.kv, sim.now_s)
    if q.start_s != q.start_s:
        q.start_s = sim.now_s
        q.prefill_instance = i
        q.cached_tokens = cached
    return int(chunk)


@inner
def _unbroken(s: State, i: int, tokens: int, left: int) -> int:
    """The first chunk of a prompt that lacks so many tokens, where `left` are left of its budget; 0: not in this step.

    It is cut for the longest chunk alone, and may exceed a budget of which nothing is spent.
    """
    inst = s.instances[i]
    chunk = min(tokens, s.options.longest_chunk)
    whole = share(s, i, inst.token_budget // max(1, inst.ranks))
    return chunk if chunk <= left or 0 < left == whole else 0
