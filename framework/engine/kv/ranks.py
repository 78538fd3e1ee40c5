"""Ranks of cached blocks, by which a policy orders eviction: each rank but 0 has a list of its own in each instance.

An instance has RANKS pairs of entries from `ranks_at + 2 * RANKS * i`: the oldest and the youngest node of each rank,
the lowest rank first; those of rank 0 are not used. `older` and `younger` link nodes as in the list of rank 0.
"""

from __future__ import annotations

from framework.codes import LOWEST_RANK, RANKS
from framework.compiler.decorators import inner
from framework.engine.memory.state import State


@inner
def rank_of(s: State, i: int, node: int) -> int:
    """The rank of a cached block."""
    return s.lists[s.instances[i].cache_at + s.options.cache_slots + 4 * s.options.cache_nodes + node]


@inner
def set_rank(s: State, i: int, node: int, rank: int) -> None:
    """Set the rank of a block that is in no list."""
    inst = s.instances[i]
    inst.ranked_nodes += int(rank != 0) - int(rank_of(s, i, node) != 0)
    s.lists[inst.cache_at + s.options.cache_slots + 4 * s.options.cache_nodes + node] = rank


@inner
def _ends_at(s: State, i: int, rank: int) -> int:
    return s.options.ranks_at + 2 * (RANKS * i + rank - LOWEST_RANK)


@inner
def lowest(s: State, i: int) -> int:
    """The oldest block of the lowest rank that has any; -1: there is none."""
    for rank in range(LOWEST_RANK, LOWEST_RANK + RANKS):
        node = s.lists[_ends_at(s, i, rank)] if rank != 0 else s.instances[i].cache_old
        if node >= 0:
            return int(node)
    return -1


@inner
def link_ranked(s: State, i: int, node: int) -> None:
    """Make a block the youngest of its rank, which is not 0."""
    at, ends = _older_at(s, i), _ends_at(s, i, rank_of(s, i, node))
    young = s.lists[ends + 1]
    s.lists[at + node] = young
    s.lists[at + s.options.cache_nodes + node] = -1
    if young >= 0:
        s.lists[at + s.options.cache_nodes + young] = node
    else:
        s.lists[ends] = node
    s.lists[ends + 1] = node


@inner
def unlink_ranked(s: State, i: int, node: int) -> None:
    """Take a block out of the list of its rank, which is not 0."""
    at, ends = _older_at(s, i), _ends_at(s, i, rank_of(s, i, node))
    older, younger = s.lists[at + node], s.lists[at + s.options.cache_nodes + node]
    if older >= 0:
        s.lists[at + s.options.cache_nodes + older] = younger
    else:
        s.lists[ends] = younger
    if younger >= 0:
        s.lists[at + younger] = older
    else:
        s.lists[ends + 1] = older


@inner
def _older_at(s: State, i: int) -> int:
    return s.instances[i].cache_at + s.options.cache_slots + 2 * s.options.cache_nodes
