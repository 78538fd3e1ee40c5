"""The bare loop over mixed instances: decodes first, chunks fill the budget."""

from __future__ import annotations

import numpy as np

from experiments.validation.bench.parts import (
    LEAST_QUEUED,
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
    push,
    start_decoding,
    start_step,
)
from framework.compiler.decorators import entry


@part
def _begin_mixed(a: Arrays, o: Options, i: int, now_s: float) -> bool:
    if not make_room(a, o, i):
        return False
    left = o.token_budget - a.running[i]
    for j in range(a.chunks[i]):
        a.chunk[i, j] = max(0, min(a.prompt[a.chunk_request[i, j]] - a.done[a.chunk_request[i, j]], left))
        left -= a.chunk[i, j]
    while left > 0 and a.head[WAITING, i] >= 0 and admit(a, o, i):
        j = a.chunks[i] - 1
        a.chunk[i, j] = min(a.prompt[a.chunk_request[i, j]], left)
        left -= a.chunk[i, j]
    start_step(a, o, i, now_s)
    return True


@part
def _end_mixed(a: Arrays, o: Options, i: int, now_s: float) -> int:
    ended = 0
    if a.running[i] > 0:
        ended = emit_decodes(a, o, i, now_s)
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
            a.free[i] += blocks_for(o, a.prompt[r])
            ended += 1
        else:
            start_decoding(a, o, i, r)
    a.chunks[i] = kept
    return ended


@entry(REPLAY)
def replay_mixed(a: Arrays, o: Options, routing: int) -> int:
    """Chunked prefill, decodes first, until every request has ended; the steps, or NO_ROOM."""
    count, instances = len(a.arrival_s), len(a.next_end_s)
    arrived, ended, steps = 0, 0, 0
    while ended < count:
        now_s = a.next_end_s[earliest(a)]
        if arrived < count:
            now_s = min(now_s, a.arrival_s[arrived])
        for i in range(instances):  # all events of a time happen before a step begins at that time
            if a.next_end_s[i] == now_s:
                steps += 1
                ended += _end_mixed(a, o, i, now_s)
                a.next_end_s[i] = np.inf
                a.begins[i] = 1
        while arrived < count and a.arrival_s[arrived] == now_s:
            i = arrived % instances
            if routing == LEAST_QUEUED:
                i = int(np.argmin(a.queued_tokens))
            a.queued_tokens[i] += a.prompt[arrived]
            push(a, WAITING, i, arrived)
            if a.next_end_s[i] == np.inf:
                a.begins[i] = 1
            arrived += 1
        for i in range(instances):
            if a.begins[i] == 1:
                a.begins[i] = 0
                if not _begin_mixed(a, o, i, now_s):
                    return NO_ROOM
    return steps
