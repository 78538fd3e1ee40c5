"""Stores of prefix blocks below GPU memory: their options, and a list of each store's blocks in order of last use.

Names of blocks run from 0 to `store_keys`. Memory of a list, from `at`: older | younger, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from framework.checks import NotNegative, Positive, Whole, check_fields
from framework.compiler.decorators import inner
from framework.engine.memory.state import State
from framework.errors import InputError


@dataclass(frozen=True)
class Tier:
    """A store of one instance, or one that all instances read (`shared`); it evicts the least recently used blocks.

    Its capacity is `capacity_tokens`, or `capacity_bytes` of KV in the format of GPU memory; with neither it is
    unlimited. An instance reads it at `bandwidth_bytes_s` (None: the bandwidth of all its GPUs' PCIe links),
    independent of other readers, after `latency_s`. Raises InputError for a value out of range.
    """

    capacity_tokens: Whole | None = None
    capacity_bytes: NotNegative | None = None
    bandwidth_bytes_s: Positive | None = None
    latency_s: NotNegative = 0.0
    shared: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "engine.prefix_stores: ")
        if self.capacity_tokens is not None and self.capacity_bytes is not None:
            raise InputError("engine.prefix_stores: a tier has capacity_tokens or capacity_bytes; set one to null")

    def blocks(self, block_tokens: int, bytes_per_token: float, most: int) -> int:
        """The number of trace blocks that it holds, out of `most` different ones."""
        tokens: float | None = self.capacity_tokens
        if self.capacity_bytes is not None:
            tokens = self.capacity_bytes / bytes_per_token
        return most if tokens is None else min(most, int(tokens // block_tokens))


@dataclass(frozen=True)
class PrefixStores:
    """Tiers by name, the fastest first; with none, prefixes are kept in GPU memory alone.

    A load delays the step that first prefills its requests. With `layer_wise` that step takes as long as the longer of
    loading and computing, else as long as their sum. Raises InputError for what is no tier.
    """

    tiers: Mapping[str, Tier] = field(default_factory=dict)
    layer_wise: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "engine.prefix_stores.")
        tiers: Any = self.tiers
        if not isinstance(tiers, Mapping) or not all(isinstance(tier, Tier) for tier in tiers.values()):
            raise InputError(f"engine.prefix_stores.tiers must name tiers, got {tiers!r}")


# --- the compiled part: lists of blocks -------------------------------------------------------------------------------


ABSENT = -2  # in place of the next older block if a block is not in the list; -1: there is no older one


@inner
def tier_of(s: State, i: int, key: int) -> int:
    """The fastest tier that holds a block for i; -1 if none does."""
    tiers = s.options.tiers
    for k in range(tiers):
        if s.lists[s.tiers[i * tiers + k].at + key] != ABSENT:
            return k
    return -1


@inner
def keep(s: State, i: int, tier: int, key: int) -> None:
    """Make a block, new or not, the youngest of a store; the oldest leaves if there is no room."""
    store = s.tiers[s.tiers[i * s.options.tiers + tier].home]
    if store.capacity == 0:
        return
    if s.lists[store.at + key] != ABSENT:
        _unlink(s, store.home, key)
    elif store.count < store.capacity:
        store.count += 1
    else:
        oldest = store.old
        _unlink(s, store.home, oldest)
        s.lists[store.at + oldest] = ABSENT
    younger_at = store.at + s.options.tier_keys
    s.lists[store.at + key] = store.young
    s.lists[younger_at + key] = -1
    if store.young >= 0:
        s.lists[younger_at + store.young] = key
    else:
        store.old = key
    store.young = key


@inner
def _unlink(s: State, row: int, key: int) -> None:
    store = s.tiers[row]
    younger_at = store.at + s.options.tier_keys
    older, younger = s.lists[store.at + key], s.lists[younger_at + key]
    if older >= 0:
        s.lists[younger_at + older] = younger
    else:
        store.old = younger
    if younger >= 0:
        s.lists[store.at + younger] = older
    else:
        store.young = older


@inner
def keep_prefix(s: State, i: int, r: int) -> None:
    """Make all blocks that r has so far, after a chunk of r on i, the youngest of each store, the first block last."""
    q = s.requests[r]
    for k in range(s.options.tiers):
        for j in range(q.registered - 1, -1, -1):
            keep(s, i, k, s.names[q.hash_at + j])
