"""Pulled KV: an instance fetches KV as it forms steps, and the request has no seat until it joins.

A request with fetched KV joins behind the running ones if the step has a seat and tokens left for it.
"""

from __future__ import annotations

from framework.codes import PREFILLING, STEP_END, TOKEN_AT_JOIN
from framework.compiler.decorators import inner, unlikely
from framework.engine.copies.prefix_transfer import reserve_for, tokens_to_copy
from framework.engine.copies.transfers import free_ahead, room_for, sent_kv, start_copy, start_copy_by_layer
from framework.engine.kv.held_kv import wait_no_more
from framework.engine.kv.prefix_tiers import begin_count
from framework.engine.memory.kv_blocks import available, blocks_for, blocks_of, seats
from framework.engine.memory.state import State
from framework.engine.memory.winner_trees import time_of
from framework.engine.parallel.data_parallel import put_on_rank
from framework.engine.requests.lifecycle import start_decoding, start_prefilling
from framework.engine.steps.step import stamp_first_token


@inner
def pull(s: State, i: int) -> None:
    """Fetch the KV of requests that wait for i, in order, while there is room beyond what i's own prompts need.

    The KV of a prompt that is still being computed is fetched layer by layer.
    """
    inst = s.instances[i]
    kept = _blocks_to_come(s, i)
    while inst.incoming_head >= 0:
        r = inst.incoming_head
        q = s.requests[r]
        if not reserve_for(s, i, r, room_for(s, r), sent_kv(s, r), kept):
            break
        wait_no_more(s, i, -1)
        tokens = tokens_to_copy(s, r, blocks_for(s, q.kv) * s.options.block_tokens)
        if unlikely(q.state == PREFILLING):
            start_copy_by_layer(s, r, i, tokens, time_of(s, STEP_END, q.instance))
        else:
            start_copy(s, r, q.instance, i, tokens)


@inner
def _blocks_to_come(s: State, i: int) -> int:
    """Blocks that the prompts which i computes still lack."""
    inst = s.instances[i]
    blocks = 0
    for j in range(inst.prefilling):
        q = s.requests[s.lists[inst.prefilling_at + j]]
        blocks += blocks_of(s, i, q.prefill_until) - blocks_of(s, i, q.kv)
    return blocks


@inner
def let_join(s: State, i: int) -> None:
    """Let requests whose KV has come to i join, as far as seats and tokens allow."""
    while may_join(s, i):
        join_first(s, i)


@inner
def may_join(s: State, i: int) -> bool:
    """Whether a request with fetched KV may join i: there is a seat and, unless i is idle, room above the watermark."""
    inst = s.instances[i]
    if inst.joining_head < 0 or seats(s, i) + inst.late_seats >= inst.max_batch:
        return False
    alone = inst.running + inst.prefilling == 0 and inst.deferred_head < 0
    return alone or available(s, i) >= inst.watermark


@inner
def join_first(s: State, i: int) -> int:
    """Let the first request with fetched KV decode on i, or continue its prefill; return the request."""
    inst, sim = s.instances[i], s.sim
    r = inst.joining_head
    q = s.requests[r]
    inst.joining_head = q.next
    inst.joining -= 1
    sim.admissions += 1
    q.admission = sim.admissions
    begin_count(s, r)
    if unlikely(inst.ranks > 0):
        put_on_rank(s, i, r)
    if unlikely(q.prefilled < q.prefill_until):
        start_prefilling(s, i, r)
        return r
    if unlikely(s.options.pulls):
        free_ahead(s, i, r)
    if unlikely(q.first_token_pending) and s.options.first_token == TOKEN_AT_JOIN:
        stamp_first_token(s, r, sim.now_s)
    start_decoding(s, i, r, q.kv)
    return r


@inner
def join_computed(s: State, i: int) -> None:
    """Let the first request whose prompt i's prefill stream has computed decode; it already has its seat and blocks."""
    inst, sim = s.instances[i], s.sim
    r = inst.computed_head
    q = s.requests[r]
    inst.computed_head = q.next
    inst.computed -= 1
    inst.computed_known -= 1
    inst.joining -= 1
    sim.admissions += 1
    q.admission = sim.admissions
    start_decoding(s, i, r, q.kv)
