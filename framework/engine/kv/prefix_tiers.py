"""Stores of prefix blocks below GPU memory: their options, and a list of each store's blocks in order of last use.

Names of blocks run from 0 to `store_keys`. Memory of a list, from `at`: older | younger, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from framework.checks import Count, NotNegative, Positive, Whole, check_fields
from framework.compiler.decorators import inner, unlikely
from framework.engine.memory.state import State
from framework.errors import InputError


@dataclass(frozen=True)
class Tier:
    """A store of one instance, or one that all instances read (`shared`); it evicts the least recently used blocks.

    Its capacity is `capacity_tokens`, or `capacity_bytes` of KV in the format of GPU memory; with neither it is
    unlimited. An instance reads it at `bandwidth_bytes_s` (None: the bandwidth of all its GPUs' PCIe links),
    independent of other readers, after `latency_s`. Raises InputError for a value out of range.

    `write`: `through`, blocks are written when they have been computed or loaded; `back`, when the tier above evicts
    them (GPU memory is above the first). A block is written through once `write_after` requests have used it. It keeps
    and finds whole chunks of `chunk_tokens` (null: single blocks of the cache). `outputs`: whether blocks that decode
    steps fill are written through at the end of their request, too.
    """

    capacity_tokens: Whole | None = None
    capacity_bytes: NotNegative | None = None
    bandwidth_bytes_s: Positive | None = None
    latency_s: NotNegative = 0.0
    shared: bool = False
    write: Literal["through", "back"] = "through"
    write_after: Count = 1
    chunk_tokens: Count | None = None
    outputs: Literal["left", "written"] = "left"

    def __post_init__(self) -> None:
        check_fields(self, "engine.prefix_stores: ")
        if self.write == "back" and (self.shared or self.write_after > 1):
            raise InputError(
                "engine.prefix_stores: a tier with write=back is an instance's own, and takes what is evicted; set"
                " shared=false and write_after=1"
            )
        if self.capacity_tokens is not None and self.capacity_bytes is not None:
            raise InputError("engine.prefix_stores: a tier has capacity_tokens or capacity_bytes; set one to null")

    def chunk_of(self, block_tokens: int) -> int:
        """Blocks in a chunk. Raises InputError if that is no whole number."""
        if self.chunk_tokens is None:
            return 1
        if self.chunk_tokens % block_tokens:
            raise InputError(
                f"engine.prefix_stores: chunk_tokens={self.chunk_tokens} is no multiple of the {block_tokens} tokens of"
                " a block of the prefix cache; choose a multiple, or engine.prefix_unit=engine"
            )
        return self.chunk_tokens // block_tokens

    def blocks(self, block_tokens: int, bytes_per_token: float, most: int) -> int:
        """The number of pieces of `block_tokens` tokens that it holds, out of `most` different ones."""
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
        above: Tier | None = None
        for tier in tiers.values():
            if tier.write == "back" and (tier.chunk_tokens or (above is not None and above.chunk_tokens)):
                raise InputError(
                    "engine.prefix_stores: what is evicted are single blocks; a tier with write=back and the one above"
                    " it need chunk_tokens=null"
                )
            above = tier

    def engine_options(self) -> Mapping[str, float]:
        """Values of the fields of `OPTIONS` that the compiled part reads, without lists."""
        return {"loads_layer_wise": self.layer_wise}


# --- the compiled part: lists of blocks -------------------------------------------------------------------------------


ABSENT = -2  # in place of the next older block if a block is not in the list; -1: there is no older one


@inner
def name_in(s: State, i: int, tier: int, r: int, j: int) -> int:
    """The name by which a tier of i knows the chunk with block j of r; -1 if r does not fill that chunk."""
    q, chunk = s.requests[r], s.tiers[i * s.options.tiers + tier].chunk
    last = j
    if unlikely(chunk > 1):
        last = j // chunk * chunk + chunk - 1
    return int(s.names[q.hash_at + last]) if last < q.hash_count else -1


@inner
def tier_of(s: State, i: int, r: int, j: int) -> int:
    """The fastest tier that holds block j of r for i; -1 if none does."""
    tiers = s.options.tiers
    for k in range(tiers):
        name = name_in(s, i, k, r, j)
        if name >= 0 and s.lists[s.tiers[i * tiers + k].at + name] != ABSENT:
            return k
    return -1


@inner
def keep(s: State, i: int, tier: int, key: int) -> None:
    """Make a block, new or not, the youngest of a store; the oldest leaves if there is no room.

    What leaves goes to the store below if that takes what is evicted.
    """
    tiers = s.options.tiers
    oldest = _put(s, i, tier, key)
    tier += 1
    while oldest >= 0 and tier < tiers and unlikely(s.tiers[i * tiers + tier].on_eviction):
        oldest = _put(s, i, tier, oldest)
        tier += 1


@inner
def _put(s: State, i: int, tier: int, key: int) -> int:
    """Make a block the youngest of a store; return the one that leaves, -1: none."""
    store = s.tiers[s.tiers[i * s.options.tiers + tier].home]
    if store.capacity == 0:
        return key
    oldest = -1
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
    return int(oldest)


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
    """Write through, after a chunk of r on i, all that r has so far, to each store."""
    for k in range(s.options.tiers):
        _write_through(s, i, k, r)
    if unlikely(s.options.counts_uses):
        s.lists[s.options.counted_at + r] = s.requests[r].registered


@inner
def keep_outputs(s: State, i: int, r: int) -> None:
    """Write through all that r, which has ended on i, has there, to the stores that take outputs."""
    for k in range(s.options.tiers):
        if s.tiers[i * s.options.tiers + k].takes_outputs:
            _write_through(s, i, k, r)


@inner
def _write_through(s: State, i: int, k: int, r: int) -> None:
    """Write what r has so far to a tier of i, the first block last, and count its use there."""
    q, tier = s.requests[r], s.tiers[i * s.options.tiers + k]
    if unlikely(tier.on_eviction):
        return
    if unlikely(tier.write_after > 1):
        for j in range(s.lists[s.options.counted_at + r], q.registered):
            s.lists[tier.uses_at + s.names[q.hash_at + j]] += 1
    for j in range(q.registered - 1, -1, -1):
        key = s.names[q.hash_at + j]
        if unlikely(tier.chunk > 1) and (j + 1) % tier.chunk != 0:
            continue
        if unlikely(tier.write_after > 1) and s.lists[tier.uses_at + key] < tier.write_after:
            continue
        keep(s, i, k, key)


@inner
def begin_count(s: State, r: int) -> None:
    """Let the blocks of r, which comes to an instance, count as used once more."""
    if unlikely(s.options.counts_uses):
        s.lists[s.options.counted_at + r] = 0
