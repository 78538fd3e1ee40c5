"""Lays out the memory of one run: what the engine's arrays hold before the first event."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framework.codes import MODES, RANK_CHOICES, RECOMPUTE, ROLES, SWAP
from framework.engine.config import EngineConfig
from framework.engine.layout import Arena, fill_cache, fill_stores, lay_out_cache, lay_out_stores
from framework.engine.mechanisms.data_parallel import RANK_WORDS
from framework.engine.mechanisms.speculation import Speculation
from framework.engine.state import INSTANCE, LEAP, MEMBERSHIP, PROGRESS, REQUEST, SIM, STORE, STREAM, State
from framework.errors import InputError
from framework.system.cluster import ClusterSpec
from framework.system.model import Model, kv_capacity_tokens
from framework.timing.table import Timing, stack
from framework.workload import Load, Workload

_LOG_ROWS = 1 << 17


@dataclass(frozen=True)
class Lists:
    """Views of per-instance lists in the arena, for looking in from Python."""

    running: NDArray[np.int64]  # (M, most requests on an instance)
    prefilling: NDArray[np.int64]
    finished: NDArray[np.int64]  # (N,) in order of their ends


def allocate(
    workload: Workload, cluster: ClusterSpec, model: Model, timing: Timing, engine: EngineConfig, load: Load, seed: int
) -> tuple[State, Lists]:
    """The state before the first event. InputError where the model does not fit or prefixes do not match blocks."""
    instances = _instances(cluster, model, engine)
    kv = engine.kv_compression
    steps = [
        kv.step_row(timing.row(model, pool.gpu, pool.parallelism), model, pool.parallelism) for pool in cluster.pools
    ]
    entrance = steps[cluster.entrance]
    delay_s = entrance.request_s
    requests = _requests(workload, load, delay_s)
    instances["off_since_s"] = requests["event_s"][:1] - delay_s  # the run begins with the first arrival
    sim = np.zeros(1, SIM)
    count, size = len(workload), len(instances)
    most_running = min(int(instances["max_batch"].max()), count)
    arena = Arena()
    sim["requests"], sim["instances"], sim["remaining"] = count, size, count
    sim["next_tick"] = 1
    sim["request_s"], sim["intake_s"] = delay_s, entrance.intake_s
    waiting = np.flatnonzero(requests["opens"] & requests["follows"])
    sim["next_session"] = waiting[0] if len(waiting) else count
    sim["most_running"] = most_running
    sim["change_s"], sim["changing"] = np.inf, -1
    sim["stream_s"], sim["streaming"] = np.inf, -1
    sim["role_change_s"], sim["start_s"] = engine.role_change_s, engine.start_s
    sim["max_context"] = model.max_context
    sim["block_tokens"] = engine.block_tokens
    sim["preemption"] = SWAP if engine.preemption == "swap" else RECOMPUTE
    sim["admission_wait_steps"] = engine.admission_wait_steps
    _set_speculation(sim, engine.speculation, model, seed)
    sim["kv_bytes_per_token"] = model.kv_bytes_per_token * kv.memory_share
    sim["weight_bytes"] = model.weight_bytes
    sim["copy_bytes_per_token"] = model.kv_bytes_per_token * kv.copy_share
    sim["attention_overlap"], sim["decode_rows"] = engine.attention.overlap, engine.attention.decode_rows
    sim["chosen_share"] = 0.0 if model.experts is None else model.experts.per_token / model.experts.count
    sim["latency_s"] = cluster.link.latency_s
    sim["layerwise_tokens"], sim["layer_share"] = engine.layerwise_tokens or 0, 1.0 / model.layers
    sim["stamp_at_decode"] = engine.first_token == "decode"
    sim["tree_leaves"] = leaves = max(2, 1 << (size - 1).bit_length())
    sim["tree_at"] = arena.take(2 * leaves)
    sim["woken_at"] = arena.take(size)
    sim["heap_at"] = arena.take(count)
    sim["released_at"] = arena.take(count)
    sim["finished_at"] = arena.take(count)
    sim["output_at"] = arena.take(count)
    for name in ("running_at", "finish_at", "prefilling_at", "chunk_at"):
        instances[name] = arena.take(size * most_running) + most_running * np.arange(size)
    pool_of = instances["pool"]
    schedules = [pool.chunk_schedule for pool in cluster.pools]
    for k, schedule in enumerate(schedules):
        if schedule is not None:
            instances["chunk_sizes_at"][pool_of == k] = arena.take(len(schedule.sizes))
            instances["chunk_stages"][pool_of == k] = len(schedule.sizes)
            instances["stage_tokens"][pool_of == k] = schedule.stage_tokens
    instances["growth_at"] = arena.take(size * engine.block_tokens) + engine.block_tokens * np.arange(size)
    for i in np.flatnonzero(instances["ranks"]):
        instances["ranks_at"][i] = arena.take(RANK_WORDS * int(instances["ranks"][i]))
    for i in np.flatnonzero(instances["stages"]):
        instances["loads_at"][i] = arena.take(int(instances["stages"][i]))
        instances["dealt_at"][i] = arena.take(most_running)
    cached = engine.prefix_cache and workload.has_prefixes
    stores = np.zeros(0, STORE)
    if cached:
        lay_out_cache(sim, instances, arena, workload, engine)
        stores = lay_out_stores(sim, instances, arena, workload, engine.prefix_stores)
    data = np.zeros(arena.size, np.int64)
    tree = data[sim["tree_at"][0] :][: 2 * leaves]
    tree[leaves:] = np.arange(leaves)
    for node in range(leaves - 1, 0, -1):
        tree[node] = tree[2 * node]
    data[sim["output_at"][0] :][:count] = workload.output_tokens
    for k, schedule in enumerate(schedules):
        if schedule is not None:
            data[instances["chunk_sizes_at"][pool_of == k][0] :][: len(schedule.sizes)] = schedule.sizes
    if cached:
        fill_cache(sim, instances, requests, data, workload)
        fill_stores(sim, stores, data)
    tables = stack(steps)
    sim["slowdown_at"] = len(tables.data)
    timing_data = np.concatenate([tables.data, engine.sharing.slowdowns().ravel()])
    lists = Lists(
        running=data[instances["running_at"][0] :][: size * most_running].reshape(size, most_running),
        prefilling=data[instances["prefilling_at"][0] :][: size * most_running].reshape(size, most_running),
        finished=data[sim["finished_at"][0] :][:count],
    )
    rows = max(_LOG_ROWS, 64 * most_running)
    logs = np.empty(rows, LEAP), np.empty(rows, MEMBERSHIP)  # read as far as it is written, and so whole
    progress = np.zeros(size, PROGRESS)
    progress["event_s"] = np.inf
    progress["next_finish"] = np.iinfo(np.int64).max
    streams = np.zeros(size, STREAM)
    streams["end_s"] = np.inf
    return State(sim, requests, instances, progress, streams, data, *logs, tables.rows, timing_data, stores), lists


def _set_speculation(sim: NDArray[np.void], speculation: Speculation, model: Model, seed: int) -> None:
    cost = speculation.draft_cost
    sim["speculates"] = speculation.most > 0
    sim["adaptive_depth"] = speculation.adaptive
    sim["depth"] = speculation.most
    sim["acceptance"] = speculation.acceptance
    sim["draft_cost"] = 1.0 / model.layers if cost is None else cost
    sim["seed"] = seed % 2**32


def _instances(cluster: ClusterSpec, model: Model, engine: EngineConfig) -> NDArray[np.void]:
    instances = np.zeros(cluster.instances, INSTANCE)
    pool_of, kv = cluster.pool_of_instance, engine.kv_compression
    instances["pool"] = pool_of
    for k, pool in enumerate(cluster.pools):
        tokens = kv_capacity_tokens(model, pool.gpu, pool.parallelism, engine.kv_fraction, kv.memory_share)
        if engine.kv_tokens is not None:
            tokens = engine.kv_tokens
        blocks = tokens // engine.block_tokens
        if blocks < 1:
            raise InputError(
                f"pool {pool.name}: {tokens} KV tokens are less than one block; "
                f"lower engine.block_tokens={engine.block_tokens}"
            )
        mine = instances[pool_of == k]
        mine["role"] = mine["settled_role"] = mine["next_role"] = ROLES[pool.role]
        mine["mode"] = MODES[pool.batching or engine.batching]
        mine["token_budget"] = pool.token_budget or engine.token_budget
        mine["max_batch"] = pool.max_batch or engine.max_batch
        mine["total_blocks"] = mine["free_blocks"] = blocks
        mine["watermark"] = math.floor(engine.watermark * blocks)
        if pool.reserve_tokens is not None:
            most = blocks - math.floor(engine.watermark * blocks)
            mine["reserve_blocks"] = min(math.ceil(pool.reserve_tokens / engine.block_tokens), most)
        if pool.has_ranks:
            mine["ranks"] = pool.parallelism.dp
            mine["rank_choice"] = RANK_CHOICES[pool.rank_choice]
        if pool.parallelism.pp > 1:
            mine["stages"] = pool.parallelism.pp
        mine["prefill_percent"] = engine.sharing.prefill_percent
        mine["host_bytes_s"] = pool.host_bytes_s
        bandwidth_bytes_s = pool.gpu.bandwidth_bytes_s * pool.parallelism.gpus
        mine["memory_bytes_s"] = bandwidth_bytes_s if engine.sharing.contention else np.inf
        mine["unpack_s"] = kv.unpack_s(model, pool.parallelism)
        instances[pool_of == k] = mine
    instances["bandwidth_bytes_s"] = cluster.link_bytes_s
    instances["change_s"] = np.inf
    for name in ("gate", "waiting_root", "joined_head", "joined_tail", "incoming_head", "incoming_tail"):
        instances[name] = -1
    for name in ("cut_head", "cut_tail", "swapped_head", "swapped_tail", "cache_free", "cache_old", "cache_young"):
        instances[name] = -1
    return instances


def _requests(workload: Workload, load: Load, delay_s: float) -> NDArray[np.void]:
    """Requests as the scheduler will see them: each `delay_s` after its client has sent it."""
    requests = _alike(len(workload))
    requests["event_s"] = delay_s if load.clients is not None else workload.arrival_s + delay_s
    requests["input_tokens"] = workload.input_tokens
    if workload.previous is not None:
        requests["opens"] = workload.previous < 0
        later = np.flatnonzero(workload.previous >= 0)
        requests["follows"][later] = True
        requests["followed_by"][workload.previous[later]] = later
    if load.clients is not None:
        requests["follows"][np.flatnonzero(requests["opens"])[load.clients :]] = True
    for name, column in (
        ("think_s", workload.think_s),
        ("session", workload.session_id),
        ("turn", workload.turn),
        ("priority", workload.priority),
    ):
        if column is not None:
            requests[name] = column
    if workload.think_s is not None:
        requests["think_s"][requests["opens"]] = 0.0
    if delay_s > 0:
        requests["think_s"] += delay_s
    if workload.slo_class is not None:
        requests["slo_class"] = np.unique(workload.slo_class, return_inverse=True)[1]
    return requests


def _alike(count: int) -> NDArray[np.void]:
    """So many requests of which nothing is known, each the first of its session."""
    one = np.zeros(1, REQUEST)
    one["opens"] = True
    for name in ("instance", "destination", "heap_index", "next", "child", "followed_by"):
        one[name] = -1
    for name in ("prefill_instance", "decode_instance", "session"):
        one[name] = -1
    for name in ("arrival_s", "start_s", "prefill_end_s", "first_token_s", "transfer_end_s", "end_s"):
        one[name] = np.nan
    requests = np.empty(count, REQUEST)
    requests.view(np.int64).reshape(count, -1)[:] = one.view(np.int64)  # numpy copies records field by field
    return requests
