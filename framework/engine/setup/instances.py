"""Instances before the first event, and where their lists lie."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from framework.codes import MODES, RANK_CHOICES, ROLES
from framework.engine.memory.records import INSTANCE
from framework.engine.parallel.data_parallel import RANK_WORDS
from framework.engine.setup.config import EngineConfig, Setting
from framework.engine.setup.prefix_layout import ListSpace
from framework.errors import InputError
from framework.system.cluster import ClusterSpec, PoolSpec

_ENDS_OF_LISTS = (
    *("joining_head", "joining_tail", "computed_head", "computed_tail", "incoming_head", "incoming_tail"),
    *("split_head", "split_tail", "inbox_head", "inbox_tail", "deferred_head", "deferred_tail"),
    *("swapped_head", "swapped_tail", "cache_old", "cache_young", "pinned_head", "pinned_tail"),
)


def first_instances(setting: Setting) -> NDArray[np.void]:
    """The instances, which hold nothing. Raises InputError where KV memory has no room for one block."""
    cluster = setting.cluster
    instances = np.zeros(cluster.instances, INSTANCE)
    pool_of = cluster.pool_of_instance
    instances["pool"] = instances["row"] = pool_of
    for k, pool in enumerate(cluster.pools):
        mine = instances[pool_of == k]
        _fill(mine, setting, pool)
        instances[pool_of == k] = mine
    instances["bandwidth_bytes_s"] = cluster.link_bytes_s
    for group in cluster.groups:
        if len(group) > 1:
            instances["group"][group], instances["group_first"][group] = len(group), group.start
    for name in ("admission_opens", "waiting_root", "cache_free", *_ENDS_OF_LISTS):
        instances[name] = -1
    return instances


def _fill(mine: NDArray[np.void], setting: Setting, pool: PoolSpec) -> None:
    """Write what all instances of a pool have in common."""
    model, engine = setting.model, setting.engine
    blocks = _kv_blocks(setting, pool)
    mine["pool_role"] = ROLES[pool.role]
    mine["gpus"] = pool.own_parallelism.gpus
    for name in ("role", "draining_role", "next_role"):
        mine[name][: pool.begins_on] = ROLES[pool.role]
    mine["start_s"] = setting.start_s(pool)
    mine["provisioning_s"] = engine.start.before_load_s(pool)
    mine["source_s"] = engine.start.source_s(model, pool)
    mine["mode"] = MODES[engine.batching_of(pool)]
    mine["token_budget"] = engine.budget_of(pool)
    mine["max_batch"] = engine.seats_of(pool)
    mine["total_blocks"] = mine["free_blocks"] = blocks
    mine["watermark"] = math.floor(engine.watermark * blocks)
    mine["state_blocks"] = states = setting.state_blocks(pool)
    if pool.reserve_tokens is not None:
        most = blocks - math.floor(engine.watermark * blocks)
        mine["reserve_blocks"] = min(math.ceil(pool.reserve_tokens / engine.block_tokens) + states, most)
    if pool.has_ranks:
        mine["ranks"] = pool.parallelism.dp
        mine["rank_choice"] = RANK_CHOICES[pool.rank_choice]
    if pool.parallelism.pp > 1:
        mine["stages"] = pool.parallelism.pp
    mine["prefill_percent"] = engine.sharing.prefill_percent
    mine["most_drafts"] = engine.speculation.most
    mine["output_ratio"] = engine.output_reserve.ratio
    mine["host_bytes_s"] = pool.host_bytes_s
    bandwidth_bytes_s = pool.gpu.bandwidth_bytes_s * pool.own_parallelism.gpus
    mine["memory_bytes_s"] = bandwidth_bytes_s if engine.sharing.contention else np.inf
    mine["unpack_s"] = engine.kv_compression.unpack_s(model, pool.own_parallelism)
    mine["slowness"] = 1.0


def widths(setting: Setting) -> NDArray[np.void]:
    """An instance of each pool, then those without GPUs that they may lose: (K + F,) INSTANCE; (0,) if none loses any.

    An instance without room for one block has 0 blocks.
    """
    pools, fewer = setting.cluster.pools, setting.fewer
    found = np.zeros(len(pools) + len(fewer) if fewer else 0, INSTANCE)
    of_each = [*pools, *(pool for pool, _ in fewer)]
    for k in range(len(found)):
        _fill(found[k : k + 1], setting, of_each[k])
    for one, (pool, left) in zip(found[len(pools) :], fewer, strict=False):
        blocks = left.kv_tokens // setting.engine.block_tokens
        watermark = math.floor(setting.engine.watermark * blocks)
        share = left.gpus / pool.parallelism.tp
        one["gpus"], one["watermark"] = left.gpus, watermark
        one["total_blocks"] = blocks if blocks > watermark else 0
        one["reserve_blocks"] = min(one["reserve_blocks"], blocks - watermark)
        one["host_bytes_s"] = pool.gpu.pcie_bytes_s * left.gpus
        one["memory_bytes_s"] *= share
        one["unpack_s"] *= left.work
    return found


def _kv_blocks(setting: Setting, pool: PoolSpec) -> int:
    blocks = setting.kv_blocks(pool)
    if blocks < 1:
        raise InputError(
            f"pool {pool.name}: {setting.kv_tokens(pool)} KV tokens are less than one block; "
            f"lower engine.block_tokens={setting.engine.block_tokens}"
        )
    return blocks


def lay_out_instances(
    instances: NDArray[np.void], space: ListSpace, cluster: ClusterSpec, engine: EngineConfig, most_running: int
) -> None:
    """Lay out the lists of each instance."""
    size, pool_of = len(instances), instances["pool"]
    for name in ("running_at", "finish_at", "prefilling_at", "chunk_at"):
        instances[name] = space.reserve(size * most_running) + most_running * np.arange(size)
    for k, pool in enumerate(cluster.pools):
        schedule = pool.chunk_schedule
        if schedule is not None:
            instances["chunk_sizes_at"][pool_of == k] = space.reserve(len(schedule.sizes))
            instances["chunk_stages"][pool_of == k] = len(schedule.sizes)
            instances["stage_tokens"][pool_of == k] = schedule.stage_tokens
    instances["growth_at"] = space.reserve(size * engine.block_tokens) + engine.block_tokens * np.arange(size)
    for i in np.flatnonzero(instances["ranks"]):
        instances["ranks_at"][i] = space.reserve(RANK_WORDS * int(instances["ranks"][i]))
    for i in np.flatnonzero(instances["stages"]):
        instances["loads_at"][i] = space.reserve(int(instances["stages"][i]))
        instances["dealt_at"][i] = space.reserve(most_running)


def fill_schedules(instances: NDArray[np.void], cluster: ClusterSpec, lists: NDArray[np.int64]) -> None:
    """Write the chunk sizes of pools that have a schedule of them."""
    for k, pool in enumerate(cluster.pools):
        if pool.chunk_schedule is not None:
            at = instances["chunk_sizes_at"][instances["pool"] == k][0]
            lists[at:][: len(pool.chunk_schedule.sizes)] = pool.chunk_schedule.sizes
