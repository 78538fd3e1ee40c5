"""Steps formed in order of admission: those that decode and those that prefill are one list.

Each takes what it lacks of the tokens that are left, and whoever finds no blocks takes those of the last of the list.
"""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.kv_blocks import add_kv_tokens, available, blocks_of
from framework.engine.kv_cache import allocate
from framework.engine.mechanisms.data_parallel import choose_rank, left_on, open_budget, spend
from framework.engine.mechanisms.pausing import pause_rest
from framework.engine.mechanisms.pipeline_parallel import begin_step, load_after, share
from framework.engine.mechanisms.speculation import blocks_of_next_step, choose_depth, growth_of
from framework.engine.preemption import preempt, swap_in
from framework.engine.prefill import admit_head, largest_chunk, note_chunk
from framework.engine.state import State


@inner
def form_in_order(s: State, i: int) -> tuple[int, int]:
    """Form i's step in order of admission; its decodes, and the tokens of its chunks."""
    inst, step = s.instances[i], s.step[i]
    if unlikely(s.options.speculates):
        step.depth = choose_depth(s, i)
    if unlikely(inst.disordered):
        _sort(s, i)
    begin_step(s, i)
    if unlikely(inst.ranks > 0):
        open_budget(s, i)
    step.decode_tokens = 0
    tokens, load, a, b, waiting = 0, 0, 0, 0, 0
    if _decodes_come_first(s, i):
        allocate(s, i, blocks_of_next_step(s, i))
        a = int(inst.running)
        step.decode_tokens = a * (1 + step.depth)
    while a < inst.running or b < inst.prefilling:
        if b == inst.prefilling or (a < inst.running and _decode_is_next(s, i, a, b)):
            r = s.lists[inst.running_at + a]
            if _left_of_all(s, i, s.requests[r].rank, tokens) <= 0:
                s.requests[r].waits = True
                waiting += 1
            else:
                blocks = growth_of(s, i, r)
                if not _make_room(s, i, r, blocks):
                    break
                allocate(s, i, blocks)
                _count_decode(s, i, r)
            a += 1
        else:
            chunk = _next_chunk(s, i, b, tokens, load)
            if chunk > 0 and not _extend(s, i, s.lists[inst.prefilling_at + b], chunk):
                break
            note_chunk(s, i, b, chunk)
            tokens, load, b = tokens + chunk, _deal(s, i, b, load, chunk), b + 1
    waiting += _swap_in(s, i, tokens)
    tokens = _admit(s, i, tokens, load)
    if unlikely(waiting > 0):
        if step.decode_tokens + tokens == 0:
            return _go_on_as_before(s, i)
        pause_rest(s, i)
    return int(inst.running - inst.paused), tokens


@inner
def _go_on_as_before(s: State, i: int) -> tuple[int, int]:
    """No step is formed: nobody sits anything out."""
    inst = s.instances[i]
    for j in range(inst.running):
        s.requests[s.lists[inst.running_at + j]].waits = False
    return 0, 0


@inner
def _sort(s: State, i: int) -> None:
    """Put i's running order into that of admission."""
    inst = s.instances[i]
    for j in range(1, inst.running):
        r, finish, k = s.lists[inst.running_at + j], s.lists[inst.finish_at + j], j
        while k > 0 and s.requests[s.lists[inst.running_at + k - 1]].admission > s.requests[r].admission:
            s.lists[inst.running_at + k] = s.lists[inst.running_at + k - 1]
            s.lists[inst.finish_at + k] = s.lists[inst.finish_at + k - 1]
            k -= 1
        s.lists[inst.running_at + k] = r
        s.lists[inst.finish_at + k] = finish
    inst.disordered = False


@inner
def _decodes_come_first(s: State, i: int) -> bool:
    """Whether all of i's decodes have tokens and blocks, and nobody prefills who was admitted before one of them."""
    inst = s.instances[i]
    if inst.ranks > 0 or inst.running * (1 + s.step[i].depth) > inst.token_budget:
        return False
    if inst.prefilling > 0 and inst.running > 0 and not _decode_is_next(s, i, inst.running - 1, 0):
        return False
    return bool(blocks_of_next_step(s, i) <= available(s, i))


@inner
def _decode_is_next(s: State, i: int, a: int, b: int) -> bool:
    """Whether number a of i's running order was admitted before number b of its prefilling order."""
    inst = s.instances[i]
    decode, prefill = s.lists[inst.running_at + a], s.lists[inst.prefilling_at + b]
    return s.requests[decode].admission < s.requests[prefill].admission


# --- what is left of the budget ---------------------------------------------------------------------------------------


@inner
def _left_of_all(s: State, i: int, rank: int, tokens: int) -> int:
    """What i's step, or that rank of it, has left of its budget, where chunks have so many tokens."""
    inst = s.instances[i]
    if unlikely(inst.ranks > 0):
        return left_on(s, i, rank)
    return inst.token_budget - s.step[i].decode_tokens - tokens


@inner
def _left_for_chunk(s: State, i: int, rank: int, tokens: int, load: int) -> int:
    """The same for a chunk, whose micro-batch has `load` prefill tokens."""
    inst = s.instances[i]
    if unlikely(inst.stages > 0):
        return share(s, i, inst.token_budget - s.step[i].decode_tokens) - load
    return _left_of_all(s, i, rank, tokens)


@inner
def _count_decode(s: State, i: int, r: int) -> None:
    """r decodes in the step that is being formed."""
    inst, step = s.instances[i], s.step[i]
    step.decode_tokens += 1 + step.depth
    if unlikely(inst.ranks > 0):
        spend(s, i, s.requests[r].rank, 1 + step.depth)


@inner
def _deal(s: State, i: int, b: int, load: int, chunk: int) -> int:
    """Count a chunk of number b of i's prefilling order; prefill tokens of the micro-batch that is next."""
    inst = s.instances[i]
    if unlikely(inst.ranks > 0):
        spend(s, i, s.requests[s.lists[inst.prefilling_at + b]].rank, chunk)
    return load_after(s, i, load, chunk)


# --- blocks -----------------------------------------------------------------------------------------------------------


@inner
def _make_room(s: State, i: int, r: int, blocks: int) -> bool:
    """Preempt the last of the list until so many blocks are available; False if that was r."""
    inst = s.instances[i]
    while blocks > available(s, i):
        last = _last(s, i)
        inst.preempted = True
        preempt(s, i, last)
        if last == r:
            return False
    return True


@inner
def _last(s: State, i: int) -> int:
    """Whoever on i was admitted last."""
    inst = s.instances[i]
    a, b = inst.running - 1, inst.prefilling - 1
    if b < 0 or (a >= 0 and not _decode_is_next(s, i, a, b)):
        return s.lists[inst.running_at + a]
    return s.lists[inst.prefilling_at + b]


@inner
def _next_chunk(s: State, i: int, b: int, tokens: int, load: int) -> int:
    """Tokens of the chunk of number b of i's prefilling order, 0 if nothing is left for it."""
    q = s.requests[s.lists[s.instances[i].prefilling_at + b]]
    left = _left_for_chunk(s, i, q.rank, tokens, load)
    return max(0, min(q.prefill_until - q.prefilled, largest_chunk(s, i, q.prefilled, left)))


@inner
def _extend(s: State, i: int, r: int, chunk: int) -> bool:
    """Blocks for r's next chunk; False if r itself gave way."""
    q = s.requests[r]
    kv = q.prefilled + chunk
    if kv > q.kv:
        blocks = blocks_of(s, i, kv) - blocks_of(s, i, q.kv)
        if not _make_room(s, i, r, blocks):
            return False
        allocate(s, i, blocks)
        add_kv_tokens(s, i, kv - q.kv, s.sim.now_s)
        q.kv = kv
    return True


# --- who comes --------------------------------------------------------------------------------------------------------


@inner
def _swap_in(s: State, i: int, tokens: int) -> int:
    """Bring back swapped-out requests, which decode as far as tokens are left; how many of them wait."""
    inst, waiting = s.instances[i], 0
    if inst.swapped == 0 or inst.preempted:
        return 0
    first = inst.running
    swap_in(s, i)
    for j in range(first, inst.running):
        r = s.lists[inst.running_at + j]
        if _left_of_all(s, i, s.requests[r].rank, tokens) > 0:
            _count_decode(s, i, r)
        else:
            s.requests[r].waits = True
            waiting += 1
    return waiting


@inner
def _admit(s: State, i: int, tokens: int, load: int) -> int:
    """Admit those that wait, each with a chunk of what is left; the tokens of all chunks, `tokens` before them."""
    inst, rank = s.instances[i], 0
    while inst.waiting_root >= 0:
        if unlikely(inst.ranks > 0):
            rank = choose_rank(s, i)
        left = _left_for_chunk(s, i, rank, tokens, load)
        chunk = admit_head(s, i, left, False, False) if left > 0 else 0
        if chunk == 0:
            break
        tokens += chunk
        load = _deal(s, i, inst.prefilling - 1, load, chunk)
    return tokens
