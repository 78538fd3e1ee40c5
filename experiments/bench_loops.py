"""The two compiled loops of experiments.bench_bare: mixed instances, decodes first; prefill instances, then decode.

They follow framework/engine/SEMANTICS.md where it concerns them, one iteration after another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from framework.jit import entry
from framework.workload import Workload

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

ROUTINGS = ("round_robin", "least_queued")
_LEAST_QUEUED = ROUTINGS.index("least_queued")
NO_ROOM = -1
_WAITING, _INCOMING, _FLYING, _JOINED, _LISTS = range(5)
_NEVER = np.iinfo(np.int64).max


class Options(NamedTuple):
    """What holds for every instance; the step time is affine (see framework.timing.affine)."""

    token_budget: int
    max_batch: int
    block_tokens: int
    watermark: int
    base_s: float
    per_prefill_token_s: float
    prefill_quadratic_s: float
    per_sequence_s: float
    per_context_token_s: float
    kv_bytes_per_token: float
    bandwidth_bytes_s: float
    latency_s: float


class Arrays(NamedTuple):
    """N requests on M instances of at most B sequences."""

    arrival_s: Floats  # (N,)
    prompt: Integers
    output: Integers
    end_s: Floats
    ready_s: Floats  # end of its transfer
    done: Integers  # prompt tokens prefilled
    offset: Integers  # KV tokens = offset + decode steps of its instance
    home: Integers  # prefill instance that holds its KV
    link: Integers  # next in its list
    head: Integers  # (_LISTS, M)
    tail: Integers
    next_end_s: Floats  # (M,)
    free: Integers  # KV blocks
    queued_tokens: Integers
    running: Integers
    chunks: Integers
    reserved: Integers  # transfers on their way, and those that have arrived and not joined
    kv: Integers  # KV tokens of the running requests
    decode_steps: Integers
    next_finish: Integers
    link_free_s: Floats
    request_of: Integers  # (M, B) running requests
    finish_at: Integers  # decode step after which each ends
    chunk_request: Integers
    chunk: Integers
    growth: Integers  # (M, block_tokens) new blocks by phase of decode_steps


def allocate(workload: Workload, instances: int, blocks: int, max_batch: int, block_tokens: int) -> Arrays:
    """The state before the first event: every instance idle, with `blocks` free KV blocks."""
    count = len(workload)

    def integers(*shape: int, fill: int = 0) -> Integers:
        return np.full(shape, fill, np.int64)

    return Arrays(
        arrival_s=np.array(workload.arrival_s),
        prompt=np.array(workload.input_tokens),
        output=np.array(workload.output_tokens),
        end_s=np.zeros(count),
        ready_s=np.zeros(count),
        done=integers(count),
        offset=integers(count),
        home=integers(count),
        link=integers(count, fill=-1),
        head=integers(_LISTS, instances, fill=-1),
        tail=integers(_LISTS, instances, fill=-1),
        next_end_s=np.full(instances, np.inf),
        free=integers(instances, fill=blocks),
        queued_tokens=integers(instances),
        running=integers(instances),
        chunks=integers(instances),
        reserved=integers(instances),
        kv=integers(instances),
        decode_steps=integers(instances),
        next_finish=integers(instances, fill=_NEVER),
        link_free_s=np.zeros(instances),
        request_of=integers(instances, max_batch),
        finish_at=integers(instances, max_batch),
        chunk_request=integers(instances, max_batch),
        chunk=integers(instances, max_batch),
        growth=integers(instances, block_tokens),
    )


_ONE = np.ones(1, np.int64)
_ARRAYS = numba.typeof(allocate(Workload(np.zeros(1), _ONE, _ONE), 1, 1, 1, 1))
_OPTIONS = numba.typeof(Options(*[1] * 4, *[1.0] * 8))
_REPLAY = numba.int64(_ARRAYS, _OPTIONS, numba.int64)
# Passing the arrays to a function costs more than most of these do, so their statements become part of the two loops.
_INLINED: Any = {"inline": "always", "nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}
_part = numba.njit(**_INLINED)


# --- parts of both loops --------------------------------------------------------------------------------------------


@_part
def _push(a: Arrays, which: int, i: int, r: int) -> None:
    a.link[r] = -1
    if a.head[which, i] < 0:
        a.head[which, i] = r
    else:
        a.link[a.tail[which, i]] = r
    a.tail[which, i] = r


@_part
def _pop(a: Arrays, which: int, i: int) -> int:
    r = a.head[which, i]
    a.head[which, i] = a.link[r]
    return r


@_part
def _blocks(o: Options, tokens: int) -> int:
    return (tokens + o.block_tokens - 1) // o.block_tokens


@_part
def _earliest(a: Arrays) -> int:
    best = 0
    for i in range(1, len(a.next_end_s)):
        if a.next_end_s[i] < a.next_end_s[best]:
            best = i
    return best


@_part
def _start_decoding(a: Arrays, o: Options, i: int, r: int) -> None:
    """The prompt and its first token are done."""
    step, j = a.decode_steps[i], a.running[i]
    a.offset[r] = a.prompt[r] - step
    a.request_of[i, j] = r
    a.finish_at[i, j] = step + a.output[r] - 1
    a.next_finish[i] = min(a.next_finish[i], a.finish_at[i, j])
    a.growth[i, (-a.offset[r]) % o.block_tokens] += 1
    a.kv[i] += a.prompt[r]
    a.running[i] = j + 1


@_part
def _emit_decodes(a: Arrays, o: Options, i: int, now_s: float) -> int:
    """One token for each running request; how many of them finish."""
    a.decode_steps[i] += 1
    a.kv[i] += a.running[i]
    step, kept, count = a.decode_steps[i], 0, a.running[i]
    if step < a.next_finish[i]:
        return 0
    a.next_finish[i] = _NEVER
    for j in range(count):
        r, finish = a.request_of[i, j], a.finish_at[i, j]
        if finish == step:
            kv = a.offset[r] + step
            a.end_s[r] = now_s
            a.kv[i] -= kv
            a.free[i] += _blocks(o, kv)
            a.growth[i, (-a.offset[r]) % o.block_tokens] -= 1
        else:
            a.request_of[i, kept] = r
            a.finish_at[i, kept] = finish
            a.next_finish[i] = min(a.next_finish[i], finish)
            kept += 1
    a.running[i] = kept
    return int(count - kept)


@_part
def _admit(a: Arrays, o: Options, i: int) -> bool:
    """Move the head of the queue to the chunks, if seats and blocks allow."""
    blocks = _blocks(o, a.prompt[a.head[_WAITING, i]])
    if a.running[i] + a.chunks[i] >= o.max_batch or a.free[i] - blocks < o.watermark:
        return False
    a.free[i] -= blocks
    a.chunk_request[i, a.chunks[i]] = _pop(a, _WAITING, i)
    a.chunks[i] += 1
    return True


@_part
def _start_step(a: Arrays, o: Options, i: int, now_s: float) -> None:
    """Start the step of all running requests and the chunks noted; without any, i is idle."""
    decodes, tokens, squares = a.running[i], 0, 0.0
    for j in range(a.chunks[i]):
        prefix, chunk = a.done[a.chunk_request[i, j]], a.chunk[i, j]
        tokens += chunk
        squares += float((2 * prefix + chunk) * chunk)
    duration_s = o.base_s + o.per_prefill_token_s * tokens + o.prefill_quadratic_s * squares
    duration_s += o.per_sequence_s * decodes + o.per_context_token_s * (a.kv[i] + decodes)
    a.next_end_s[i] = now_s + duration_s if decodes + tokens > 0 else np.inf


@_part
def _make_room(a: Arrays, o: Options, i: int) -> bool:
    """Take the blocks that the coming tokens of running requests need; False if there are not enough."""
    grow = a.growth[i, a.decode_steps[i] % o.block_tokens]
    if grow > a.free[i]:
        return False
    a.free[i] -= grow
    return True


# --- mixed instances, decodes first -----------------------------------------------------------------------------------


@_part
def _begin_mixed(a: Arrays, o: Options, i: int, now_s: float) -> bool:
    if not _make_room(a, o, i):
        return False
    left = o.token_budget - a.running[i]
    for j in range(a.chunks[i]):
        a.chunk[i, j] = max(0, min(a.prompt[a.chunk_request[i, j]] - a.done[a.chunk_request[i, j]], left))
        left -= a.chunk[i, j]
    while left > 0 and a.head[_WAITING, i] >= 0 and _admit(a, o, i):
        j = a.chunks[i] - 1
        a.chunk[i, j] = min(a.prompt[a.chunk_request[i, j]], left)
        left -= a.chunk[i, j]
    _start_step(a, o, i, now_s)
    return True


@_part
def _end_mixed(a: Arrays, o: Options, i: int, now_s: float) -> int:
    ended = 0
    if a.running[i] > 0:
        ended = _emit_decodes(a, o, i, now_s)
    kept, count = 0, a.chunks[i]
    for j in range(count):
        r, chunk = a.chunk_request[i, j], a.chunk[i, j]
        a.done[r] += chunk
        a.queued_tokens[i] -= chunk
        if a.done[r] < a.prompt[r]:
            a.chunk_request[i, kept] = r
            kept += 1
        elif a.output[r] == 1:
            a.end_s[r] = now_s
            a.free[i] += _blocks(o, a.prompt[r])
            ended += 1
        else:
            _start_decoding(a, o, i, r)
    a.chunks[i] = kept
    return ended


@entry(_REPLAY)
def replay_mixed(a: Arrays, o: Options, routing: int) -> int:
    """Chunked prefill, decodes first, until every request has ended; the steps, or NO_ROOM."""
    count, instances = len(a.arrival_s), len(a.next_end_s)
    arrived, ended, steps = 0, 0, 0
    while ended < count:
        i = _earliest(a)
        now_s = a.next_end_s[i]
        if arrived < count and a.arrival_s[arrived] < now_s:
            r, now_s = arrived, a.arrival_s[arrived]
            arrived += 1
            i = r % instances
            if routing == _LEAST_QUEUED:
                i = int(np.argmin(a.queued_tokens))
            a.queued_tokens[i] += a.prompt[r]
            _push(a, _WAITING, i, r)
            if a.next_end_s[i] < np.inf:
                continue
        else:
            steps += 1
            ended += _end_mixed(a, o, i, now_s)
        if not _begin_mixed(a, o, i, now_s):
            return NO_ROOM
    return steps


# --- prefill instances, then decode instances -------------------------------------------------------------------------


@_part
def _next_transfer(a: Arrays, prefills: int) -> int:
    """The decode instance whose transfer ends first; transfers to one instance end in the order of their starts."""
    best, earliest_s = -1, np.inf
    for d in range(prefills, len(a.next_end_s)):
        r = a.head[_FLYING, d]
        if r >= 0 and a.ready_s[r] < earliest_s:
            best, earliest_s = d, a.ready_s[r]
    return best


@_part
def _begin_prefill(a: Arrays, o: Options, i: int, now_s: float) -> None:
    tokens = 0
    while a.head[_WAITING, i] >= 0:
        prompt = a.prompt[a.head[_WAITING, i]]
        if (tokens > 0 and tokens + prompt > o.token_budget) or not _admit(a, o, i):
            break
        a.chunk[i, a.chunks[i] - 1] = prompt
        tokens += prompt
    _start_step(a, o, i, now_s)


@_part
def _begin_decode(a: Arrays, o: Options, d: int, now_s: float) -> bool:
    while a.head[_JOINED, d] >= 0:
        a.reserved[d] -= 1
        _start_decoding(a, o, d, _pop(a, _JOINED, d))
    if not _make_room(a, o, d):
        return False
    _start_step(a, o, d, now_s)
    return True


@_part
def _start_transfers(a: Arrays, o: Options, d: int, now_s: float) -> None:
    """Reserve room and claim both ends of the link, first come first served."""
    while a.head[_INCOMING, d] >= 0:
        r = a.head[_INCOMING, d]
        blocks = _blocks(o, a.prompt[r])
        if a.running[d] + a.reserved[d] >= o.max_batch or a.free[d] - blocks < o.watermark:
            break
        _pop(a, _INCOMING, d)
        a.reserved[d] += 1
        a.free[d] -= blocks
        source = a.home[r]
        start_s = max(now_s, max(a.link_free_s[source], a.link_free_s[d]))
        end_s = start_s + a.prompt[r] * o.kv_bytes_per_token / o.bandwidth_bytes_s
        a.link_free_s[source] = end_s
        a.link_free_s[d] = end_s
        a.ready_s[r] = end_s + o.latency_s
        _push(a, _FLYING, d, r)


@_part
def _receive(a: Arrays, o: Options, d: int) -> int:
    """The first transfer to d has ended: d may decode it, its source has room again; returns the source."""
    r = _pop(a, _FLYING, d)
    a.free[a.home[r]] += _blocks(o, a.prompt[r])
    _push(a, _JOINED, d, r)
    return a.home[r]


@entry(_REPLAY)
def replay_disaggregated(a: Arrays, o: Options, prefills: int) -> int:
    """The first `prefills` instances prefill, the others decode, until every request has ended; steps, or NO_ROOM."""
    count, instances = len(a.arrival_s), len(a.next_end_s)
    arrived, ended, steps, placed = 0, 0, 0, 0
    while ended < count:
        i = _earliest(a)
        now_s = a.next_end_s[i]
        d = _next_transfer(a, prefills)
        ready_s = a.ready_s[a.head[_FLYING, d]] if d >= 0 else np.inf
        if arrived < count and a.arrival_s[arrived] < min(now_s, ready_s):
            i, now_s = arrived % prefills, a.arrival_s[arrived]
            _push(a, _WAITING, i, arrived)
            arrived += 1
            if a.next_end_s[i] == np.inf:
                _begin_prefill(a, o, i, now_s)
        elif ready_s < now_s:
            i = _receive(a, o, d)
            if a.next_end_s[i] == np.inf:
                _begin_prefill(a, o, i, ready_s)
            if a.next_end_s[d] == np.inf and not _begin_decode(a, o, d, ready_s):
                return NO_ROOM
        elif i < prefills:
            steps += 1
            for j in range(a.chunks[i]):
                r = a.chunk_request[i, j]
                if a.output[r] == 1:
                    a.end_s[r] = now_s
                    a.free[i] += _blocks(o, a.prompt[r])
                    ended += 1
                else:
                    a.home[r] = i
                    d = prefills + placed % (instances - prefills)
                    placed += 1
                    _push(a, _INCOMING, d, r)
                    _start_transfers(a, o, d, now_s)
            a.chunks[i] = 0
            _begin_prefill(a, o, i, now_s)
        else:
            steps += 1
            finished = _emit_decodes(a, o, i, now_s)
            if finished > 0:
                ended += finished
                _start_transfers(a, o, i, now_s)
            if not _begin_decode(a, o, i, now_s):
                return NO_ROOM
    return steps
