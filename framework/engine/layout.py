"""Lays out what is known of prefixes before the first event: the cache of each instance and the stores below it.

One integer array that holds all lists of variable size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from framework.engine.config import EngineConfig
from framework.engine.mechanisms.prefix_tiers import ABSENT, PrefixStores
from framework.engine.state import STORE
from framework.errors import InputError
from framework.workload import Workload


class Arena:
    """Hands out consecutive stretches of one integer array."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, count: int) -> int:
        """Where the next `count` entries begin."""
        at = self.size
        self.size += count
        return at


# --- prefixes ---------------------------------------------------------------------------------------------------------


Array = NDArray[np.void]


def lay_out_cache(sim: Array, instances: Array, arena: Arena, workload: Workload, engine: EngineConfig) -> None:
    """Where each instance's cache lies. InputError where a trace block is no multiple of an engine block."""
    if workload.hash_block_tokens % engine.block_tokens:
        raise InputError(
            f"prefix cache: trace blocks of {workload.hash_block_tokens} tokens are no multiple of "
            f"engine.block_tokens={engine.block_tokens}; choose a divisor"
        )
    blocks = workload.hash_block_tokens // engine.block_tokens
    nodes = int(instances["total_blocks"].max()) // blocks + 1
    slots = 1 << (2 * nodes - 1).bit_length()
    sim["hash_blocks"], sim["cache_nodes"], sim["cache_slots"] = blocks, nodes, slots
    sim["hash_at"] = arena.take(len(workload.hash_ids))
    sim["held_at"] = arena.take(len(workload.hash_ids))
    stretch = slots + 4 * nodes
    instances["cache_at"] = arena.take(stretch * len(instances)) + stretch * np.arange(len(instances))


def lay_out_stores(
    sim: Array, instances: Array, arena: Arena, workload: Workload, stores: PrefixStores
) -> NDArray[np.void]:
    """One STORE row for each instance and tier, and where their lists lie."""
    tiers, count = list(stores.tiers.values()), len(instances)
    rows = np.zeros(count * len(tiers), STORE)
    if not tiers:
        return rows
    names = len(np.unique(workload.hash_ids))
    sim["tiers"], sim["store_keys"], sim["loads_layer_wise"] = len(tiers), names, stores.layer_wise
    for k, tier in enumerate(tiers):
        own = rows[k :: len(tiers)]
        lists = 1 if tier.shared else count
        number = np.arange(count) if lists == count else np.zeros(count, np.int64)
        own["home"] = number * len(tiers) + k
        own["at"] = arena.take(2 * names * lists) + 2 * names * number
        own["capacity"] = tier.blocks(workload.hash_block_tokens, float(sim["kv_bytes_per_token"][0]), names)
        own["bandwidth_bytes_s"] = instances["host_bytes_s"]
        if tier.bandwidth_bytes_s is not None:
            own["bandwidth_bytes_s"] = tier.bandwidth_bytes_s
        own["latency_s"] = tier.latency_s
        own["old"] = own["young"] = -1
        rows[k :: len(tiers)] = own
    return rows


def fill_cache(sim: Array, instances: Array, requests: Array, data: NDArray[np.int64], workload: Workload) -> None:
    """Empty caches, and the names of each request's blocks: those of the trace, or from 0 where there are stores."""
    assert workload.hash_offsets is not None
    slots, nodes = int(sim["cache_slots"][0]), int(sim["cache_nodes"][0])
    keys = workload.hash_ids if sim["tiers"][0] == 0 else np.unique(workload.hash_ids, return_inverse=True)[1]
    data[sim["hash_at"][0] :][: len(keys)] = keys
    for at in instances["cache_at"]:
        data[at : at + slots] = -1
        links = data[at + slots + 3 * nodes :][:nodes]
        links[:] = np.arange(1, nodes + 1)
        links[-1] = -1
    instances["cache_free"] = 0
    requests["hash_at"] = workload.hash_offsets[:-1]
    known = np.diff(workload.hash_offsets)
    requests["hash_count"] = np.minimum(known, workload.input_tokens // workload.hash_block_tokens)


def fill_stores(sim: Array, stores: Array, data: NDArray[np.int64]) -> None:
    """Empty stores."""
    for at in np.unique(stores["at"]):
        data[at : at + int(sim["store_keys"][0])] = ABSENT
