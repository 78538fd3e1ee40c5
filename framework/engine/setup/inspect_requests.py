"""Reads of the compiled engine's memory during a run: which requests are where, and their tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.codes import DECODING, PAUSED
from framework.compiler.decorators import compiled, inner
from framework.engine.memory.attach import attach_at
from framework.engine.memory.state import State


@compiled
def list_decoding(
    addresses: Any, running: NDArray[np.int64], instances: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The requests that decode on these instances, and the position of each one's instance among them."""
    s = attach_at(addresses)
    count = 0
    for i in instances:
        count += s.instances[i].running
    ids, owners = np.empty(count, np.int64), np.empty(count, np.int64)
    at = 0
    for j in range(len(instances)):
        for slot in range(s.instances[instances[j]].running):
            ids[at] = running[instances[j], slot]
            owners[at] = j
            at += 1
    return ids, owners


@compiled
def list_residents(addresses: Any, instances: NDArray[np.int64], found: NDArray[np.int64]) -> int:
    """Write the requests that decode on these instances, or are on their way there, into the rows of `found`: numbers,
    positions, and whether they stay. Returns how many there are.
    """
    s = attach_at(addresses)
    ids, positions, stays = found[0], found[1], found[2]
    position = np.full(s.options.instances, -1)
    for j in range(len(instances)):
        position[instances[j]] = j
    count = 0
    for j in range(len(instances)):
        inst = s.instances[instances[j]]
        for slot in range(inst.running):
            r = s.lists[inst.running_at + slot]
            target = s.requests[r].destination
            if target < 0 or position[target] >= 0:
                ids[count], positions[count], stays[count] = r, j if target < 0 else position[target], target < 0
                count += 1
    decoding, count = count, _add_coming(s, position, instances, ids, count)
    ids[decoding:count].sort()
    for k in range(decoding, count):
        positions[k], stays[k] = position[s.requests[ids[k]].destination], 0
    return count


@inner
def _add_coming(
    s: State, position: NDArray[np.int64], instances: NDArray[np.int64], ids: NDArray[np.int64], count: int
) -> int:
    """Add the requests on their way to these instances to `count` ids, in no order, and return the new number.

    `position`: for each instance of the cluster, its position among these, -1 if it is none of them.
    """
    for i in range(s.options.instances):
        if position[i] >= 0:
            continue
        for slot in range(s.instances[i].running):  # they migrate from an instance that was not asked about
            r = s.lists[s.instances[i].running_at + slot]
            target = s.requests[r].destination
            if target >= 0 and position[target] >= 0:
                ids[count] = r
                count += 1
    for k in range(s.sim.heap_size):  # copies of requests that do not decode; a copy of a prefix has no destination
        r = s.lists[s.options.heap_at + k]
        q = s.requests[r]
        if q.destination >= 0 and q.state != DECODING and q.state != PAUSED and position[q.destination] >= 0:
            ids[count] = r
            count += 1
    for i in instances:  # Requests that wait for room there count.
        r = s.instances[i].incoming_head
        while r >= 0:
            ids[count] = r
            count += 1
            r = s.requests[r].next
    return count


@compiled
def list_waiting(addresses: Any, i: int, found: NDArray[np.int64]) -> tuple[int, int]:
    """Write the requests of i's queue, in no order, and then those of its inbox, in order, into the first row of
    `found`. Returns how many are in the queue, and how many there are.
    """
    s = attach_at(addresses)
    ids, count, k = found[0], 0, 0
    if s.instances[i].waiting_root >= 0:
        ids[0] = s.instances[i].waiting_root
        count = 1
    while k < count:  # the children of each node, which are linked
        r = s.requests[ids[k]].child
        while r >= 0:
            ids[count] = r
            count += 1
            r = s.requests[r].next
        k += 1
    r = s.instances[i].inbox_head
    while r >= 0:
        ids[count] = r
        count += 1
        r = s.requests[r].next
    return k, count


@compiled
def write_generated(addresses: Any, ids: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
    """Write the tokens that requests have emitted."""
    s = attach_at(addresses)
    for k in range(len(ids)):
        r = ids[k]
        if r < 0 or r >= s.options.requests:
            raise IndexError("no request has that number")
        q = s.requests[r]
        tokens[k] = q.emitted
        if q.state == DECODING:
            tokens[k] = q.offset + s.instances[q.instance].decode_steps - q.input_tokens + 1


@compiled
def write_kv(addresses: Any, ids: NDArray[np.int64], tokens: NDArray[np.int64]) -> int:
    """Write the KV tokens of decoding requests. Returns the place of the first that does not decode, -1: all do."""
    s = attach_at(addresses)
    for k in range(len(ids)):
        if ids[k] < 0 or ids[k] >= s.options.requests:
            raise IndexError("no request has that number")
        q = s.requests[ids[k]]
        if q.state == DECODING:
            tokens[k] = q.offset + s.instances[q.instance].decode_steps
        elif q.state == PAUSED:
            tokens[k] = q.kv
        else:
            return k
    return -1


@compiled
def write_oldest_open_steps(addresses: Any, running: NDArray[np.int64], oldest: NDArray[np.int64]) -> None:
    """Write for each instance, into `oldest` (M,), the first decode step whose log a request that decodes there still
    needs.
    """
    s = attach_at(addresses)
    for i in range(s.options.instances):
        oldest[i] = s.instances[i].decode_steps - s.step[i].done
        for slot in range(s.instances[i].running):
            oldest[i] = min(oldest[i], s.requests[running[i, slot]].join_step)
