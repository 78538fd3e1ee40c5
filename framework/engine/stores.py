"""Stores of prefix blocks below GPU memory: each a list of names of blocks, from the least recently used on.

Names run from 0 to `store_keys`. Memory of a list, from `at`: older | younger, by name.
"""

from __future__ import annotations

from framework.engine.state import State
from framework.jit import kernel

ABSENT = -2  # in place of the older neighbour; -1: there is none


@kernel
def tier_of(s: State, i: int, key: int) -> int:
    """The fastest tier in which i finds a block, -1 if none has it."""
    tiers = s.sim[0].tiers
    for k in range(tiers):
        if s.arena[s.stores[i * tiers + k].at + key] != ABSENT:
            return k
    return -1


@kernel
def keep(s: State, i: int, tier: int, key: int) -> None:
    """Enter a block into a store as its youngest, or make it that; the oldest leaves where there is no room."""
    store = s.stores[s.stores[i * s.sim[0].tiers + tier].home]
    if store.capacity == 0:
        return
    if s.arena[store.at + key] != ABSENT:
        _unlink(s, store.home, key)
    elif store.count < store.capacity:
        store.count += 1
    else:
        oldest = store.old
        _unlink(s, store.home, oldest)
        s.arena[store.at + oldest] = ABSENT
    younger_at = store.at + s.sim[0].store_keys
    s.arena[store.at + key] = store.young
    s.arena[younger_at + key] = -1
    if store.young >= 0:
        s.arena[younger_at + store.young] = key
    else:
        store.old = key
    store.young = key


@kernel
def _unlink(s: State, row: int, key: int) -> None:
    store = s.stores[row]
    younger_at = store.at + s.sim[0].store_keys
    older, younger = s.arena[store.at + key], s.arena[younger_at + key]
    if older >= 0:
        s.arena[younger_at + older] = younger
    else:
        store.old = younger
    if younger >= 0:
        s.arena[store.at + younger] = older
    else:
        store.young = older


@kernel
def keep_prefix(s: State, i: int, r: int) -> None:
    """A chunk of r has ended on i: all its blocks so far are the youngest of each store, the first one most of all."""
    q, sim = s.requests[r], s.sim[0]
    for k in range(sim.tiers):
        for j in range(q.registered - 1, -1, -1):
            keep(s, i, k, s.arena[sim.hash_at + q.hash_at + j])
