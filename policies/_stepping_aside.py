"""Which requests step aside on an instance for waiting ones, and which come back: for policies that preempt by rank."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from framework.policy.view import Cluster, Floats

Integers = NDArray[np.int64]


def blocks_of(cluster: Cluster, requests: Integers) -> Integers:
    """KV blocks for each request's prompt and present tokens, and one more."""
    tokens = cluster.requests.input_tokens[requests] + cluster.requests.generated(requests)
    return np.asarray(tokens // cluster.block_tokens + 1, np.int64)


def stepping_aside(
    cluster: Cluster, instance: int, waiting: Integers, running: Integers, costs: tuple[Floats, Floats]
) -> list[int]:
    """The requests of `running`, in their order, that make room for those of `waiting`, in order.

    A request preempts those that cost more, by `costs` of waiting and running ones. A request and those behind it keep
    waiting if preempting all these would not make room for it. Blocks that admissions may leave free count as a
    hundredth of all.
    """
    there, cost, cost_of_running = cluster.instances, *costs
    free = int(there.free_blocks[instance] + there.evictable_blocks[instance] - there.total_blocks[instance] // 100)
    seats = int(there.max_batch[instance] - there.running[instance] - there.prefilling[instance])
    needed, freed = blocks_of(cluster, waiting).tolist(), blocks_of(cluster, running).tolist()
    leaving = 0
    for one in range(len(waiting)):
        going = leaving
        while going < len(running) and (free < needed[one] or seats < 1) and cost[one] < cost_of_running[going]:
            free += freed[going]
            seats += 1
            going += 1
        if free < needed[one] or seats < 1:
            break
        leaving = going
        free -= needed[one]
        seats -= 1
    return [int(r) for r in running[:leaving]]


def coming_back(
    cluster: Cluster, instance: int, waiting: Integers, aside: Collection[int], leaving: Sequence[int]
) -> list[int]:
    """The suspended requests `aside` of `waiting`, in order, that have room and a seat now, given those before them.

    `leaving`: requests that leave. Where nothing else is, the first of all comes back.
    """
    there = cluster.instances
    free = int(there.free_blocks[instance] + there.evictable_blocks[instance])
    free += int(blocks_of(cluster, np.array(leaving, np.int64)).sum())
    seats = int(there.max_batch[instance] - there.running[instance] - there.prefilling[instance]) + len(leaving)
    back = []
    for r, needed in zip(waiting.tolist(), blocks_of(cluster, waiting).tolist(), strict=True):
        free -= needed
        seats -= 1
        if free < 0 or seats < 0:
            break
        if r in aside:
            back.append(r)
    alone = there.running[instance] + there.prefilling[instance] + there.queued[instance] == 0
    return back or (waiting[:1].tolist() if alone else [])
