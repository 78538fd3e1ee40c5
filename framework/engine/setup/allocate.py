"""Allocates the memory of one run: what the engine's arrays hold before the first event."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from framework.checks import require_count
from framework.codes import CRASH, FIRST_TOKENS, MODES, PREFILL, RANK_CHOICES, RECOMPUTE, ROLE_CHANGE, ROLES, SWAP
from framework.engine.durations.speculation import Speculation
from framework.engine.memory.records import INSTANCE, REQUEST, STEP_LOG, TOKEN_LOG
from framework.engine.memory.state import (
    ACTION,
    CHANNEL,
    ERROR,
    HOOK,
    LINK,
    OPTIONS,
    PREFILL_STEP,
    SIM,
    STEP,
    TIER,
    Memory,
)
from framework.engine.parallel.data_parallel import RANK_WORDS
from framework.engine.setup.config import EngineConfig, step_row
from framework.engine.setup.prefix_layout import ListSpace, fill_cache, fill_tiers, lay_out_cache, lay_out_tiers
from framework.errors import InputError
from framework.load import Load
from framework.policy.hooks import HOOKS, MOST_ACTIONS
from framework.system.cluster import ClusterSpec
from framework.system.model import Model
from framework.timing.table import Timing, stack
from framework.workload import Workload, read_only

_LOG_ROWS = 1 << 17
_CACHE_LINE = 64  # bytes
_UNBOUNDED = 1 << 40  # tokens
_TREES = ROLE_CHANGE + 1  # one for each kind of event that an instance has


def allocate(
    workload: Workload, cluster: ClusterSpec, model: Model, timing: Timing, engine: EngineConfig, load: Load, seed: int
) -> Memory:
    """The memory before the first event. InputError where the model does not fit or prefixes do not match blocks."""
    instances = _instances(cluster, model, engine)
    steps = [step_row(engine, timing, model, pool) for pool in cluster.pools]
    entrance = steps[cluster.entrance]
    delay_s = entrance.request_s
    requests = _requests(workload, load, delay_s)
    instances["off_since_s"] = requests["event_s"][:1] - delay_s  # the run begins with the first arrival
    options, sim = np.zeros(1, OPTIONS), np.zeros(1, SIM)
    count, size = len(workload), len(instances)
    most_running = min(int(instances["max_batch"].max()), count)
    rows = max(_LOG_ROWS, 64 * most_running)
    options["requests"], options["instances"], options["most_running"] = count, size, most_running
    options["step_log_rows"] = options["token_log_rows"] = rows
    options["request_s"] = delay_s
    options["horizon_s"] = np.inf if load.duration_s is None else load.duration_s + delay_s
    options["backoff_s"] = load.backoff_s
    options["intake_s"], options["intake_token_s"] = entrance.intake_s, entrance.intake_token_s
    _set_options(options, cluster, model, engine, seed)
    _set_clock(sim, requests)
    space = ListSpace()
    crashes = engine.faults.schedule(cluster)
    options["crash_at"] = space.reserve(len(crashes))
    _lay_out_run(options, space)
    _lay_out_instances(instances, space, cluster, engine, most_running)
    cached = engine.prefix_cache and (workload.has_prefixes or engine.shares_blocks)
    tiers = np.zeros(0, TIER)
    if cached:
        lay_out_cache(options, instances, space, workload, engine)
        tiers = lay_out_tiers(options, instances, space, workload, engine.prefix_stores)
    lists, names = np.zeros(space.size, np.int64), np.zeros(0, np.int32)
    _fill_trees(options, instances, lists)
    lists[options["output_at"][0] :][:count] = workload.output_tokens
    lists[options["crash_at"][0] :][: len(crashes)] = [crash.instance for crash in crashes]
    tree_times = np.full(_TREES * int(options["tree_leaves"][0]), np.inf)
    options["crash_times_at"], options["crash_ends_at"] = len(tree_times), len(tree_times) + len(crashes)
    if crashes:
        sim["change_s"], sim["changing"], sim["change_kind"] = crashes[0].at_s, crashes[0].instance, CRASH
        options["rows_at_once"] = max(len(group) for group in cluster.groups)
    _fill_schedules(instances, cluster, lists)
    if cached:
        names = fill_cache(options, instances, requests, lists, workload)
        fill_tiers(options, tiers, lists)
    tables = stack(steps)
    options["slowdown_at"] = len(tables.data)
    step = np.zeros(size, STEP)
    step["next_finish"] = np.iinfo(np.int64).max
    step["leaping_index"] = -1
    prefill_step = np.zeros(size, PREFILL_STEP)
    prefill_step["ended_s"] = -np.inf
    step_log, token_log = _logs(rows)
    return Memory(
        options=options,
        sim=sim,
        error=np.zeros(1, ERROR),
        hooks=np.zeros(len(HOOKS), HOOK),
        actions=np.zeros(MOST_ACTIONS, ACTION),
        postponed=np.zeros(MOST_ACTIONS, ACTION),
        requests=requests,
        instances=instances,
        step=step,
        prefill_step=prefill_step,
        tiers=tiers,
        links=_links(cluster),
        channels=np.zeros(min(size * size, count) if cluster.link.sharing == "fair" else 0, CHANNEL),
        times=np.concatenate([tree_times, [crash.at_s for crash in crashes], [crash.back_s for crash in crashes]]),
        lists=lists,
        names=read_only(names),
        step_log=step_log,
        token_log=token_log,
        timing_rows=tables.rows,
        timing_data=np.concatenate([tables.data, engine.sharing.slowdowns().ravel()]),
    )


def _set_options(
    options: NDArray[np.void], cluster: ClusterSpec, model: Model, engine: EngineConfig, seed: int
) -> None:
    kv = engine.kv_compression
    options["seed"] = seed % 2**32
    options["rows_at_once"] = 1
    options["role_change_s"], options["start_s"] = engine.role_change_s, engine.start_s
    options["max_context"] = model.max_context
    options["block_tokens"] = engine.block_tokens
    options["preemption"] = SWAP if engine.preemption == "swap" else RECOMPUTE
    options["recomputes_there"] = engine.recompute == "there"
    options["least_urgent"] = engine.victim == "least_urgent"
    options["fewest_tokens"] = engine.victim == "fewest_tokens"
    options["waits_last"] = engine.requeue == "last"
    options["asynchronous"] = engine.asynchronous
    options["admission_wait_steps"] = engine.admission_wait_steps
    options["by_admission"] = engine.step_order == "admission"
    options["longest_chunk"] = _UNBOUNDED if engine.longest_chunk is None else engine.longest_chunk
    options["unchunked"] = not engine.chunked_prefill
    options["room_for_chunk"] = engine.admission_room == "chunk"
    options["spares_idle"] = not engine.idle_watermark
    options["kv_bytes_per_token"] = model.kv_bytes_per_token * engine.memory_share(model)
    options["copy_bytes_per_token"] = model.kv_bytes_per_token * engine.copy_share(model)
    options["weight_bytes"] = model.weight_bytes
    for part in fields(engine):
        own = getattr(getattr(engine, part.name), "engine_options", dict)
        for name, value in own().items():
            options[name] = value
    options["chosen_share"] = 0.0 if model.experts is None else model.experts.per_token / model.experts.count
    options["latency_s"] = cluster.link.latency_s
    options["shares_links"] = cluster.link.sharing == "fair"
    options["limits_fabric"] = cluster.link.fabric_bytes_s is not None
    options["layerwise_tokens"], options["layer_share"] = engine.layerwise_tokens or 0, 1.0 / model.layers
    options["pulls"] = engine.pulls
    options["first_token"] = FIRST_TOKENS[engine.first_token]
    _set_speculation(options, engine.speculation, model)


def _set_clock(sim: NDArray[np.void], requests: NDArray[np.void]) -> None:
    waiting = np.flatnonzero(requests["opens"] & requests["follows"])
    sim["remaining"] = len(requests)
    sim["next_tick"] = 1
    sim["next_session"] = waiting[0] if len(waiting) else len(requests)
    sim["change_s"], sim["changing"], sim["change_kind"] = np.inf, -1, ROLE_CHANGE
    sim["parked_head"] = sim["parked_tail"] = -1
    sim["prefill_end_s"], sim["prefill_end_of"] = np.inf, -1
    sim["scheduled"] = -1
    sim["unused_channel"] = -1
    sim["mark_s"] = np.inf


def _lay_out_run(options: NDArray[np.void], space: ListSpace) -> None:
    """Where the lists of the whole run lie."""
    count, size = int(options["requests"][0]), int(options["instances"][0])
    options["tree_leaves"] = leaves = max(2, 1 << (size - 1).bit_length())
    options["tree_at"] = space.reserve(_TREES * 2 * leaves)
    options["load_tree_at"] = space.reserve(2 * leaves)
    for name in ("woken_at", "leaping_at", "touched_at"):
        options[name] = space.reserve(size)
    for name in ("changed_links_at", "reached_links_at"):
        options[name] = space.reserve(2 * size + 1)
    for name in ("heap_at", "turns_at", "finished_at", "output_at", "asked_at"):
        options[name] = space.reserve(count)
    options["leaving_at"] = space.reserve(int(options["most_running"][0]))
    if options["speculates"][0]:
        options["draws_at"] = space.reserve(2 * count)
    if options["by_admission"][0]:
        options["aside_at"] = space.reserve(int(options["most_running"][0]))


def _fill_trees(options: NDArray[np.void], instances: NDArray[np.void], lists: NDArray[np.int64]) -> None:
    leaves = int(options["tree_leaves"][0])
    trees = lists[options["tree_at"][0] :][: _TREES * 2 * leaves].reshape(_TREES, 2 * leaves)
    trees[:, leaves:] = np.arange(leaves)
    loads = lists[options["load_tree_at"][0] :][: 2 * leaves]
    loads[leaves:] = np.arange(leaves)
    prefills = np.zeros(leaves, bool)
    prefills[: len(instances)] = instances["role"] & PREFILL
    for node in range(leaves - 1, 0, -1):  # all times are infinite, and nothing is queued anywhere
        trees[:, node] = trees[:, 2 * node]
        left, right = loads[2 * node], loads[2 * node + 1]
        loads[node] = right if prefills[right] and not prefills[left] else left


def _lay_out_instances(
    instances: NDArray[np.void], space: ListSpace, cluster: ClusterSpec, engine: EngineConfig, most_running: int
) -> None:
    """Where the lists of each instance lie."""
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


def _fill_schedules(instances: NDArray[np.void], cluster: ClusterSpec, lists: NDArray[np.int64]) -> None:
    for k, pool in enumerate(cluster.pools):
        if pool.chunk_schedule is not None:
            at = instances["chunk_sizes_at"][instances["pool"] == k][0]
            lists[at:][: len(pool.chunk_schedule.sizes)] = pool.chunk_schedule.sizes


def _set_speculation(options: NDArray[np.void], speculation: Speculation, model: Model) -> None:
    cost = speculation.draft_cost
    options["speculates"] = speculation.most > 0
    options["adaptive_depth"] = speculation.adaptive
    options["depth"] = speculation.most
    options["acceptance"] = speculation.acceptance
    options["draft_cost"] = 1.0 / model.layers if cost is None else cost


def _instances(cluster: ClusterSpec, model: Model, engine: EngineConfig) -> NDArray[np.void]:
    instances = np.zeros(cluster.instances, INSTANCE)
    pool_of, kv = cluster.pool_of_instance, engine.kv_compression
    instances["pool"] = pool_of
    for k, pool in enumerate(cluster.pools):
        tokens = pool.kv_tokens(model, engine.kv_fraction, engine.memory_share(model))
        if engine.kv_tokens is not None:
            tokens = engine.kv_tokens
        blocks = tokens // engine.block_tokens
        if blocks < 1:
            raise InputError(
                f"pool {pool.name}: {tokens} KV tokens are less than one block; "
                f"lower engine.block_tokens={engine.block_tokens}"
            )
        mine = instances[pool_of == k]
        mine["role"] = mine["draining_role"] = mine["next_role"] = ROLES[pool.role]
        mine["mode"] = MODES[engine.batching_of(pool)]
        mine["token_budget"] = engine.budget_of(pool)
        mine["max_batch"] = engine.seats_of(pool)
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
        mine["output_ratio"] = engine.output_reserve.ratio
        mine["host_bytes_s"] = pool.host_bytes_s
        bandwidth_bytes_s = pool.gpu.bandwidth_bytes_s * pool.own_parallelism.gpus
        mine["memory_bytes_s"] = bandwidth_bytes_s if engine.sharing.contention else np.inf
        mine["unpack_s"] = kv.unpack_s(model, pool.own_parallelism)
        instances[pool_of == k] = mine
    instances["bandwidth_bytes_s"] = cluster.link_bytes_s
    for group in cluster.groups:
        if len(group) > 1:
            instances["group"][group], instances["group_first"][group] = len(group), group.start
    for name in (
        "admission_opens",
        "waiting_root",
        "joining_head",
        "joining_tail",
        "computed_head",
        "computed_tail",
        "incoming_head",
        "incoming_tail",
        "split_head",
        "split_tail",
        "inbox_head",
        "inbox_tail",
        "deferred_head",
        "deferred_tail",
        "swapped_head",
        "swapped_tail",
        "cache_free",
        "cache_old",
        "cache_young",
    ):
        instances[name] = -1
    return instances


def _links(cluster: ClusterSpec) -> NDArray[np.void]:
    """The network of each instance in both directions, and the fabric."""
    links = np.zeros(2 * cluster.instances + 1, LINK)
    fabric_bytes_s = np.inf if cluster.link.fabric_bytes_s is None else cluster.link.fabric_bytes_s
    links["bandwidth_bytes_s"] = [*cluster.link_bytes_s, *cluster.link_bytes_s, fabric_bytes_s]
    links["first"] = -1
    return links


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
    for name, texts in (("slo_class", workload.slo_class), ("tenant", workload.tenant)):
        if texts is not None:
            names, numbers = np.unique(texts, return_inverse=True)
            require_count(f"how many names {name} has", len(names), int(np.iinfo(requests.dtype[name]).max))
            requests[name] = numbers
    return requests


def _logs(rows: int) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """The step log and the token log, which are read as far as they are written.

    In one piece: the allocator of C hands memory back to the system, which gives it page by page, once there is more
    than twice its largest piece; from one run to the next it shall not.
    """
    room, steps = np.empty(rows * (STEP_LOG.itemsize + TOKEN_LOG.itemsize), np.uint8), rows * STEP_LOG.itemsize
    return room[:steps].view(STEP_LOG), room[steps:].view(TOKEN_LOG)


def _aligned(rows: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Room for so many records, the first of which begins a line of the cache."""
    room = np.empty(rows * dtype.itemsize + _CACHE_LINE, np.uint8)
    begin = -room.ctypes.data % _CACHE_LINE
    return room[begin:][: rows * dtype.itemsize].view(dtype)


def _alike(count: int) -> NDArray[np.void]:
    """So many requests of which nothing is known, each the first of its session."""
    one = np.zeros(1, REQUEST)
    one["opens"] = True
    for name in ("instance", "destination", "heap_index", "next", "child", "followed_by", "channel", "held_at"):
        one[name] = -1
    for name in ("prefill_instance", "decode_instance", "session"):
        one[name] = -1
    for name in ("arrival_s", "start_s", "prefill_end_s", "first_token_s", "transfer_end_s", "end_s"):
        one[name] = np.nan
    requests = _aligned(count, REQUEST)
    requests.view(np.int64).reshape(count, -1)[:] = one.view(np.int64)  # numpy copies records field by field
    return requests
