"""Memory of one run before its first event."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from framework.codes import FAULT, PREFILL, REPORT, ROLE_CHANGE, WHAT_FAILS
from framework.engine.kv.spans import lay_out_spans
from framework.engine.memory.options import WIDTH_COUNTS, WIDTH_VALUES
from framework.engine.memory.records import STEP_LOG, TOKEN_LOG
from framework.engine.memory.state import (
    ACTION,
    CHANNEL,
    ERROR,
    HOOK,
    LINK,
    PREFILL_STEP,
    SIM,
    STEP,
    TIER,
    Memory,
)
from framework.engine.setup.config import Setting, step_rows
from framework.engine.setup.gateway import flows_of
from framework.engine.setup.instances import fill_schedules, first_instances, lay_out_instances, widths
from framework.engine.setup.options import run_options
from framework.engine.setup.prefix_layout import ListSpace, fill_cache, fill_tiers, lay_out_cache, lay_out_tiers
from framework.engine.setup.programs import fill_programs, lay_out_programs
from framework.engine.setup.requests import first_requests, first_waiting
from framework.policy.hooks import HOOKS, MOST_ACTIONS
from framework.system.cluster import ClusterSpec
from framework.system.faults import FaultEvent
from framework.timing.table import stack
from framework.timing.uncertainty.lateness import lateness_s
from framework.workload import read_only

_LOG_ROWS = 1 << 17
_LOG_BYTES = (1 << 25) - (1 << 20)  # glibc counts no block of 32 MiB or more as its largest (mallopt, M_MMAP_THRESHOLD)
_TREES = ROLE_CHANGE + 1  # one for each kind of event that an instance has


def allocate(setting: Setting) -> Memory:
    """The memory before the first event. Raises InputError if the model does not fit, or prefixes no blocks."""
    workload, cluster, engine = setting.workload, setting.cluster, setting.engine
    steps, wide = step_rows(setting), widths(setting)
    options = run_options(setting, steps[cluster.entrance])
    requests = first_requests(workload, setting.load, steps[cluster.entrance].request_s)
    instances = first_instances(setting)
    instances["off_since_s"] = requests["event_s"][:1] - options["request_s"]  # the run begins with the first arrival
    _set_sizes(options, requests, instances)
    faults = engine.faults.schedule(cluster).events
    flows, flow = flows_of(engine.gateway, workload)
    options["flows"] = len(flows) - 1
    space = ListSpace()
    options["widths"] = len(wide)
    _lay_out_run(options, space, len(faults))
    lay_out_programs(options, space, workload, setting.load)
    lay_out_instances(instances, space, cluster, engine, int(options["most_running"][0]))
    cached = engine.prefix_cache and (workload.has_prefixes or engine.shares_blocks)
    tiers = np.zeros(0, TIER)
    if cached:
        lay_out_cache(options, instances, space, workload, engine)
        tiers = lay_out_tiers(options, instances, space, workload, engine.prefix_stores)
    lay_out_spans(options, space)
    lists, names = _lists(options, space), np.zeros(0, np.int32)
    _fill_trees(options, instances, lists)
    lists[options["output_at"][0] :][: len(workload)] = workload.output_tokens
    lists[options["flow_at"][0] :][: len(flow)] = flow
    fill_programs(options, requests, lists, workload)
    _fill_faults(options, lists, faults, setting, wide)
    fill_schedules(instances, cluster, lists)
    if cached:
        names = fill_cache(options, instances, requests, lists, workload)
        fill_tiers(options, tiers, lists)
    tables = stack(steps)
    late_s = lateness_s(steps[cluster.entrance], len(workload), setting.seed)
    times = _times(options, cluster, faults, late_s, engine.start.draws(setting.seed))
    options["slowdown_at"] = len(tables.data)
    step_log, token_log = _logs(int(options["step_log_rows"][0]))
    return Memory(
        options=options,
        sim=_clock(options, first_waiting(requests, setting.load), faults),
        error=np.zeros(1, ERROR),
        hooks=np.zeros(len(HOOKS), HOOK),
        actions=np.empty(MOST_ACTIONS, ACTION),
        postponed=np.empty(MOST_ACTIONS, ACTION),
        requests=requests,
        instances=instances,
        **_steps(len(instances)),
        tiers=tiers,
        flows=flows,
        links=_links(cluster),
        channels=_channels(cluster, len(workload)),
        times=np.concatenate([times, _width_values(options, len(times), setting, wide)]),
        lists=lists,
        names=read_only(names),
        step_log=step_log,
        token_log=token_log,
        timing_rows=tables.rows,
        timing_data=np.concatenate([tables.data, engine.sharing.slowdowns().ravel()]),
    )


def _set_sizes(options: NDArray[np.void], requests: NDArray[np.void], instances: NDArray[np.void]) -> None:
    most_running = min(int(instances["max_batch"].max()), len(requests))
    options["requests"], options["instances"], options["most_running"] = len(requests), len(instances), most_running
    at_once = int(options["rows_at_once"][0])
    options["step_log_rows"] = options["token_log_rows"] = max(_LOG_ROWS, 16 * (3 + at_once) * most_running)
    options["tree_leaves"] = max(2, 1 << (len(instances) - 1).bit_length())


def _clock(options: NDArray[np.void], waiting: int, faults: Sequence[FaultEvent]) -> NDArray[np.void]:
    """(1,) SIM; `waiting`: the first session that waits for a client."""
    sim = np.zeros(1, SIM)
    sim["remaining"] = options["requests"]
    sim["next_tick"] = 1
    sim["next_session"] = waiting
    sim["change_s"], sim["changing"], sim["change_kind"] = np.inf, -1, ROLE_CHANGE
    sim["look_s"], sim["next_seen"] = np.inf, 1
    for ends in ("parked", "spanless", "claim"):
        sim[f"{ends}_head"] = sim[f"{ends}_tail"] = -1
    sim["prefill_end_s"], sim["prefill_end_of"] = np.inf, -1
    sim["scheduled"] = -1
    sim["unused_channel"] = -1
    sim["mark_s"] = np.inf
    if faults:
        sim["change_s"], sim["changing"], sim["change_kind"] = faults[0].at_s, faults[0].instance, FAULT
    every_s = float(options["report_every_s"][0])
    sim["next_report"] = 1
    if 0.0 < every_s < sim["change_s"][0]:
        sim["change_s"], sim["changing"], sim["change_kind"] = every_s, 1, REPORT
    return sim


def _steps(size: int) -> dict[str, NDArray[np.void]]:
    """No instance is in a step."""
    step, prefill_step = np.zeros(size, STEP), np.zeros(size, PREFILL_STEP)
    step["next_finish"] = np.iinfo(np.int64).max
    step["leaping_index"] = -1
    prefill_step["ended_s"] = -np.inf
    return {"step": step, "prefill_step": prefill_step}


def _times(
    options: NDArray[np.void],
    cluster: ClusterSpec,
    faults: Sequence[FaultEvent],
    late_s: NDArray[np.float64],
    starts: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The times of each instance's events (none is due yet), those of faults with their values, room for those of
    clients that give up and of requests at the gateway, by how much each request is late (none: (0,)), and draws of
    starts (K, 2).
    """
    trees = np.full(_TREES * int(options["tree_leaves"][0]), np.inf)
    options["fault_times_at"], options["fault_values_at"] = len(trees), len(trees) + len(faults)
    own = [cluster.link_bytes_s[fault.instance] if fault.what == "link" else 1.0 for fault in faults]
    values = [fault.value * times for fault, times in zip(faults, own, strict=True)]
    options["patient_times_at"] = len(trees) + 2 * len(faults)
    count = int(options["requests"][0])
    deadlines = np.zeros(count if options["patience_s"][0] < np.inf else 0)
    gated = np.zeros(2 * count if options["flows"][0] else 0)
    options["gated_since_at"] = options["patient_times_at"] + len(deadlines)
    options["gated_s_at"] = options["gated_since_at"] + len(gated) // 2
    options["some_late"], options["late_at"] = len(late_s) > 0, options["gated_since_at"] + len(gated)
    options["start_draws"], options["start_draws_at"] = len(starts), options["late_at"] + len(late_s)
    return np.concatenate([trees, [fault.at_s for fault in faults], values, deadlines, gated, late_s, starts.ravel()])


def _fill_faults(
    options: NDArray[np.void],
    lists: NDArray[np.int64],
    faults: Sequence[FaultEvent],
    setting: Setting,
    wide: NDArray[np.void],
) -> None:
    """Write the instance of each fault, its kind, and the width of an instance that lost these GPUs; 0: it lost none.
    Then write the counts of each width.
    """
    pools, pool_of = setting.cluster.pools, setting.cluster.pool_of_instance
    losses = setting.engine.faults.schedule(setting.cluster).losses(setting.cluster)
    width_of = {loss: len(pools) + k for k, loss in enumerate(losses)}
    lists[options["fault_at"][0] :][: 3 * len(faults)] = [
        *(fault.instance for fault in faults),
        *(WHAT_FAILS[fault.what] for fault in faults),
        *(width_of.get((int(pool_of[fault.instance]), fault.gpus), 0) for fault in faults),
    ]
    counts = [wide[name] for name in WIDTH_COUNTS]
    lists[options["widths_at"][0] :][: len(wide) * len(WIDTH_COUNTS)] = np.column_stack(counts).ravel()


def _width_values(options: NDArray[np.void], at: int, setting: Setting, wide: NDArray[np.void]) -> NDArray[np.float64]:
    """The rest of each width: bandwidths, and the seconds of a reconfiguration; they lie at `at`."""
    options["width_values_at"] = at
    rows = np.zeros((len(wide), len(WIDTH_VALUES)))
    for k, name in enumerate(WIDTH_VALUES[:-2]):
        rows[:, k] = wide[name]
    for row, (_, left) in zip(rows[len(setting.cluster.pools) :], setting.fewer, strict=False):
        row[-2:] = left.shrink_s, left.grow_s
    return rows.ravel()


def _channels(cluster: ClusterSpec, requests: int) -> NDArray[np.void]:
    """Channels, the most that can be in use at once."""
    return np.zeros(min(cluster.instances**2, requests) if cluster.link.sharing == "fair" else 0, CHANNEL)


def _lay_out_run(options: NDArray[np.void], space: ListSpace, faults: int) -> None:
    """Lay out the lists of the whole run."""
    count, size = int(options["requests"][0]), int(options["instances"][0])
    leaves = int(options["tree_leaves"][0])
    options["faults"], options["fault_at"] = faults, space.reserve(3 * faults)
    options["widths_at"] = space.reserve(len(WIDTH_COUNTS) * int(options["widths"][0]))
    options["dropped_at"] = space.reserve(3 * count if faults else 0)
    options["backed_up_at"] = space.reserve(count if faults else 0)
    options["tree_at"] = space.reserve(_TREES * 2 * leaves)
    options["load_tree_at"] = space.reserve(2 * leaves)
    for name in ("woken_at", "leaping_at", "touched_at"):
        options[name] = space.reserve(size)
    for name in ("changed_links_at", "reached_links_at"):
        options[name] = space.reserve(2 * size + 1)
    for name in ("heap_at", "turns_at", "finished_at", "output_at", "asked_at", "suspended_at"):
        options[name] = space.reserve(count)
    for name in ("leaving_at", "aside_at"):
        options[name] = space.reserve(int(options["most_running"][0]))
    for name in ("patient_at", "attempts_at"):
        options[name] = space.reserve(count if options["patience_s"][0] < np.inf else 0)
    for name in ("gated_next_at", "gated_before_at", "flow_at", "gated_number_at"):
        options[name] = space.reserve(count if options["flows"][0] else 0)
    if options["speculates"][0]:
        options["draws_at"] = space.reserve(2 * count)


def _lists(options: NDArray[np.void], space: ListSpace) -> NDArray[np.int64]:
    """Zeros, except for spans, which few runs have."""
    lists = np.empty(space.size, np.int64)
    lists[: options["spans_at"][0]] = 0
    return lists


def _fill_trees(options: NDArray[np.void], instances: NDArray[np.void], lists: NDArray[np.int64]) -> None:
    leaves = int(options["tree_leaves"][0])
    trees = lists[options["tree_at"][0] :][: _TREES * 2 * leaves].reshape(_TREES, 2 * leaves)
    trees[:, leaves:] = np.arange(leaves)
    loads = lists[options["load_tree_at"][0] :][: 2 * leaves]
    loads[leaves:] = np.arange(leaves)
    prefills = np.zeros(leaves, bool)
    prefills[: len(instances)] = instances["role"] & PREFILL
    for node in range(leaves - 1, 0, -1):  # all times are infinite, and all queues are empty
        trees[:, node] = trees[:, 2 * node]
        left, right = loads[2 * node], loads[2 * node + 1]
        loads[node] = right if prefills[right] and not prefills[left] else left


def _links(cluster: ClusterSpec) -> NDArray[np.void]:
    """The network of each instance in both directions, and the fabric."""
    links = np.zeros(2 * cluster.instances + 1, LINK)
    fabric_bytes_s = np.inf if cluster.link.fabric_bytes_s is None else cluster.link.fabric_bytes_s
    links["bandwidth_bytes_s"] = [*cluster.link_bytes_s, *cluster.link_bytes_s, fabric_bytes_s]
    links["first"] = -1
    return links


def _logs(rows: int) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """The step log and the token log, which are read up to their last written row.

    One allocation holds both. The allocator of C returns memory to the system, which then hands it out page by page,
    once more than twice its largest block is free; this must not happen between runs. So the block has room that is
    never written, which takes no memory.
    """
    steps, tokens = rows * STEP_LOG.itemsize, rows * TOKEN_LOG.itemsize
    room = np.empty(max(steps + tokens, _LOG_BYTES), np.uint8)
    return room[:steps].view(STEP_LOG), room[steps:][:tokens].view(TOKEN_LOG)
