"""Ranks of an instance: its data-parallel groups of GPUs, each of which attends to its own requests.

A step ends with the slowest rank, so it takes as long as if all ranks were like that one. For the decodes of a rank the
engine keeps their number and the sum of their offsets, neither of which changes within a leap.
"""

from __future__ import annotations

import math

import numpy as np

from framework.codes import CHUNKS_FIRST, DECODE_FIRST, RANK_IN_TURN, RANK_OF_LEAST_REQUESTS, UNIFIED
from framework.compiler.decorators import inner, unlikely
from framework.engine.memory.state import State
from framework.timing.table import StepTables, base_s, chunk_s, decode_s, decode_with_chunks_s, uneven_s

_NEVER = np.iinfo(np.int64).max
# For each rank, in `State.lists` at `ranks_at`: decoding requests, the sum of their offsets, prefilling requests, the
# sum of their targets; for the step being formed, the rest of the rank's budget, and the largest offset.
DECODES, OFFSETS, PREFILLS, TARGETS, LEFT, LARGEST, RANK_WORDS = range(7)


@inner
def choose_rank(s: State, i: int) -> int:
    """The rank of the next request that comes to i, by the rule of its pool; ties go to the first rank."""
    inst = s.instances[i]
    if inst.rank_choice == RANK_IN_TURN:
        return int(inst.next_rank)
    best, least, less = 0, _NEVER, _NEVER
    for k in range(inst.ranks):
        first, second = _requests_on(s, i, k), _kv_on(s, i, k)
        if unlikely(inst.paused > 0):
            paused, kv = _paused_on(s, i, k)
            first += paused
            second += kv
        if inst.rank_choice != RANK_OF_LEAST_REQUESTS:
            first, second = second, first
        if first < least or (first == least and second < less):
            best, least, less = k, first, second
    return best


@inner
def _requests_on(s: State, i: int, k: int) -> int:
    at = s.instances[i].ranks_at + k * RANK_WORDS
    return int(s.lists[at + DECODES] + s.lists[at + PREFILLS])


@inner
def _kv_on(s: State, i: int, k: int) -> int:
    """KV tokens of rank k, counting prompts that are being computed as whole."""
    at = s.instances[i].ranks_at + k * RANK_WORDS
    return int(s.lists[at + OFFSETS] + s.lists[at + DECODES] * s.instances[i].decode_steps + s.lists[at + TARGETS])


@inner
def _paused_on(s: State, i: int, k: int) -> tuple[int, int]:
    """Paused decodes of rank k, which the step being formed leaves out, and their KV tokens."""
    inst, paused, kv = s.instances[i], 0, 0
    for j in range(inst.running - inst.paused, inst.running):
        q = s.requests[s.lists[inst.running_at + j]]
        if q.rank == k:
            paused += 1
            kv += q.kv
    return paused, kv


@inner
def steps_of_choice(s: State, i: int) -> int:
    """Decode steps after which the first of i's queue may find tokens on a rank other than the one it would get now.

    The KV of a rank grows with each step by its number of decodes. So a rank with fewer decodes, and more budget left,
    later holds less KV than the others. The budget left on the chosen rank stays the same until the choice changes.
    """
    inst = s.instances[i]
    if inst.rank_choice == RANK_IN_TURN or (inst.mode != DECODE_FIRST and inst.mode != UNIFIED):
        return int(_NEVER)
    if unlikely(inst.paused > 0):  # the KV of paused decodes does not grow
        return 1
    best = choose_rank(s, i)
    decodes = s.lists[inst.ranks_at + best * RANK_WORDS + DECODES]
    has_tokens = decodes < inst.token_budget // inst.ranks
    # the first of the queue waits for something else
    if has_tokens and inst.chunk_stages == 0 and not s.options.unchunked:
        return int(_NEVER)
    steps = _NEVER
    for k in range(inst.ranks):
        closing = decodes - s.lists[inst.ranks_at + k * RANK_WORDS + DECODES]
        if closing <= 0 or _waits_for_less(s, i, k, best):
            continue
        lead = _kv_on(s, i, k) - _kv_on(s, i, best)
        steps = min(steps, lead // closing + (0 if lead % closing == 0 and _wins_tie(s, i, k, best) else 1))
    return int(steps)


@inner
def _waits_for_less(s: State, i: int, k: int, best: int) -> bool:
    """Whether rank k has more requests than the best rank, under a rule that compares these first."""
    return bool(
        s.instances[i].rank_choice == RANK_OF_LEAST_REQUESTS and _requests_on(s, i, k) > _requests_on(s, i, best)
    )


@inner
def _wins_tie(s: State, i: int, k: int, best: int) -> bool:
    """Whether rank k comes before the best rank when both hold the same KV."""
    more = _requests_on(s, i, k) - _requests_on(s, i, best)
    return more < 0 or (more == 0 and k < best)


@inner
def put_on_rank(s: State, i: int, r: int) -> None:
    """Choose a rank for r, which comes to i."""
    inst = s.instances[i]
    s.requests[r].rank = choose_rank(s, i)
    inst.next_rank = (inst.next_rank + 1) % inst.ranks


@inner
def count_decode(s: State, i: int, r: int, sign: int) -> None:
    """Count r as decoding on its rank (1), or no longer (-1)."""
    at = s.instances[i].ranks_at + s.requests[r].rank * RANK_WORDS
    s.lists[at + DECODES] += sign
    s.lists[at + OFFSETS] += sign * s.requests[r].offset


@inner
def count_prefill(s: State, i: int, r: int, sign: int) -> None:
    """Count r as prefilling on its rank (1), or no longer (-1)."""
    at = s.instances[i].ranks_at + s.requests[r].rank * RANK_WORDS
    s.lists[at + PREFILLS] += sign
    s.lists[at + TARGETS] += sign * s.requests[r].prefill_until


@inner
def lengthen(s: State, i: int, r: int, tokens: int) -> None:
    """Add `tokens` KV tokens to those that steps gave r, which decodes on its rank."""
    at = s.instances[i].ranks_at + s.requests[r].rank * RANK_WORDS
    s.lists[at + OFFSETS] += tokens


# --- chunks: each rank has its share of the token budget --------------------------------------------------------------


@inner
def share_budget(s: State, i: int) -> None:
    """Begin a step: give each rank its share of i's token budget, less its decodes if the step has any."""
    inst = s.instances[i]
    for k in range(inst.ranks):
        at = inst.ranks_at + k * RANK_WORDS
        decode_tokens = 0 if inst.mode == CHUNKS_FIRST else s.lists[at + DECODES] * (1 + s.step[i].depth)
        s.lists[at + LEFT] = inst.token_budget // inst.ranks - decode_tokens


@inner
def open_budget(s: State, i: int) -> None:
    """Begin a step: give each rank its full share of i's token budget."""
    inst = s.instances[i]
    for k in range(inst.ranks):
        s.lists[inst.ranks_at + k * RANK_WORDS + LEFT] = inst.token_budget // inst.ranks


@inner
def left_on(s: State, i: int, rank: int) -> int:
    """Tokens left of a rank's budget in the step being formed."""
    return s.lists[s.instances[i].ranks_at + rank * RANK_WORDS + LEFT]


@inner
def spend(s: State, i: int, rank: int, tokens: int) -> None:
    """Subtract a chunk from a rank's budget."""
    s.lists[s.instances[i].ranks_at + rank * RANK_WORDS + LEFT] -= tokens


# --- time of a step ---------------------------------------------------------------------------------------------------


@inner
def slowest_rank(s: State, i: int, decodes: int, prefill_tokens: int) -> tuple[float, float, int]:
    """Seconds of the step being formed, seconds added by each further step, and for how many steps this holds.

    The ranks' step times are lines, of which the highest counts. It holds until another line crosses it, or any line
    bends.
    """
    inst = s.instances[i]
    if decodes > 0 and s.timing_rows[inst.row]["skew_s"] > 0.0:
        _note_largest(s, i)
    first_s, increment_s = -1.0, 0.0
    for k in range(inst.ranks):
        value_s, more_s, _ = _line_of_rank(s, i, k, decodes, prefill_tokens)
        if value_s > first_s or (value_s == first_s and more_s > increment_s):
            first_s, increment_s = value_s, more_s
    if prefill_tokens > 0:
        return first_s, increment_s, 1
    most = _NEVER
    for k in range(inst.ranks):
        value_s, more_s, straight = _line_of_rank(s, i, k, decodes, 0)
        most = min(most, straight)
        if more_s > increment_s:
            crossing = (first_s - value_s) / (more_s - increment_s)
            if crossing < most:
                most = int(crossing) + 1
    return first_s, increment_s, most


@inner
def _note_largest(s: State, i: int) -> None:
    inst = s.instances[i]
    for k in range(inst.ranks):
        s.lists[inst.ranks_at + k * RANK_WORDS + LARGEST] = -_NEVER
    for j in range(inst.running - inst.paused):
        q = s.requests[s.lists[inst.running_at + j]]
        at = inst.ranks_at + q.rank * RANK_WORDS
        s.lists[at + LARGEST] = max(s.lists[at + LARGEST], q.offset)


@inner
def _line_of_rank(s: State, i: int, k: int, decodes: int, prefill_tokens: int) -> tuple[float, float, int]:
    """The result of `slowest_rank` if all ranks were like rank k; chunks have been noted in `State.lists`."""
    inst, step = s.instances[i], s.step[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    at = inst.ranks_at + k * RANK_WORDS
    chunk_tokens, completing, chunks_s = 0, 0, 0.0
    if prefill_tokens > 0 and s.lists[at + PREFILLS] > 0:
        for j in range(inst.prefilling):
            q = s.requests[s.lists[inst.prefilling_at + j]]
            chunk = s.lists[inst.chunk_at + j]
            if chunk > 0 and q.rank == k:
                chunk_tokens += chunk
                chunks_s += inst.ranks * chunk_s(tables, inst.row, q.prefilled, chunk)
                if q.prefilled + chunk == q.prefill_until and q.split != q.prefill_until:
                    completing += 1
    running = s.lists[at + DECODES] if decodes > 0 else 0
    tokens = running * (1 + step.depth)
    sampled, drafts = inst.ranks * (tokens + completing), inst.ranks * (tokens - running)
    first_s = base_s(tables, inst.row, inst.ranks * chunk_tokens, inst.ranks * tokens, sampled, drafts)
    value_s, more_s, straight = 0.0, 0.0, _NEVER
    if running > 0:
        batch = inst.ranks * running
        context = inst.ranks * (s.lists[at + OFFSETS] + running * inst.decode_steps + tokens)
        value_s, slope_s, knot = decode_s(tables, inst.row, batch, context)
        more_s = slope_s * batch
        if knot < np.inf:
            straight = max(1, math.ceil((knot - context) / batch))
        if s.timing_rows[inst.row]["skew_s"] > 0.0:
            longest = s.lists[at + LARGEST] + inst.decode_steps + 1 + step.depth
            value_s += uneven_s(tables, inst.row, batch, context, longest)
        if chunk_tokens > 0:
            value_s = decode_with_chunks_s(tables, inst.row, batch, context, value_s)
    first_s += chunks_s + value_s
    if chunk_tokens > 0 and running > 0:
        first_s -= s.options.attention_overlap * min(chunks_s, value_s)
    return first_s, more_s, straight
