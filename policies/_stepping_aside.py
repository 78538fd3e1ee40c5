"""Which requests step aside on an instance for waiting ones, and which come back: for policies that preempt by rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.policy.view import Cluster, Floats

Integers = NDArray[np.int64]


def blocks_of(cluster: Cluster, requests: Integers) -> Integers:
    """KV blocks for each request's prompt and present tokens, and one more."""
    blocks = cluster.requests.generated(requests)
    _tokens_to_blocks(requests, cluster.requests.input_tokens, cluster.block_tokens, blocks)
    return blocks


def stepping_aside(
    cluster: Cluster, instance: int, waiting: Integers, running: Integers, costs: tuple[Floats, Floats]
) -> list[int]:
    """The requests of `running`, in their order, that make room for those of `waiting`, in order.

    A request preempts those that cost more, by `costs` of waiting and running ones. A request and those behind it keep
    waiting if preempting all these would not make room for it. Blocks that admissions may leave free count as a
    hundredth of all.
    """
    if len(waiting) == 0 or len(running) == 0:
        return []
    there = cluster.instances
    free = int(there.free_blocks[instance] + there.evictable_blocks[instance] - there.total_blocks[instance] // 100)
    seats = int(there.max_batch[instance] - there.running[instance] - there.prefilling[instance])
    blocks = blocks_of(cluster, waiting), blocks_of(cluster, running)
    leaving: list[int] = running[: _leaving(*blocks, *costs, free, seats)].tolist()
    return leaving


def coming_back(
    cluster: Cluster, instance: int, waiting: Integers, aside: NDArray[np.bool_], leaving: Sequence[int]
) -> list[int]:
    """The suspended requests of `waiting`, in order, that have room and a seat now, given those before them.

    `aside`: which are suspended, shape of `waiting`. `leaving`: requests that leave. Where nothing else is, the first
    of all comes back.
    """
    if not aside.any():
        return []
    there = cluster.instances
    free = int(there.free_blocks[instance] + there.evictable_blocks[instance])
    free += int(blocks_of(cluster, np.array(leaving, np.int64)).sum())
    seats = int(there.max_batch[instance] - there.running[instance] - there.prefilling[instance]) + len(leaving)
    count = _with_room(blocks_of(cluster, waiting), free, seats)
    back: list[int] = waiting[:count][aside[:count]].tolist()
    alone = there.running[instance] + there.prefilling[instance] + there.queued[instance] == 0
    return back or (waiting[:1].tolist() if alone else [])


@compiled
def _tokens_to_blocks(ids: Integers, input_tokens: Integers, block_tokens: int, tokens: Integers) -> None:
    """Write the blocks of requests that have emitted `tokens` in place of these."""
    for k in range(len(ids)):
        tokens[k] = (input_tokens[ids[k]] + tokens[k]) // block_tokens + 1


@compiled
def _leaving(needed: Integers, freed: Integers, cost: Floats, cost_of_running: Floats, free: int, seats: int) -> int:
    """How many running requests leave, which free these blocks, for waiting ones that need those blocks."""
    leaving = 0
    for one in range(len(needed)):
        going = leaving
        while going < len(freed) and (free < needed[one] or seats < 1) and cost[one] < cost_of_running[going]:
            free += freed[going]
            seats += 1
            going += 1
        if free < needed[one] or seats < 1:
            break
        leaving = going
        free -= needed[one]
        seats -= 1
    return leaving


@compiled
def _with_room(needed: Integers, free: int, seats: int) -> int:
    """How many requests, from the first on, have room and a seat."""
    for one in range(len(needed)):
        free -= needed[one]
        seats -= 1
        if free < 0 or seats < 0:
            return one
    return len(needed)
