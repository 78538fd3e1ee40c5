"""What instances did, computed a second time, step by step, from steps.parquet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from framework.system.cluster import PoolSpec
from framework.system.model import kv_capacity_tokens
from tests.helpers import definitions
from tests.helpers.recomputed_clock import Clock
from tests.helpers.reported import Row, Run, StepNote, Summary, share

_DTYPE = "bf16"  # of all models drawn, and what GPUs multiply it as


@dataclass(frozen=True)
class Work:
    """What an instance did, by its rows of steps.parquet; `busy_s` counts time in two steps at once once."""

    busy_s: float
    batch_s: float  # decodes x time
    steps: int
    prefill_tokens: int
    decodes: int
    drafts: int
    context_tokens: int  # that decodes read
    attended: float  # pairs of a query and a key
    weight_passes: int  # of weights outside the experts, of steps without chunks in a pipeline
    expert_reads: float  # of all experts, likewise
    decode_bubble_s: float  # that stages wait in steps without chunks
    begun_s: float  # when the earliest step began that was under way as the time began


def work_of(run: Run, instance: int, from_s: float = -math.inf, to_s: float = math.inf) -> Work:
    """Of one instance, step by step: time in steps within these times, the work of steps that end in them."""
    pool, experts = run.pools[instance], run.scenario.model.experts
    unchosen = 1.0 if experts is None else 1 - experts.per_token / experts.count
    busy_s, until_s, bubble_s, reads, batch_s, begun_s = 0.0, from_s, 0.0, 0.0, 0.0, from_s
    steps = passes = prefill_tokens = decodes = drafts = context = attended = 0
    rows = [row for row in run.steps if row["instance"] == instance] + _cut(run, instance, to_s)
    for row in sorted(rows, key=lambda row: float(row["start_s"])):
        batch, chunks, depth, time_s = row["batch"], row["prefill_tokens"], row.get("depth", 0), row["start_s"]
        for j in range(row["steps"]):
            end_s = row["cut_s"] if "cut_s" in row else boundary_s(row, j + 1)
            busy_s += max(0.0, min(end_s, to_s) - max(time_s, until_s))
            until_s, read = max(until_s, end_s), row["context"] + j * batch
            if end_s > from_s:
                begun_s = min(begun_s, time_s)
            if from_s < end_s <= to_s and "cut_s" not in row:
                steps, prefill_tokens, decodes = steps + 1, prefill_tokens + chunks, decodes + batch
                drafts, context = drafts + batch * depth, context + read
                attended += read * (1 + depth)
                batch_s += batch * (end_s - time_s)
                batches = min(pool.parallelism.pp, batch) or 1
                passes += batches
                dealt = [(chunks + batch * (1 + depth) + k) // batches for k in range(batches)]
                reads += sum(1 - unchosen ** (_ranks(pool) * tokens) for tokens in dealt) / _ranks(pool)
                if chunks == 0:
                    bubble_s += max(0, pool.parallelism.pp - batch) * (end_s - time_s)
            time_s = end_s
    counts = (steps, prefill_tokens, decodes, drafts, context, attended, passes)
    return Work(busy_s, batch_s, *counts, reads, bubble_s, begun_s)


def _cut(run: Run, instance: int, to_s: float) -> list[Row]:
    """Steps that a crash cut, or a window within the run that they outlast, in which time passed and nothing was done;
    steps.parquet does not have them.
    """
    nothing = dict.fromkeys(("batch", "prefill_tokens", "context"), 0)
    left = [(begin_s, to_s) for begin_s in run.unreported.left_s[instance] if begin_s < to_s < math.inf]
    return [
        {"start_s": begin_s, "cut_s": end_s, "steps": 1, **nothing}
        for begin_s, end_s in [*run.unreported.cut[instance], *left]
    ]


def boundary_s(row: Row, steps: int) -> float:
    """When so many of the steps that a row stands for have ended."""
    return float(row["start_s"] + steps * row["first_s"] + row["increment_s"] * (steps * (steps - 1) / 2))


def _ranks(pool: PoolSpec) -> int:
    """Instances that step together: the ranks of one model."""
    return pool.parallelism.dp if pool.rank_choice == "routed" else 1


def _gpus(pool: PoolSpec) -> int:
    return pool.parallelism.tp * pool.parallelism.dp * pool.parallelism.pp // _ranks(pool)


def _noted(run: Run, instance: int, from_s: float, to_s: float) -> list[StepNote]:
    """What the reference engine has noted of the steps of an instance that end in this time."""
    return [note for note in run.unreported.steps[instance] if from_s < note.end_s <= to_s]


def check_squares(run: Run) -> None:
    """The chunks of one prompt add up, from what a cache held of it, whatever they are."""
    noted = sum(note.prefill_square for notes in run.unreported.steps for note in notes)
    expected = sum(row["input_tokens"] ** 2 - row["cached_tokens"] ** 2 for row in run.finished)
    assert not run.is_undisturbed or noted == expected


def _bubble_s(run: Run, instance: int, work: Work) -> float:
    """How long a rank's own steps would have lasted is not expected, nor how chunks were dealt to micro-batches."""
    is_reported = work.prefill_tokens == 0 and _ranks(run.pools[instance]) == 1
    return work.decode_bubble_s if is_reported else sum(note.bubble_s for note in run.unreported.steps[instance])


def _reads(run: Run, instance: int, work: Work, over: Clock) -> tuple[float, float]:
    """Passes over weights and over experts: how chunks were dealt to micro-batches is not expected."""
    if run.pools[instance].parallelism.pp == 1 or work.prefill_tokens == 0:
        return work.weight_passes, work.expert_reads
    notes = _noted(run, instance, over.from_s, over.to_s)
    return sum(note.weight_passes for note in notes), sum(note.expert_reads for note in notes)


def _off_s(run: Run, instance: int) -> float:
    """Of the run: all or nothing where roles do not change, else what the reference engine counted to its end."""
    if run.scenario.rules.roles + run.scenario.rules.scales == 0:
        return run.run_s if run.pools[instance].role == "off" else 0.0
    return min(run.unreported.off_s[instance], run.run_s)


def _total_blocks(run: Run, pool: PoolSpec) -> int:
    model, engine = run.scenario.model, run.scenario.engine
    kept = engine.kv_compression.memory_share * float(definitions.kept_layers(model, engine.window_kv))
    room = kv_capacity_tokens(model, pool.gpu, pool.parallelism, engine.kv_fraction, kept) // _ranks(pool)
    return (room if engine.kv_tokens is None else engine.kv_tokens) // engine.block_tokens


@dataclass(frozen=True)
class _Used:
    """Of an instance, in the time that shares are of."""

    flops: float
    bytes_moved: float
    block_s: float
    blocks: int
    busy_s: float
    lasts_s: float  # that its work is held against


def _used(run: Run, instance: int, over: Clock) -> _Used:
    model, pool = run.scenario.model, run.pools[instance]
    work = work_of(run, instance, over.from_s, over.to_s)
    square = sum(note.prefill_square for note in _noted(run, instance, over.from_s, over.to_s))
    tokens = work.prefill_tokens + work.decodes + work.drafts
    passes, expert_reads = _reads(run, instance, work, over)
    expert_bytes = model.expert_parameters * model.dtype_bytes
    kv_bytes = run.scenario.engine.kv_compression.memory_share * model.kv_bytes_per_token
    moved = kv_bytes * (tokens + work.context_tokens) + expert_bytes * expert_reads
    moved += pool.parallelism.dp / _ranks(pool) * (model.weight_bytes - expert_bytes) * passes
    moved += 2 * float(definitions.state_bytes(model)) * work.decodes
    block_s = sum(
        blocks * max(0.0, min(until_s, over.to_s) - max(since_s, over.from_s))
        for since_s, until_s, blocks in run.unreported.held[instance]
    )
    return _Used(
        flops=model.flops_per_token * tokens + model.attention_flops_per_pair * (square / 2 + work.attended),
        bytes_moved=moved,
        block_s=block_s,
        blocks=_total_blocks(run, pool),
        busy_s=work.busy_s,
        lasts_s=run.run_s if over.to_s == math.inf else over.to_s - work.begun_s,
    )


def _shares(run: Run, over: Clock, chosen: Sequence[int]) -> Summary:
    """Of some instances."""
    pools, used = [run.pools[i] for i in chosen], [_used(run, i, over) for i in chosen]
    window_s = run.run_s if over.to_s == math.inf else over.to_s - over.from_s
    gpu_s = [_gpus(pool) * one.lasts_s for pool, one in zip(pools, used, strict=True)]
    states_peaks = all(_DTYPE in pool.gpu.peak_flops for pool in pools)
    peak = sum(time_s * pool.gpu.peak_flops.get(_DTYPE, 0.0) for time_s, pool in zip(gpu_s, pools, strict=True))
    bandwidth = sum(time_s * pool.gpu.bandwidth_bytes_s for time_s, pool in zip(gpu_s, pools, strict=True))
    return {
        "mfu": share(sum(one.flops for one in used), peak) if states_peaks else None,
        "mbu": share(sum(one.bytes_moved for one in used), bandwidth),
        "kv_utilization": share(sum(one.block_s for one in used), sum(one.blocks for one in used) * window_s),
        "utilization": share(sum(one.busy_s for one in used), len(used) * window_s),
    }


def of_pools(run: Run, over: Clock) -> list[Summary]:
    """The rows of the pool table."""
    found, begin = [], 0
    for pool in run.scenario.cluster.pools:
        chosen = range(begin, begin + pool.instances)
        begin += pool.instances
        works = [work_of(run, i) for i in chosen]
        batch = share(sum(work.batch_s for work in works), sum(work.busy_s for work in works))
        about = {"pool": pool.name, "role": pool.role, "instances": pool.instances}
        gpus = pool.instances * _gpus(pool)
        found.append({**about, "gpus": gpus, "mean_batch": batch, **_shares(run, over, chosen)})
    return found


@dataclass(frozen=True)
class _Spent:
    """Of an instance over the run."""

    on_s: float
    gpu_s: float
    energy_j: float
    cost_usd: float


def _spent(run: Run, instance: int, work: Work) -> _Spent:
    pool = run.pools[instance]
    gpus, gpu, on_s = _gpus(pool), pool.gpu, run.run_s - _off_s(run, instance)
    working_s = work.busy_s - _bubble_s(run, instance, work) / pool.parallelism.pp
    energy_j = gpus * (gpu.idle_w * on_s + (gpu.tdp_w - gpu.idle_w) * working_s)
    return _Spent(on_s, gpus * on_s, energy_j, gpus * gpu.usd_per_hour * on_s / 3600)


def fleet(run: Run, works: list[Work]) -> Summary:
    """Nothing where no instance is switched on or goes off, no phase grows and shrinks, and all cost the same."""
    prices = {pool.gpu.usd_per_hour for pool in run.pools}
    if len(prices) == 1 and not any(sum(counts) for counts in run.unreported.switched):
        return {}
    rows, begin = [], 0
    for pool in run.scenario.cluster.pools:
        chosen = range(begin, begin + pool.instances)
        begin += pool.instances
        spent = [_spent(run, i, works[i]) for i in chosen]
        costs = {"energy_j": sum(one.energy_j for one in spent), "cost_usd": sum(one.cost_usd for one in spent)}
        gpu_hours = sum(one.gpu_s for one in spent) / 3600
        rows.append({"pool": pool.name, **_scaled(run, works, chosen), "gpu_hours": gpu_hours, **costs})
    return {**_scaled(run, works, range(begin)), "fleet": rows}


def _scaled(run: Run, works: list[Work], chosen: Sequence[int]) -> Summary:
    starts, stops, reversals = (sum(run.unreported.switched[i][k] for i in chosen) for k in range(3))
    on_s = sum(_spent(run, i, works[i]).on_s for i in chosen)
    counts = {"starts": starts, "stops": stops, "reversals": reversals}
    return {**counts, "mean_instances_on": share(on_s, run.run_s)}


def hardware(run: Run, works: list[Work], over: Clock) -> Summary:
    """Shares of the clock's time; money and energy of the run."""
    check_squares(run)
    energy_j = cost_usd = on_gpu_s = usd_per_hour = 0.0
    for instance, (pool, work) in enumerate(zip(run.pools, works, strict=True)):
        spent = _spent(run, instance, work)
        on_gpu_s += spent.gpu_s
        energy_j += spent.energy_j
        cost_usd += spent.cost_usd
        usd_per_hour += _gpus(pool) * pool.gpu.usd_per_hour
    shares = _shares(run, over, range(len(run.pools)))
    gpus, lasted_s = sum(_gpus(pool) for pool in run.pools), min(run.run_s, over.window_s)
    paid_usd_per_hour = min(usd_per_hour, 3600 * cost_usd / lasted_s) if lasted_s > 0 else usd_per_hour
    return {
        "gpus": gpus,
        "gpus_on": min(float(gpus), on_gpu_s / lasted_s) if lasted_s > 0 else float(gpus),
        "gpu_hours": on_gpu_s / 3600,
        **{name: shares[name] for name in ("mfu", "mbu", "kv_utilization")},
        "energy_j": energy_j,
        "cost_usd": cost_usd,
        "usd_per_hour": paid_usd_per_hour,
    }


def mechanisms(run: Run, works: list[Work]) -> Summary:
    """Of pipelines and drafts, where there are any; and how far steps lay past what was measured."""
    found: Summary = {}
    stages = [pool.parallelism.pp for pool in run.pools]
    waits = [pool.parallelism.pp > 1 or _ranks(pool) > 1 for pool in run.pools]
    if any(waits):
        waited_s = sum(_bubble_s(run, i, work) for i, work in enumerate(works) if waits[i])
        stage_s = sum(pp * work.busy_s for pp, work, can in zip(stages, works, waits, strict=True) if can)
        found["bubble_share"] = share(waited_s, stage_s)
    drafts, decodes = sum(work.drafts for work in works), sum(work.decodes for work in works)
    if drafts > 0:
        accepted = run.unreported.accepted
        if run.is_undisturbed and run.scenario.engine.first_token != "recomputed":  # else a decode may emit the first
            accepted = sum(row["output_tokens"] - 1 for row in run.finished) - decodes
        found |= {"accepted_per_step": accepted / decodes, "speculation_acceptance": accepted / drafts}
    beyond_s = sum(seconds for seconds, _ in run.unreported.extrapolation)
    found["extrapolated"] = share(beyond_s, sum(work.busy_s for work in works)) or 0.0
    found["extrapolation"] = max(1.0, *(far for _, far in run.unreported.extrapolation))
    return found
