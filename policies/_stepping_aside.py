"""Which requests step aside on an instance for waiting ones: shared by policies that preempt by rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from framework.policy.view import Cluster

Beats = Callable[[int, int], bool]


def blocks_of(cluster: Cluster, request: int) -> int:
    """KV blocks for a request's prompt and present tokens, and one more."""
    tokens = int(cluster.requests.input_tokens[request]) + int(cluster.requests.generated(np.array([request]))[0])
    return tokens // cluster.block_tokens + 1


def stepping_aside(
    cluster: Cluster, instance: int, waiting: Sequence[int], running: Sequence[int], beats: Beats
) -> list[int]:
    """The requests of `running`, in their order, that make room for those of `waiting`, in order.

    A request and those behind it keep waiting if preempting all that it `beats` would not make room for it. Blocks that
    admissions may leave free count as a hundredth of all.
    """
    there = cluster.instances
    free = int(there.free_blocks[instance] + there.evictable_blocks[instance] - there.total_blocks[instance] // 100)
    seats = int(there.max_batch[instance] - there.running[instance] - there.prefilling[instance])
    leaving: list[int] = []
    for one in waiting:
        needed, going = blocks_of(cluster, one), list[int]()
        for other in running[len(leaving) :]:
            if (free >= needed and seats > 0) or not beats(one, other):
                break
            going.append(other)
            free += blocks_of(cluster, other)
            seats += 1
        if free < needed or seats < 1:
            break
        leaving += going
        free -= needed
        seats -= 1
    return leaving
