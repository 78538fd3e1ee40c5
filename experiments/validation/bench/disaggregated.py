"""The bare loop over prefill instances that hand over to decode instances."""

from __future__ import annotations

import numpy as np

from experiments.validation.bench.parts import (
    FLYING,
    INCOMING,
    JOINED,
    NO_ROOM,
    REPLAY,
    WAITING,
    Arrays,
    Options,
    admit,
    blocks_for,
    earliest,
    emit_decodes,
    make_room,
    part,
    pop,
    push,
    start_decoding,
    start_step,
)
from framework.compiler.decorators import entry


@part
def _next_transfer(a: Arrays, prefills: int) -> int:
    """The decode instance whose transfer ends first; transfers to one instance end in the order of their starts."""
    best, earliest_s = -1, np.inf
    for d in range(prefills, len(a.next_end_s)):
        r = a.head[FLYING, d]
        if r >= 0 and a.ready_s[r] < earliest_s:
            best, earliest_s = d, a.ready_s[r]
    return best


@part
def _begin_prefill(a: Arrays, o: Options, i: int, now_s: float) -> None:
    tokens = 0
    while a.head[WAITING, i] >= 0:
        prompt = a.prompt[a.head[WAITING, i]]
        if (tokens > 0 and tokens + prompt > o.token_budget) or not admit(a, o, i):
            break
        a.chunk[i, a.chunks[i] - 1] = prompt
        tokens += prompt
    start_step(a, o, i, now_s)


@part
def _begin_decode(a: Arrays, o: Options, d: int, now_s: float) -> bool:
    while a.head[JOINED, d] >= 0:
        a.reserved[d] -= 1
        start_decoding(a, o, d, pop(a, JOINED, d))
    if not make_room(a, o, d):
        return False
    start_step(a, o, d, now_s)
    return True


@part
def _start_transfers(a: Arrays, o: Options, d: int, now_s: float) -> None:
    """Reserve room and claim both ends of the link, first come first served."""
    while a.head[INCOMING, d] >= 0:
        r = a.head[INCOMING, d]
        blocks = blocks_for(o, a.prompt[r])
        if a.running[d] + a.reserved[d] >= o.max_batch or a.free[d] - blocks < o.watermark:
            break
        pop(a, INCOMING, d)
        a.reserved[d] += 1
        a.free[d] -= blocks
        source = a.home[r]
        start_s = max(now_s, max(a.link_free_s[source], a.link_free_s[d]))
        end_s = start_s + a.prompt[r] * o.kv_bytes_per_token / o.bandwidth_bytes_s
        a.link_free_s[source] = end_s
        a.link_free_s[d] = end_s
        a.ready_s[r] = end_s + o.latency_s
        push(a, FLYING, d, r)


@part
def _receive(a: Arrays, o: Options, d: int) -> int:
    """End the first transfer to d: d may decode it, its source has room again; return the source."""
    r = pop(a, FLYING, d)
    a.free[a.home[r]] += blocks_for(o, a.prompt[r])
    push(a, JOINED, d, r)
    return a.home[r]


@part
def _end_prefills(a: Arrays, o: Options, i: int, prefills: int, placed: int, now_s: float) -> int:
    """Hand the prompts of i's step over, to decode instances in turn from the `placed`th on; return how many have
    ended.
    """
    ended, instances = 0, len(a.next_end_s)
    for j in range(a.chunks[i]):
        r = a.chunk_request[i, j]
        if a.output[r] == 1:
            a.end_s[r] = now_s
            a.free[i] += blocks_for(o, a.prompt[r])
            ended += 1
        else:
            a.home[r] = i
            d = prefills + (placed + j - ended) % (instances - prefills)
            push(a, INCOMING, d, r)
            _start_transfers(a, o, d, now_s)
    return ended


@part
def _wake(a: Arrays, i: int) -> None:
    if a.next_end_s[i] == np.inf:
        a.begins[i] = 1


@part
def _begin(a: Arrays, o: Options, i: int, prefills: int, now_s: float) -> bool:
    a.begins[i] = 0
    if i >= prefills:
        return _begin_decode(a, o, i, now_s)
    _begin_prefill(a, o, i, now_s)
    return True


@entry(REPLAY)
def replay_disaggregated(a: Arrays, o: Options, prefills: int) -> int:
    """Replay until every request has ended; the first `prefills` instances prefill, the others decode. Returns steps,
    or NO_ROOM.
    """
    count, instances = len(a.arrival_s), len(a.next_end_s)
    arrived, ended, steps, placed = 0, 0, 0, 0
    while ended < count:
        now_s = a.next_end_s[earliest(a)]
        d = _next_transfer(a, prefills)
        if d >= 0:
            now_s = min(now_s, a.ready_s[a.head[FLYING, d]])
        if arrived < count:
            now_s = min(now_s, a.arrival_s[arrived])
        for i in range(instances):  # all events of a time happen before a step begins at that time
            if a.next_end_s[i] != now_s:
                continue
            steps += 1
            a.next_end_s[i] = np.inf
            a.begins[i] = 1
            if i < prefills:
                done = _end_prefills(a, o, i, prefills, placed, now_s)
                placed += a.chunks[i] - done
                ended += done
                a.chunks[i] = 0
            else:
                finished = emit_decodes(a, o, i, now_s)
                ended += finished
                if finished > 0:
                    _start_transfers(a, o, i, now_s)
        while d >= 0 and a.ready_s[a.head[FLYING, d]] == now_s:
            _wake(a, _receive(a, o, d))
            _wake(a, d)
            d = _next_transfer(a, prefills)
        while arrived < count and a.arrival_s[arrived] == now_s:
            i = arrived % prefills
            push(a, WAITING, i, arrived)
            _wake(a, i)
            arrived += 1
        for i in range(instances):
            if a.begins[i] == 1 and not _begin(a, o, i, prefills, now_s):
                return NO_ROOM
    return steps
