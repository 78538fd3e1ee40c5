"""What the two bare loops share: their arrays, and the parts of one iteration.

They follow framework/engine/SEMANTICS.md as far as it applies to them, one iteration after another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from framework.workload import Workload

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

ROUTINGS = ("round_robin", "least_queued")
LEAST_QUEUED = ROUTINGS.index("least_queued")
NO_ROOM = -1
WAITING, INCOMING, FLYING, JOINED, _LISTS = range(5)
NEVER = np.iinfo(np.int64).max


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
    begins: Integers  # 1: forms a step once all events of this time have happened
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
        begins=integers(instances),
        free=integers(instances, fill=blocks),
        queued_tokens=integers(instances),
        running=integers(instances),
        chunks=integers(instances),
        reserved=integers(instances),
        kv=integers(instances),
        decode_steps=integers(instances),
        next_finish=integers(instances, fill=NEVER),
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
REPLAY = numba.int64(_ARRAYS, _OPTIONS, numba.int64)
# Passing the arrays to a function costs more than most of these do, so their statements are inlined into the two loops.
_INLINED: Any = {"inline": "always", "nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}
part = numba.njit(**_INLINED)


# --- parts of both loops --------------------------------------------------------------------------------------------


@part
def push(a: Arrays, which: int, i: int, r: int) -> None:
    """Put r at the end of list `which` of instance i."""
    a.link[r] = -1
    if a.head[which, i] < 0:
        a.head[which, i] = r
    else:
        a.link[a.tail[which, i]] = r
    a.tail[which, i] = r


@part
def pop(a: Arrays, which: int, i: int) -> int:
    """Take the first of that list."""
    r = a.head[which, i]
    a.head[which, i] = a.link[r]
    return r


@part
def blocks_for(o: Options, tokens: int) -> int:
    """KV blocks that hold `tokens` tokens."""
    return (tokens + o.block_tokens - 1) // o.block_tokens


@part
def earliest(a: Arrays) -> int:
    """The instance whose step ends first."""
    best = 0
    for i in range(1, len(a.next_end_s)):
        if a.next_end_s[i] < a.next_end_s[best]:
            best = i
    return best


@part
def start_decoding(a: Arrays, o: Options, i: int, r: int) -> None:
    """Start decoding r, whose prompt and first token are done."""
    step, j = a.decode_steps[i], a.running[i]
    a.offset[r] = a.prompt[r] - step
    a.request_of[i, j] = r
    a.finish_at[i, j] = step + a.output[r] - 1
    a.next_finish[i] = min(a.next_finish[i], a.finish_at[i, j])
    a.growth[i, (-a.offset[r]) % o.block_tokens] += 1
    a.kv[i] += a.prompt[r]
    a.running[i] = j + 1


@part
def emit_decodes(a: Arrays, o: Options, i: int, now_s: float) -> int:
    """Emit one token for each running request; return how many of them finish."""
    a.decode_steps[i] += 1
    a.kv[i] += a.running[i]
    step, kept, count = a.decode_steps[i], 0, a.running[i]
    if step < a.next_finish[i]:
        return 0
    a.next_finish[i] = NEVER
    for j in range(count):
        r, finish = a.request_of[i, j], a.finish_at[i, j]
        if finish == step:
            kv = a.offset[r] + step
            a.end_s[r] = now_s
            a.kv[i] -= kv
            a.free[i] += blocks_for(o, kv)
            a.growth[i, (-a.offset[r]) % o.block_tokens] -= 1
        else:
            a.request_of[i, kept] = r
            a.finish_at[i, kept] = finish
            a.next_finish[i] = min(a.next_finish[i], finish)
            kept += 1
    a.running[i] = kept
    return int(count - kept)


@part
def admit(a: Arrays, o: Options, i: int) -> bool:
    """Move the first of the queue to the chunks, if seats and blocks allow."""
    blocks = blocks_for(o, a.prompt[a.head[WAITING, i]])
    if a.running[i] + a.chunks[i] >= o.max_batch or a.free[i] - blocks < o.watermark:
        return False
    a.free[i] -= blocks
    a.chunk_request[i, a.chunks[i]] = pop(a, WAITING, i)
    a.chunks[i] += 1
    return True


@part
def start_step(a: Arrays, o: Options, i: int, now_s: float) -> None:
    """Start the step of all running requests and the noted chunks; without any, i is idle."""
    decodes, tokens, squares = a.running[i], 0, 0.0
    for j in range(a.chunks[i]):
        prefix, chunk = a.done[a.chunk_request[i, j]], a.chunk[i, j]
        tokens += chunk
        squares += float((2 * prefix + chunk) * chunk)
    duration_s = o.base_s + o.per_prefill_token_s * tokens + o.prefill_quadratic_s * squares
    duration_s += o.per_sequence_s * decodes + o.per_context_token_s * (a.kv[i] + decodes)
    a.next_end_s[i] = now_s + duration_s if decodes + tokens > 0 else np.inf


@part
def make_room(a: Arrays, o: Options, i: int) -> bool:
    """Take the blocks that the next tokens of running requests need; False if there are not enough."""
    grow = a.growth[i, a.decode_steps[i] % o.block_tokens]
    if grow > a.free[i]:
        return False
    a.free[i] -= grow
    return True
