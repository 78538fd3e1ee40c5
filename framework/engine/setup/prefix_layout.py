"""Lays out what is known of prefixes before the first event: each instance's cache and the tiers below it.

`ListSpace` hands out one array of integers that holds all lists of variable size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.codes import RANKS
from framework.engine.kv.held_blocks import LENGTHS
from framework.engine.kv.prefix_tiers import ABSENT, PrefixStores
from framework.engine.memory.state import TIER
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.workload import Workload, block_names, filled_blocks, small


class ListSpace:
    """Hands out consecutive stretches of one integer array."""

    def __init__(self) -> None:
        self.size = 0

    def reserve(self, count: int) -> int:
        """The offset of the next `count` entries."""
        at = self.size
        self.size += count
        return at


# --- prefixes ---------------------------------------------------------------------------------------------------------


Array = NDArray[np.void]
_MOST_ROOM = np.iinfo(np.int32).max
_SPARSEST = 8  # a table of ids may have at most this many entries for each id


def lay_out_cache(options: Array, instances: Array, space: ListSpace, workload: Workload, engine: EngineConfig) -> None:
    """Lay out each instance's cache. Raises InputError if a trace block is no multiple of an engine block."""
    if workload.has_prefixes and workload.hash_block_tokens % engine.block_tokens:
        raise InputError(
            f"prefix cache: trace blocks of {workload.hash_block_tokens} tokens are no multiple of "
            f"engine.block_tokens={engine.block_tokens}; choose a divisor, or engine.prefix_cache=false"
        )
    early = engine.shares_blocks
    blocks = 1 if early else workload.hash_block_tokens // engine.block_tokens
    options["shares_early"] = early
    nodes = int(instances["total_blocks"].max()) // blocks + 1
    slots = 1 << (2 * nodes - 1).bit_length()
    options["hash_blocks"], options["cache_nodes"], options["cache_slots"] = blocks, nodes, slots
    options["held_free_at"] = space.reserve(LENGTHS + 1)
    options["held_at"] = space.reserve(_room_of_lists(_sharable(options, workload)))
    options["notices_at"] = space.reserve(3 * len(workload))
    options["pin_ends_at"] = space.reserve(len(workload))
    options["awaited_at"] = space.reserve(len(workload))
    options["ranks_at"] = space.reserve(2 * RANKS * len(instances))
    stretch = slots + 5 * nodes
    instances["cache_at"] = space.reserve(stretch * len(instances)) + stretch * np.arange(len(instances))


def _room_of_lists(blocks: NDArray[np.int64]) -> int:
    """Integers that hold the lists of all requests at once, if ever needed; unwritten pages take no memory."""
    room = int(np.exp2(np.ceil(np.log2(blocks[blocks > 0]))).sum())
    if room + len(blocks) > _MOST_ROOM:  # a prompt may have one more block, partly filled
        raise InputError(
            f"prefix cache: the prompts have {int(blocks.sum()):,} blocks, more than the engine can number; take "
            "larger blocks, fewer requests, or engine.prefix_cache=false"
        )
    return room


def lay_out_tiers(
    options: Array, instances: Array, space: ListSpace, workload: Workload, stores: PrefixStores
) -> NDArray[np.void]:
    """One TIER row for each instance and tier, with offsets of lists; tiers hold the blocks that the cache shares."""
    tiers, count = list(stores.tiers.values()), len(instances)
    rows = np.zeros(count * len(tiers), TIER)
    if not tiers:
        return rows
    block_tokens = int(options["hash_blocks"][0] * options["block_tokens"][0])
    options["writes_back"] = tiers[0].write == "back"
    options["counts_uses"] = any(tier.write_after > 1 for tier in tiers)
    options["keeps_outputs"] = any(tier.outputs == "written" for tier in tiers)
    options["counted_at"] = space.reserve(len(workload) if options["counts_uses"][0] else 0)
    names = named(_names(options, workload)[0])[1]
    options["tiers"], options["tier_keys"] = len(tiers), names
    for k, tier in enumerate(tiers):
        own = rows[k :: len(tiers)]
        lists = 1 if tier.shared else count
        number = np.arange(count) if lists == count else np.zeros(count, np.int64)
        own["home"] = number * len(tiers) + k
        own["at"] = space.reserve(2 * names * lists) + 2 * names * number
        own["chunk"] = tier.chunk_of(block_tokens)
        own["capacity"] = tier.blocks(
            block_tokens * tier.chunk_of(block_tokens), float(options["kv_bytes_per_token"][0]), names
        )
        own["write_after"], own["on_eviction"] = tier.write_after, tier.write == "back"
        own["takes_outputs"] = tier.outputs == "written"
        own["uses_at"] = space.reserve(names * lists if tier.write_after > 1 else 0) + names * number
        own["bandwidth_bytes_s"], own["over_pcie"] = instances["host_bytes_s"], tier.bandwidth_bytes_s is None
        if tier.bandwidth_bytes_s is not None:
            own["bandwidth_bytes_s"] = tier.bandwidth_bytes_s
        own["latency_s"] = tier.latency_s
        own["old"] = own["young"] = -1
        rows[k :: len(tiers)] = own
    return rows


def named(ids: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], int]:
    """The rank of each id, from 0, among the different ids, and the number of different ids.

    Small ids, as most traces have, are marked in a table instead of being sorted.
    """
    if len(ids) == 0:
        return np.zeros(0, np.int64), 0
    if ids.min() >= 0 and ids.max() < _SPARSEST * len(ids):
        there = np.zeros(int(ids.max()) + 1, np.int64)
        there[ids] = 1
        ranks = np.cumsum(there)
        return ranks[ids] - 1, int(ranks[-1])
    different, inverse = np.unique(ids, return_inverse=True)
    return inverse, len(different)


def fill_cache(
    options: Array, instances: Array, requests: Array, data: NDArray[np.int64], workload: Workload
) -> NDArray[np.int32]:
    """Make empty caches, and return the names of all requests' blocks: those of the trace (not copied; from 0 if there
    are stores), or those of engine blocks.
    """
    slots, nodes = int(options["cache_slots"][0]), int(options["cache_nodes"][0])
    names, begins = _names(options, workload)
    if options["tiers"][0] > 0:
        names = named(names)[0]
    for at in instances["cache_at"]:
        data[at : at + slots] = -1
        links = data[at + slots + 3 * nodes :][:nodes]
        links[:] = np.arange(1, nodes + 1)
        links[-1] = -1
    instances["cache_free"] = 0
    requests["hash_at"] = begins
    requests["hash_count"] = _sharable(options, workload)
    return small(names)


def _sharable(options: Array, workload: Workload) -> NDArray[np.int64]:
    """The number of blocks of each request that can be shared, (N,)."""
    if options["shares_early"][0]:
        return filled_blocks(workload, int(options["block_tokens"][0]))
    return np.minimum(workload.hash_counts, workload.input_tokens // workload.hash_block_tokens)


def _names(options: Array, workload: Workload) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """The names of all requests' blocks, of the engine or of the trace, and the offset of each request's names."""
    if options["shares_early"][0]:
        names, offsets = block_names(workload, int(options["block_tokens"][0]))
        return names, offsets[:-1]
    assert workload.hash_spans is not None
    return workload.hash_ids, workload.hash_spans[:, 0]


def fill_tiers(options: Array, stores: Array, data: NDArray[np.int64]) -> None:
    """Make empty stores."""
    for at in np.unique(stores["at"]):
        data[at : at + int(options["tier_keys"][0])] = ABSENT
