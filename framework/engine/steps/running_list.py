"""Steps formed in order of admission: decoding and prefilling requests are one list.

Each request takes what it needs of the tokens that are left. One that finds no blocks preempts the last of the list.
"""

from __future__ import annotations

from framework.codes import FINISHED, PREFILLING
from framework.compiler.decorators import inner, unlikely
from framework.engine.durations.speculation import blocks_of_next_step, choose_depth, growth_of
from framework.engine.events.ask import is_asked
from framework.engine.kv.kv_cache import allocate, free
from framework.engine.kv.pins import break_pins
from framework.engine.kv.prefix_cache import register_prefix
from framework.engine.memory.kv_blocks import add_kv_tokens, available, blocks_of
from framework.engine.memory.state import State
from framework.engine.parallel.data_parallel import choose_rank, left_on, open_budget, spend
from framework.engine.parallel.pipeline_parallel import begin_step, load_after, share
from framework.engine.requests.asynchronous import last_deferred
from framework.engine.requests.pausing import pause_rest
from framework.engine.requests.preemption import preempt, preemption_victim, swap_in
from framework.engine.requests.selection import selected
from framework.engine.steps.admission import admit_chunk
from framework.engine.steps.chunks import largest_chunk, note_chunk
from framework.engine.steps.pulling import join_first, may_join, pull
from framework.policy.hooks import SELECT, VICTIM


@inner
def form_in_order(s: State, i: int) -> tuple[int, int]:
    """Form i's step in order of admission; return its decodes, and the tokens of its chunks."""
    inst, step = s.instances[i], s.step[i]
    if unlikely(s.options.speculates):
        step.depth = choose_depth(s, i)
    if unlikely(inst.disordered):
        _sort(s, i)
    begin_step(s, i)
    if unlikely(inst.ranks > 0):
        open_budget(s, i)
    step.decode_tokens = step.prefill_tokens = step.load = step.next_decode = step.next_prefill = 0
    if _decodes_come_first(s, i):
        allocate(s, i, blocks_of_next_step(s, i))
        step.next_decode = inst.running
        step.decode_tokens = inst.running * (1 + step.depth)
    waiting = _go_through(s, i) + _swap_in(s, i)
    if unlikely(s.options.pulls):
        _let_join(s, i)
    _admit(s, i)
    if unlikely(s.options.pulls) and not inst.preempted and _has_tokens(s, i):
        pull(s, i)
    if unlikely(waiting > 0):
        if step.decode_tokens + step.prefill_tokens == 0:
            return _go_on_as_before(s, i)
        pause_rest(s, i)
    return int(inst.running - inst.paused), int(step.prefill_tokens)


@inner
def _go_through(s: State, i: int) -> int:
    """Give tokens and blocks to the list from `next_decode` and `next_prefill` on; return how many decodes wait."""
    inst, step = s.instances[i], s.step[i]
    waiting = 0
    while step.next_decode < inst.running or step.next_prefill < inst.prefilling:
        if _decode_is_next(s, i, step.next_decode, step.next_prefill):
            r = s.lists[inst.running_at + step.next_decode]
            if s.requests[r].skips or _left_of_all(s, i, s.requests[r].rank) <= 0:
                s.requests[r].waits = True
                waiting += 1
            elif not _give_blocks(s, i, r, growth_of(s, i, r)):
                return waiting + _leave_rest(s, i)
            else:
                _count_decode(s, i, r, 1)
            step.next_decode += 1
        else:
            r = s.lists[inst.prefilling_at + step.next_prefill]
            chunk = _next_chunk(s, i, r)
            if chunk > 0 and not _extend(s, i, r, chunk):
                return waiting + _leave_rest(s, i)
            note_chunk(s, i, step.next_prefill, chunk)
            _count_chunk(s, i, r, chunk)
            step.next_prefill += 1
    return waiting


@inner
def _leave_rest(s: State, i: int) -> int:
    """Leave those behind a preempted request out of the step; return how many of them decode."""
    inst, step = s.instances[i], s.step[i]
    for j in range(step.next_decode, inst.running):
        s.requests[s.lists[inst.running_at + j]].waits = True
    for j in range(step.next_prefill, inst.prefilling):
        note_chunk(s, i, j, 0)
    return int(inst.running - step.next_decode)


@inner
def _go_on_as_before(s: State, i: int) -> tuple[int, int]:
    """Let no request pause, as no step is formed."""
    inst = s.instances[i]
    for j in range(inst.running):
        s.requests[s.lists[inst.running_at + j]].waits = False
    return 0, 0


@inner
def _sort(s: State, i: int) -> None:
    """Sort i's running order by admission."""
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
    """Whether all of i's decodes have tokens and blocks, and no prefilling request was admitted before one of them."""
    inst = s.instances[i]
    if inst.ranks > 0 or inst.running * (1 + s.step[i].depth) > inst.token_budget:
        return False
    if inst.running > 0 and not _decode_is_next(s, i, inst.running - 1, 0):
        return False
    if unlikely(is_asked(s, SELECT)) and selected(s, i) < inst.running:
        return False
    return bool(blocks_of_next_step(s, i) <= available(s, i))


@inner
def _decode_is_next(s: State, i: int, a: int, b: int) -> bool:
    """Whether number a of i's running order was admitted before number b of its prefilling order.

    An index past the end comes last.
    """
    inst = s.instances[i]
    if a >= inst.running or b >= inst.prefilling:
        return bool(a < inst.running)
    decode, prefill = s.lists[inst.running_at + a], s.lists[inst.prefilling_at + b]
    return s.requests[decode].admission < s.requests[prefill].admission


# --- what is left of the budget ---------------------------------------------------------------------------------------


@inner
def _left_of_all(s: State, i: int, rank: int) -> int:
    """Tokens left of the budget of the step being formed, or of its rank."""
    inst, step = s.instances[i], s.step[i]
    if unlikely(inst.ranks > 0):
        return left_on(s, i, rank)
    return inst.token_budget - step.decode_tokens - step.prefill_tokens


@inner
def _left_for_chunk(s: State, i: int, rank: int) -> int:
    """Tokens left for a chunk, which goes to the micro-batch of fewest prefill tokens."""
    inst, step = s.instances[i], s.step[i]
    if unlikely(inst.stages > 0):
        return share(s, i, inst.token_budget - step.decode_tokens) - step.load
    return _left_of_all(s, i, rank)


@inner
def _count_decode(s: State, i: int, r: int, sign: int) -> None:
    """Count r as decoding in the step being formed (1), or no longer (-1)."""
    inst, step = s.instances[i], s.step[i]
    tokens = sign * (1 + step.depth)
    step.decode_tokens += tokens
    if unlikely(inst.ranks > 0):
        spend(s, i, s.requests[r].rank, tokens)


@inner
def _count_chunk(s: State, i: int, r: int, chunk: int) -> None:
    """Count a chunk of r in the step being formed."""
    inst, step = s.instances[i], s.step[i]
    step.prefill_tokens += chunk
    step.load = load_after(s, i, step.load, chunk)
    if unlikely(inst.ranks > 0):
        spend(s, i, s.requests[r].rank, chunk)


@inner
def _next_chunk(s: State, i: int, r: int) -> int:
    """Tokens of r's next chunk, 0 if no tokens are left for it."""
    q = s.requests[r]
    return max(0, min(q.prefill_until - q.prefilled, largest_chunk(s, i, q.prefilled, _left_for_chunk(s, i, q.rank))))


# --- blocks -----------------------------------------------------------------------------------------------------------


@inner
def _extend(s: State, i: int, r: int, chunk: int) -> bool:
    """Allocate blocks for r's next chunk; False if r itself gave way."""
    q = s.requests[r]
    kv = q.prefilled + chunk
    if kv > q.kv:
        if not _give_blocks(s, i, r, blocks_of(s, i, kv) - blocks_of(s, i, q.kv)):
            return False
        add_kv_tokens(s, i, kv - q.kv, s.sim.now_s)
        q.kv = kv
    return True


@inner
def _give_blocks(s: State, i: int, r: int, blocks: int) -> bool:
    """Give r that number of blocks, taking them from others if none are available; False if r itself was preempted."""
    inst = s.instances[i]
    if unlikely(inst.pinned_head >= 0):
        break_pins(s, i, blocks)
    while blocks > available(s, i):
        by_rule = s.options.least_urgent or s.options.fewest_tokens or is_asked(s, VICTIM)
        victim = preemption_victim(s, i) if unlikely(by_rule) else _last(s, i)
        ended = s.requests[victim].state == FINISHED
        if unlikely(s.requests[victim].admission < s.requests[r].admission) and not ended:
            _take_back(s, i, victim)
        inst.preempted = True
        preempt(s, i, victim)
        if victim == r:
            return False
    allocate(s, i, blocks)
    return True


@inner
def _last(s: State, i: int) -> int:
    """The request of i that was admitted last, including those with a deferred free."""
    inst = s.instances[i]
    a, b = inst.running - 1, inst.prefilling - 1
    if b < 0 or (a >= 0 and not _decode_is_next(s, i, a, b)):
        last = s.lists[inst.running_at + a]
    else:
        last = s.lists[inst.prefilling_at + b]
    ended = last_deferred(s, i)
    return ended if ended >= 0 and s.requests[ended].admission > s.requests[last].admission else last


@inner
def _take_back(s: State, i: int, r: int) -> None:
    """Take r, which had its turn and is about to be preempted, out of the step."""
    inst, step, q = s.instances[i], s.step[i], s.requests[r]
    if q.state == PREFILLING:
        _take_chunk_back(s, i, r)
        return
    if not q.waits:
        _count_decode(s, i, r, -1)
        if s.options.shares_early and q.caches:  # the block that its token would have filled, if that token is known
            register_prefix(s, i, r, q.offset + inst.decode_steps + (0 if s.options.asynchronous else 1))
        free(s, i, growth_of(s, i, r))
    q.waits = False
    step.next_decode -= 1


@inner
def _take_chunk_back(s: State, i: int, r: int) -> None:
    """Count the chunks of the step again without that of r, which is about to be preempted."""
    inst, step = s.instances[i], s.step[i]
    begin_step(s, i)
    step.prefill_tokens = step.load = 0
    for j in range(step.next_prefill):
        other, chunk = s.lists[inst.prefilling_at + j], s.lists[inst.chunk_at + j]
        if unlikely(inst.ranks > 0):
            spend(s, i, s.requests[other].rank, -chunk)
        if other != r:
            _count_chunk(s, i, other, chunk)
    step.next_prefill -= 1


# --- who comes --------------------------------------------------------------------------------------------------------


@inner
def _swap_in(s: State, i: int) -> int:
    """Bring back swapped-out requests, which decode as far as tokens are left; return how many of them wait."""
    inst, waiting = s.instances[i], 0
    if inst.swapped == 0 or inst.preempted:
        return 0
    first = inst.running
    swap_in(s, i)
    for j in range(first, inst.running):
        r = s.lists[inst.running_at + j]
        if _left_of_all(s, i, s.requests[r].rank) > 0:
            _count_decode(s, i, r, 1)
        else:
            free(s, i, growth_of(s, i, r))
            s.requests[r].waits = True
            waiting += 1
    return waiting


@inner
def _let_join(s: State, i: int) -> None:
    """Let requests with fetched KV join while tokens and room are left."""
    inst = s.instances[i]
    while not inst.preempted and may_join(s, i) and _has_tokens(s, i):
        r = join_first(s, i)
        if s.requests[r].state == PREFILLING:
            chunk = _next_chunk(s, i, r)
            note_chunk(s, i, inst.prefilling - 1, chunk)
            _count_chunk(s, i, r, chunk)
        else:
            allocate(s, i, growth_of(s, i, r))
            _count_decode(s, i, r, 1)


@inner
def _has_tokens(s: State, i: int) -> bool:
    """Whether tokens are left for the next request."""
    rank = choose_rank(s, i) if unlikely(s.instances[i].ranks > 0) else 0
    return bool(_left_of_all(s, i, rank) > 0)


@inner
def _admit(s: State, i: int) -> None:
    """Admit waiting requests, each with a chunk of the tokens that are left."""
    inst, rank = s.instances[i], 0
    while inst.waiting_root >= 0:
        if unlikely(inst.ranks > 0):
            rank = choose_rank(s, i)
        left = _left_for_chunk(s, i, rank)
        chunk = admit_chunk(s, i, left) if left > 0 else 0
        if chunk == 0:
            return
        _count_chunk(s, i, s.lists[inst.prefilling_at + inst.prefilling - 1], chunk)
