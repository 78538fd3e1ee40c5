"""What instances did, computed a second time, step by step, from steps.parquet."""

from __future__ import annotations

import math
from dataclasses import dataclass

from framework.system.cluster import PoolSpec
from framework.system.model import kv_capacity_tokens
from tests.helpers.told import Run, Summary, share

_DTYPE = "bf16"  # of all models drawn, and what GPUs multiply it as


@dataclass(frozen=True)
class Work:
    """What an instance did, by its rows of steps.parquet; `busy_s` counts time in two steps at once once."""

    busy_s: float
    steps: int
    prefill_tokens: int
    decodes: int
    drafts: int
    context_tokens: int  # that decodes read
    attended: float  # pairs of a query and a key
    weight_passes: int  # of weights outside the experts, of steps without chunks in a pipeline
    expert_reads: float  # of all experts, likewise
    decode_bubble_s: float  # that stages wait in steps without chunks


def work_of(run: Run, instance: int) -> Work:
    """Of one instance, step by step."""
    pool, experts = run.pools[instance], run.scenario.model.experts
    unchosen = 1.0 if experts is None else 1 - experts.per_token / experts.count
    busy_s, until_s, bubble_s, reads = 0.0, -math.inf, 0.0, 0.0
    steps = passes = prefill_tokens = decodes = drafts = context = attended = 0
    rows = [row for row in run.steps if row["instance"] == instance]
    for row in sorted(rows, key=lambda row: float(row["start_s"])):
        batch, chunks, depth, time_s = row["batch"], row["prefill_tokens"], row.get("depth", 0), row["start_s"]
        for j in range(row["steps"]):
            end_s = time_s + row["first_s"] + j * row["increment_s"]
            busy_s += max(0.0, end_s - max(time_s, until_s))
            until_s, read = max(until_s, end_s), row["context"] + j * batch
            steps, prefill_tokens, decodes = steps + 1, prefill_tokens + chunks, decodes + batch
            drafts, context = drafts + batch * depth, context + read
            attended += read * (1 + depth)
            batches = min(pool.parallelism.pp, batch) or 1
            passes += batches
            dealt = [(chunks + batch * (1 + depth) + k) // batches for k in range(batches)]
            reads += sum(1 - unchosen ** (_ranks(pool) * tokens) for tokens in dealt) / _ranks(pool)
            if chunks == 0:
                bubble_s += max(0, pool.parallelism.pp - batch) * (end_s - time_s)
            time_s = end_s
    return Work(busy_s, steps, prefill_tokens, decodes, drafts, context, attended, passes, reads, bubble_s)


def _ranks(pool: PoolSpec) -> int:
    """Instances that step together: the ranks of one model."""
    return pool.parallelism.dp if pool.rank_choice == "routed" else 1


def _gpus(pool: PoolSpec) -> int:
    return pool.parallelism.tp * pool.parallelism.dp * pool.parallelism.pp // _ranks(pool)


def _prefill_squares(run: Run) -> float:
    """Of all chunks, (prefix + chunk)^2 - prefix^2; the chunks of one prompt add up, from what a cache held of it."""
    if run.is_undisturbed:
        return float(sum(row["input_tokens"] ** 2 - row["cached_tokens"] ** 2 for row in run.finished))
    return float(sum(instance["prefill_square"] for instance in run.untold.instances))


def _bubble_s(run: Run, instance: int, work: Work) -> float:
    """How long a rank's own steps would have lasted is not told, nor how chunks were dealt to micro-batches."""
    is_told = work.prefill_tokens == 0 and _ranks(run.pools[instance]) == 1
    return work.decode_bubble_s if is_told else float(run.untold.instances[instance]["bubble_s"])


def _reads(run: Run, instance: int, work: Work) -> tuple[float, float]:
    """Passes over weights and over experts: how chunks were dealt to micro-batches is not told."""
    if run.pools[instance].parallelism.pp == 1 or work.prefill_tokens == 0:
        return work.weight_passes, work.expert_reads
    untold = run.untold.instances[instance]
    return float(untold["weight_passes"]), float(untold["expert_reads"])


def _off_s(run: Run, instance: int) -> float:
    """Of the run's duration: all or nothing where roles do not change, else what the engine counted to its end."""
    if run.scenario.rules.roles == 0:
        return run.duration_s if run.pools[instance].role == "off" else 0.0
    return min(float(run.untold.instances[instance]["off_s"]), run.duration_s)


def _total_blocks(run: Run, pool: PoolSpec) -> int:
    model, engine = run.scenario.model, run.scenario.engine
    kept = engine.kv_compression.memory_share
    room = kv_capacity_tokens(model, pool.gpu, pool.parallelism, engine.kv_fraction, kept) // _ranks(pool)
    return (room if engine.kv_tokens is None else engine.kv_tokens) // engine.block_tokens


def hardware(run: Run, works: list[Work]) -> Summary:
    model, pools, duration_s = run.scenario.model, run.pools, run.duration_s
    attended = _prefill_squares(run) / 2 + sum(work.attended for work in works)
    tokens = sum(work.prefill_tokens + work.decodes + work.drafts for work in works)
    flops = 2 * model.active_parameters * tokens + model.attention_flops_per_pair * attended
    expert_bytes = model.expert_parameters * model.dtype_bytes
    kv_bytes = run.scenario.engine.kv_compression.memory_share * model.kv_bytes_per_token
    moved = kv_bytes * (tokens + sum(work.context_tokens for work in works))
    energy_j = cost_usd = on_gpu_s = 0.0
    for instance, (pool, work) in enumerate(zip(pools, works, strict=True)):
        gpus, gpu = _gpus(pool), pool.gpu
        passes, expert_reads = _reads(run, instance, work)
        moved += pool.parallelism.dp / _ranks(pool) * (model.weight_bytes - expert_bytes) * passes
        moved += expert_bytes * expert_reads
        on_s = duration_s - _off_s(run, instance)
        on_gpu_s += gpus * on_s
        working_s = work.busy_s - _bubble_s(run, instance, work) / pool.parallelism.pp
        energy_j += gpus * (gpu.idle_w * on_s + (gpu.tdp_w - gpu.idle_w) * working_s)
        cost_usd += gpus * gpu.usd_per_hour * on_s / 3600
    states_peaks = all(_DTYPE in pool.gpu.peak_flops for pool in pools)
    peak = sum(_gpus(pool) * pool.gpu.peak_flops.get(_DTYPE, 0.0) for pool in pools)
    bandwidth = sum(_gpus(pool) * pool.gpu.bandwidth_bytes_s for pool in pools)
    held = sum(instance["kv_block_s"] for instance in run.untold.instances)
    return {
        "gpus": sum(_gpus(pool) for pool in pools),
        "gpus_on": share(on_gpu_s, duration_s) or float(sum(_gpus(pool) for pool in pools)),
        "mfu": share(flops, peak * duration_s) if states_peaks else None,
        "mbu": share(moved, bandwidth * duration_s),
        "kv_utilization": share(held, sum(_total_blocks(run, pool) for pool in pools) * duration_s),
        "energy_j": energy_j,
        "cost_usd": cost_usd,
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
        accepted = run.untold.accepted
        if run.is_undisturbed:
            accepted = sum(row["output_tokens"] - 1 for row in run.finished) - decodes
        found |= {"accepted_per_step": accepted / decodes, "speculation_acceptance": accepted / drafts}
    beyond_s = sum(instance["extrapolated_s"] for instance in run.untold.instances)
    found["extrapolated"] = share(beyond_s, sum(work.busy_s for work in works)) or 0.0
    found["extrapolation"] = max(1.0, *(instance["extrapolation"] for instance in run.untold.instances))
    return found
